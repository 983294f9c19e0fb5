"""list, verify, rm and path: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli import console, main, models_list
from pagedrun.hub import library, record
from tests.gguf_bytes import STRING, entry, gguf_bytes, tensor, text, u32
from tests.hub_fakes import CONTENT, make_home, put
from tests.places_fakes import COMMIT, hf_cached, in_lmstudio, in_ollama

LLAMA = gguf_bytes(
    [entry("general.architecture", STRING, text("llama")), u32("llama.context_length", 4096)],
    [tensor("blk.0.attn_q.weight", [32, 8], kind=2)],
    data=32 * 8 // 32 * 18 + 16,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(console, "verbose", False)
    return make_home(tmp_path, monkeypatch)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def run(*args: str) -> Ran:
        code = main.run(args)
        return Ran(code, *capsys.readouterr())

    return run


def asks(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """Somebody at a terminal who answers so; returns what was asked."""
    asked: list[str] = []
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", lambda question, default: asked.append(question) or answer)
    return asked


# --- list ---


def test_list_has_a_line_for_each_model_and_the_total_on_stderr(home: Path, run) -> None:
    put(home / "models" / "llama.gguf", LLAMA)
    in_ollama(home / ".ollama" / "models", "llama3.1:8b", LLAMA + b"more")
    library.remember_use(home / "models" / "llama.gguf")
    ran = run("list")
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["NAME", "SIZE", "QUANT", "CONTEXT", "WHERE", "LAST", "USED", "FITS"]
    size = f"{len(LLAMA)} B".split()
    assert lines[1] == ["llama.gguf", *size, "Q4_0", "4,096", "pagedrun", "just", "now", "RAM"]
    assert lines[2][:1] + lines[2][3:] == ["ollama:llama3.1:8b", "Q4_0", "4,096", "Ollama", "never", "RAM"]
    assert ran.code == 0 and ran.err.startswith("2 models, ")


def test_a_damaged_file_is_listed_and_what_is_wrong_is_said(home: Path, run) -> None:
    put(home / "models" / "bad\x1b[31m.gguf", b"<html>")
    ran = run("list")
    assert ran.code == 0
    assert "bad[31m.gguf" in ran.out and ran.out.rstrip().endswith("damaged") and "\x1b" not in ran.out + ran.err
    assert "is a web page" in ran.err
    (one,) = run("list", "--json").json
    assert "is a web page" in one["problem"] and one["quantization"] is None


def test_list_as_json_has_bytes_and_times(home: Path, run) -> None:
    path = put(home / "models" / "llama.gguf", LLAMA)
    library.remember_use(path)
    ran = run("list", "--json")
    (one,) = ran.json
    assert (one["name"], one["paths"], one["size"], one["context"]) == ("llama.gguf", [str(path)], len(LLAMA), 4096)
    assert (one["quantization"], one["place"], one["problem"]) == ("Q4_0", "pagedrun", None)
    assert one["fit"] == {"fits": True, "where": one["fit"]["where"], "missing": 0}
    assert 0 <= time.time() - one["last_used"] < 60
    assert ran.err == ""


def test_an_empty_list_says_how_to_get_a_model(run) -> None:
    ran = run("list")
    assert (ran.code, ran.out) == (0, "")
    assert "pagedrun pull" in ran.err
    assert run("list", "--json").json == []


def test_times_are_told_in_one_unit() -> None:
    now = time.time()
    told = [models_list._ago(now - s) for s in (-5, 59, 61, 3599, 3601, 86_399, 86_401, 29 * 86_400)]
    assert told[:2] == ["just now", "just now"]
    assert told[2:] == ["1 minute ago", "59 minutes ago", "1 hour ago", "23 hours ago", "1 day ago", "29 days ago"]
    assert models_list._ago(86_400) == time.strftime("%Y-%m-%d", time.localtime(86_400))
    assert models_list._ago(None) == "never"


# --- verify ---


def test_verify_goes_through_all_models_and_ends_with_1_if_one_is_bad(home: Path, run) -> None:
    put(home / "models" / "Tiny.gguf")
    put(home / "models" / "llama.gguf", LLAMA)
    ran = run("verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "ok   llama.gguf: no checksum is known; all tensors are inside the file",
        "ok   tiny: sha256 as the registry says",
    ]
    path = put(home / "models" / "Tiny.gguf", CONTENT[:-1] + b"?")
    ran = run("verify", "tiny", "llama.gguf", "TINY")
    assert ran.code == 1
    assert [line[:9] for line in ran.out.splitlines()] == ["bad  tiny", "ok   llam"]
    assert "fetch it again with: pagedrun pull tiny" in ran.err
    assert path.exists()
    assert [(one["name"], one["good"], one["hashed"]) for one in run("verify", "--json").json] == [
        ("llama.gguf", True, False),
        ("tiny", False, True),
    ]


def test_a_truncated_model_of_the_registry_can_be_verified_and_removed_by_its_name(home: Path, run) -> None:
    path = put(home / "models" / "Tiny.gguf", CONTENT[:100])
    ran = run("verify", "tiny")
    assert ran.code == 1 and "pagedrun pull tiny" in ran.err
    assert run("rm", "tiny", "--yes").code == 0 and not path.exists()


def test_a_name_that_nobody_knows_ends_verify_before_anything_is_read(home: Path, run) -> None:
    put(home / "models" / "Tiny.gguf")
    ran = run("verify", "tiny", "tinny")
    assert (ran.code, ran.out) == (1, "") and "tiny" in ran.err


def test_what_to_do_about_a_bad_file_depends_on_whose_it_is(home: Path, run) -> None:
    blob = in_ollama(home / ".ollama" / "models", "o:8b", LLAMA)
    blob.write_bytes(b"?" * len(LLAMA))
    ran = run("verify")
    assert ran.code == 1 and "ollama rm o:8b; ollama pull o:8b" in ran.err
    assert "is not a GGUF file" in run("verify", str(put(home / "own.gguf", b"nonsense"))).out


# --- rm ---


def test_rm_asks_and_takes_no_for_an_answer(home: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(home / "models" / "Tiny.gguf")
    asked = asks(monkeypatch, False)
    ran = run("rm", "tiny")
    assert (ran.code, ran.out) == (1, "") and path.exists()
    assert asked == ["Delete tiny?"] and f"tiny: 10.0 KiB in {path}" in ran.err
    asks(monkeypatch, True)
    ran = run("rm", "tiny")
    assert ran.code == 0 and not path.exists() and "freed 10.0 KiB" in ran.err


def test_rm_in_a_pipe_needs_yes(home: Path, run) -> None:
    path = put(home / "models" / "Tiny.gguf")
    ran = run("rm", "tiny")
    assert ran.code == 1 and path.exists() and "hint:  add --yes" in ran.err
    ran = run("rm", "tiny", "-y")
    assert (ran.code, ran.out) == (0, "") and not path.exists()


def test_rm_deletes_nothing_if_one_name_is_wrong(home: Path, run) -> None:
    path = put(home / "models" / "Tiny.gguf")
    assert run("rm", "tiny", "tinny", "--yes").code == 1
    assert path.exists()


def test_rm_leaves_files_of_other_programs_to_them(home: Path, run) -> None:
    blob = in_ollama(home / ".ollama" / "models", "o:8b", b"1")
    known = in_ollama(home / ".ollama" / "models", "known", CONTENT)
    snapshot = hf_cached(home, "me/C", {"C-Q8_0.gguf": b"2"})
    studio = in_lmstudio(home, "me/L", "L-Q8_0.gguf", b"3")
    other = put(home / "my file.gguf", b"4")
    for name, path, hint in (
        ("ollama:o:8b", blob, "ollama rm o:8b"),
        ("tiny", known, "ollama rm known:latest"),
        ("hf:me/C", snapshot / "C-Q8_0.gguf", "hf cache rm model/me/C"),
        ("hf:me/L:Q8_0", studio, "under My Models"),
        ("./my file.gguf", other, f"rm '{other}'"),
    ):
        ran = run("rm", name, "--yes")
        assert ran.code == 1 and path.exists()
        assert "is not pagedrun's to delete" in ran.err and hint in ran.err, ran.err


def test_rm_removes_an_unfinished_download_too(home: Path, run) -> None:
    models = home / "models"
    final = models / "me" / "big-GGUF" / "Big-Q4_K_M.gguf"
    part = models / ".pull" / final.relative_to(models) / "part"
    put(part, b"half")
    ran = run("rm", "big", "--yes")
    assert ran.code == 0 and "an unfinished download" in ran.err and "freed 4 B" in ran.err
    assert os.listdir(models) == []  # noqa: PTH208
    put(part, b"half")
    put(final)
    assert run("rm", "hf:me/big-GGUF", "--yes").code == 0
    assert os.listdir(models) == []  # noqa: PTH208


def test_rm_of_what_is_not_there_is_an_error(run) -> None:
    ran = run("rm", "big", "--yes")
    assert ran.code == 1 and "is not on this machine" in ran.err


# --- path ---


def test_path_prints_the_path_and_nothing_else(home: Path, run) -> None:
    path = put(home / "models" / "me" / "S" / "S-Q8_0-00001-of-00002.gguf")
    put(home / "models" / "me" / "S" / "S-Q8_0-00002-of-00002.gguf")
    ran = run("path", "hf:me/S")
    assert (ran.code, ran.out, ran.err) == (0, f"{path}\n", "")
    ran = run("path", "tiny")
    assert (ran.code, ran.out) == (1, "") and "tiny (Tiny, 10.0 KiB) is not on this machine" in ran.err


def test_path_keeps_the_bytes_of_a_name_that_is_no_text(home: Path, capfdbinary) -> None:
    path = os.fsencode(home / "models") + b"/m\xff.gguf"
    put(Path(os.fsdecode(path)))
    assert main.run(["path", os.fsdecode(b"m\xff.gguf")]) == 0
    assert capfdbinary.readouterr().out == path + b"\n"


def test_a_file_that_was_fetched_from_an_address_is_fetched_from_there_again(home: Path, run) -> None:
    path = put(home / "models" / "u.gguf", LLAMA)
    url = "https://example.org/u.gguf"
    for source, again in ((url, url), (f"hf:me/U@{COMMIT}", "hf:me/U/u.gguf")):
        when = path.stat().st_mtime_ns
        record.write(path, record.Record(source, "u.gguf", len(LLAMA), "0" * 64, True, "2026-01-01", when))
        assert f"pagedrun pull {again}\n" in run("verify").err
