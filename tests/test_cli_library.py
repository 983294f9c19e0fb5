"""list, verify and path: what they print, where, and how they end."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli import console, main
from pagedrun.cli.models import listing
from pagedrun.hub import library, record
from tests.gguf_bytes import LLAMA
from tests.hub_fakes import CONTENT, make_home, put
from tests.places_fakes import COMMIT, in_ollama
from tests.quantize_fakes import make_imatrix


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


def test_an_importance_matrix_is_listed_and_counts_as_no_model(home: Path, run) -> None:
    put(home / "models" / "llama.gguf", LLAMA)
    make_imatrix(home / "models" / "llama.imatrix.gguf", {}, {})
    ran = run("list")
    row = next(line.split() for line in ran.out.splitlines() if "imatrix" in line)
    assert (row[0], row[3], row[-1]) == ("llama.imatrix.gguf", "imatrix", "-")
    assert ran.err.startswith("1 model and 1 other file, ")
    assert {one["kind"] for one in run("list", "--json").json} == {"model", "imatrix"}


def test_list_says_what_is_unfinished_and_what_to_do(home: Path, run) -> None:
    pull = home / "models" / ".pull"
    put(pull / "me" / "big-GGUF" / "Big-Q4_K_M.gguf" / "part", b"half")
    put(pull / "me" / "R" / "my file.gguf" / "part", b"half")
    put(pull / "u.gguf" / "part", b"half")
    put(home / "models" / "u.gguf", LLAMA)
    assert run("list").err.splitlines()[1:] == [
        "unfinished: big, 4 B of 10.0 KiB; go on: pagedrun pull big; drop: pagedrun rm big",
        "unfinished: hf:me/R/my file.gguf, 4 B so far; go on: pagedrun pull 'hf:me/R/my file.gguf'; "
        "drop: pagedrun rm 'hf:me/R/my file.gguf'",
        "unfinished: u.gguf, 4 B so far; go on: the command that began it",
    ]
    assert run("list", "--json").err == ""


def test_an_empty_list_says_how_to_get_a_model(run) -> None:
    ran = run("list")
    assert (ran.code, ran.out) == (0, "")
    assert "pagedrun pull" in ran.err
    assert run("list", "--json").json == []


def test_times_are_told_in_one_unit() -> None:
    now = time.time()
    told = [listing.ago(now - s) for s in (-5, 59, 61, 3599, 3601, 86_399, 86_401, 29 * 86_400)]
    assert told[:2] == ["just now", "just now"]
    assert told[2:] == ["1 minute ago", "59 minutes ago", "1 hour ago", "23 hours ago", "1 day ago", "29 days ago"]
    assert listing.ago(86_400) == time.strftime("%Y-%m-%d", time.localtime(86_400))
    assert listing.ago(None) == "never"


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
    assert "tiny: fetch it again with: pagedrun pull tiny" in ran.err
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
    ran = run("verify", str(put(home / "own.gguf", b"nonsense")))
    assert "is not a GGUF file" in ran.out and "is it the right file?" in ran.err


def test_what_was_published_damaged_is_not_fetched_again(home: Path, run) -> None:
    path = put(home / "models" / "me" / "U" / "u-Q8_0.gguf", LLAMA[:-40])
    sha256, when = hashlib.sha256(LLAMA[:-40]).hexdigest(), path.stat().st_mtime_ns
    source = f"hf:me/U@{COMMIT}"
    record.write(path, record.Record(source, path.name, len(LLAMA) - 40, sha256, True, "2026-01-01", when))
    ran = run("verify")
    assert ran.code == 1 and ran.out.startswith("bad  hf:me/U:Q8_0: as published, but damaged: ")
    assert "fetching it again would bring the same" in ran.err
    ran = run("show", "hf:me/U")
    assert ran.code == 1 and "hint:  it is so in hf:me/U, too; take another one" in ran.err


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
