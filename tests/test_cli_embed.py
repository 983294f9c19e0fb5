"""`pagedrun embed` over a fake reader: what it reads, what it writes, and what it refuses."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.cli import main
from pagedrun.embedding import EmbeddingService
from tests.bert_models import NumpyBert, write_bert
from tests.cli_fakes import folders
from tests.embedding_fakes import FakeReader, vector


class Embed:
    """Runs `pagedrun embed MODEL ARGS` in this process."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
        self._model, self._monkeypatch, self._capture = model, monkeypatch, capture
        self.reader = FakeReader()
        self.loads: list[dict[str, Any]] = []

    def __call__(self, *args: str, stdin: bytes | None = None) -> tuple[int, list[str], str]:
        self._monkeypatch.setattr("pagedrun.load_embedding.load_embedding", self._load)
        self._monkeypatch.setattr("pagedrun.first_run.ensure_runtime", lambda: None)
        self._monkeypatch.setattr("pagedrun.runtime.store.cpu_notice", lambda runtime: None)
        source = Path("/dev/null")
        if stdin is not None:
            source = self._model.with_name("stdin")
            source.write_bytes(stdin)
        with source.open() as file:
            self._monkeypatch.setattr("sys.stdin", file)
            code = main.run(["embed", str(self._model), *args])
        out, err = self._capture.readouterr()
        return code, out.decode().splitlines(), err.decode()

    def _load(self, path: Path, config: Any, **more: Any) -> EmbeddingService:
        self.loads.append({"config": config, **more})
        return EmbeddingService(self.reader)


@pytest.fixture
def embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Embed:
    return Embed(folders(tmp_path, monkeypatch), monkeypatch, capfdbinary)


def close(found: Sequence[Sequence[float]], texts: Sequence[str]) -> None:
    np.testing.assert_allclose(found, [vector(list(text.encode())) for text in texts], rtol=1e-6)


def test_texts_of_the_command_line(embed: Embed) -> None:
    code, lines, err = embed("hello", "grün")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in lines]
    assert [(one["text"], one["tokens"]) for one in found] == [("hello", 5), ("grün", 5)]
    close([one["embedding"] for one in found], ["hello", "grün"])
    assert embed.reader.closed


def test_lines_of_standard_input(embed: Embed) -> None:
    code, lines, _ = embed("--format", "array", stdin=b"one\r\ntwo\nthree")
    assert code == 0
    close([json.loads(line) for line in lines], ["one", "two", "three"])


def test_many_lines_keep_their_order(embed: Embed) -> None:
    texts = [f"{i}" * 3 for i in range(1000)]
    code, lines, _ = embed(stdin="".join(f"{text}\n" for text in texts).encode())
    assert code == 0 and [json.loads(line)["text"] for line in lines] == texts


def test_base64_and_dimensions(embed: Embed) -> None:
    _, (line,), _ = embed("hello", "--format", "base64", "--dimensions", "2")
    first = vector(list(b"hello"))[:2]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(line), "<f4"), first / np.linalg.norm(first), rtol=1e-6)


@pytest.mark.parametrize(
    ("args", "stdin", "code", "says"),
    [
        ((), None, 2, "there is no text"),
        (("x", "--dimensions", "0"), None, 2, "--dimensions must be 1 or more, not 0"),
        (("x", "--dimensions", "5"), None, 2, "have 4"),
        (("x", "--format", "xml"), None, 2, "--format"),
        (("x", "--max-num-seqs", "2"), None, 2, "--max-num-seqs"),
        (("x", "y" * 33), None, 1, "text 2 has 33 tokens, and the model takes 32"),
        ((), b"a\n" + b"b" * 40, 1, "line 2 has 40 tokens"),
        (("x", ""), None, 1, "text 2 is empty\nhint:  leave it out"),
        ((), b"a\n\xff\n", 1, "line 2 is not UTF-8 text: byte 1 is 0xff"),
        ((), b"\r", 1, "line 1 is empty\nhint:  leave it out"),
    ],
)
def test_what_is_refused(embed: Embed, args: tuple[str, ...], stdin: bytes | None, code: int, says: str) -> None:
    found, _, err = embed(*args, stdin=stdin)
    assert found == code and says in err, err


@pytest.mark.parametrize(("line", "says"), [(b"\xff", "is not UTF-8"), (b"", "is empty"), (b"\r", "is empty")])
def test_what_cannot_be_read_comes_after_what_was_before_it(embed: Embed, line: bytes, says: str) -> None:
    code, lines, err = embed(stdin=b"a\nb\n" + line + b"\nc\n")
    assert code == 1 and [json.loads(line)["text"] for line in lines] == ["a", "b"]
    assert err.startswith(f"error: line 3 {says}")


def test_an_empty_text_is_refused_also_where_the_model_adds_tokens(
    embed: Embed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed.reader.vocab, "tokenize", lambda text, **_: [1, *text.encode(), 2], raising=False)
    assert embed("a", "")[0] == 1 and not embed.reader.batches
    assert embed(" ")[0] == 0


def test_no_text_at_all_is_no_error(embed: Embed) -> None:
    assert embed(stdin=b"")[:2] == (0, [])


def test_scores_have_no_dimensions(embed: Embed) -> None:
    embed.reader = FakeReader(pooling="rank")
    code, _, err = embed("x", "--dimensions", "2")
    assert code == 1 and "is a reranker" in err


def test_settings_reach_the_loader(embed: Embed) -> None:
    assert embed("x", "-c", "100", "-t", "3", "-v")[0] == 0
    config = embed.loads[0]["config"]
    assert (config.max_seq_len, config.threads) == (100, 3) and embed.loads[0]["verbose"]


def test_a_line_without_an_end(embed: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.cli.inputs.MAX_BYTES", 100_000)
    code, lines, err = embed(stdin=b"a\n" + b"b" * 200_000)
    assert code == 1 and "a line of standard input has more than 97.7 KiB" in err and len(lines) == 1


@pytest.mark.real
def test_an_error_ends_it_while_others_still_write(library: object, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"hello\n\xff\n")
        process.stdin.flush()
        assert process.wait(60) == 1
        assert len(process.stdout.readlines()) == 1 and process.stderr.read().startswith(b"error: line 2 is not UTF-8")


@pytest.mark.real
def test_ctrl_c(library: object, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130 and process.stderr.read() == b""


@pytest.mark.real
def test_a_program_may_ask_line_by_line(library: object, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdin and process.stdout
        bert = NumpyBert()
        for text, tokens in ((b"hello world\n", [2, 16, 17, 3]), (b"the cat\n", [2, 5, 7, 3])):
            process.stdin.write(text)
            process.stdin.flush()
            np.testing.assert_allclose(json.loads(process.stdout.readline()), bert.embedding(tokens), atol=1e-3)
        process.stdin.close()
        assert process.wait(60) == 0


def started(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pagedrun", "embed", str(write_bert(folder / "m.gguf")), "-t", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PAGEDRUN_STATE": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "--format", "array"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
