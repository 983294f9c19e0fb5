"""The child that quantises, and other programs: what they say in plain words, and how they may end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagedrun.errors import DiskFullError, ModelError, ModelFileError, UsageError
from pagedrun.native.quantizer import Task
from pagedrun.quantize import child, program


def task(path: Path) -> Task:
    return Task(parts=(str(path),), target=str(path.with_name("out.gguf")), ftype=15, threads=1, max_buffer=1 << 20)


@pytest.mark.parametrize(
    ("reason", "kind", "text"),
    [
        ("unknown model architecture: 'nova'", ModelFileError, "its architecture 'nova' is not known"),
        ("basic_ios::clear: iostream error", DiskFullError, "the disk is full, or refused it"),
        ("imatrix size 5 is different from tensor size 9 for a.weight", UsageError, "5 values for a.weight, which"),
        ("Missing importance matrix for tensor a.weight in a very", UsageError, "has nothing for a.weight"),
        ("tensor 'a' data is not within the file bounds", ModelFileError, "truncated or damaged"),
        ("quantized data validation failed", ModelFileError, "not finite"),
        ("Unexpected character within '[...]' in regular expression", UsageError, "no regular expression"),
        ("something new", ModelError, "m.gguf cannot be quantised: something new"),
    ],
)
def test_what_llama_cpp_says_in_plain_words(tmp_path: Path, reason: str, kind: type, text: str) -> None:
    error = child._failure(task(tmp_path / "m.gguf"), reason, "")
    assert type(error) is kind
    assert text in error.message


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os; os.abort()", "it was ended by SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed"),
        ("import os, sys; sys.stderr.write('/x/y.cpp:7: GGML_ASSERT(a > 0) failed\\n'); sys.stderr.flush(); os.abort()",
         r"llama.cpp gave up: GGML_ASSERT\(a > 0\) failed"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("pass", "ended before it was done"),
    ],
)  # fmt: skip
def test_a_child_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, text: str) -> None:
    monkeypatch.setattr(child, "PROGRAM", code)
    with pytest.raises(ModelError, match=text):
        child.run(task(tmp_path / "m.gguf"), lambda *_: None)


def test_what_a_child_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort in llama.cpp used to leave debuggers behind, which never ended."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    starts = (
        "import json, subprocess, sys; "
        f"held = open({str(fifo)!r}, 'w'); "
        "subprocess.Popen(['sleep', '600'], pass_fds=[held.fileno()], stdout=2); "
        "print(json.dumps({'error': 'enough', 'log': ''}), flush=True)"
    )
    monkeypatch.setattr(child, "PROGRAM", starts)
    with fifo_reader(fifo) as read:
        with pytest.raises(ModelError, match="enough"):
            child.run(task(tmp_path / "m.gguf"), lambda *_: None)
        assert read() == b""  # the end: nobody holds it any more


@contextmanager
def fifo_reader(path: Path) -> Iterator[Callable[[], bytes]]:
    """Opened before anybody writes; the reading itself waits until all writers have gone."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.set_blocking(file, True)
        yield lambda: os.read(file, 1)
    finally:
        os.close(file)


def test_no_debugger_is_started_by_an_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "import json, os; print(json.dumps({'error': os.environ['GGML_NO_BACKTRACE'], 'log': ''}))"
    monkeypatch.setattr(child, "PROGRAM", says)
    with pytest.raises(ModelError, match=r"cannot be quantised: 1$"):
        child.run(task(tmp_path / "m.gguf"), lambda *_: None)
    code = "import os; print(os.environ['GGML_NO_BACKTRACE'], os.getpid() == os.getpgrp())"
    assert program.run([sys.executable, "-c", code], cwd=tmp_path, env={}, on_piece=str) == (0, "1 True")


def test_the_child_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = """print('{"tensor": 1, "of": 2, "name": "a"}'); print('{"done": true}')"""
    monkeypatch.setattr(child, "PROGRAM", says)
    seen: list[tuple[int, int, str]] = []
    child.run(task(tmp_path / "m.gguf"), lambda *event: seen.append(event))
    assert seen == [(1, 2, "a")]


def test_a_program_is_read_piece_by_piece(tmp_path: Path) -> None:
    code = "import sys; [print(t, end='', flush=True) for t in ('a\\nb\\rc', '[1]2.5,', '[2]3.5,[3]4,\\n', 'end')]"
    pieces: list[str] = []
    status, tail = program.run([sys.executable, "-c", code], cwd=tmp_path, env={}, on_piece=pieces.append)
    assert (status, tail) == (0, "\n".join(pieces))
    assert "".join(pieces) == "abc[1]2.5,[2]3.5,[3]4,end"
    assert {"b", "[2]3.5,", "[3]4,", "end"} <= set(pieces)
