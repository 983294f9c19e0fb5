"""rm: what it deletes, what it refuses to, and what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagedrun.cli import console, main
from tests.gguf_bytes import LLAMA
from tests.hub_fakes import CONTENT, make_home, put
from tests.places_fakes import hf_cached, in_lmstudio, in_ollama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(console, "verbose", False)
    return make_home(tmp_path, monkeypatch)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


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
    other = put(home / "my file.gguf", LLAMA)
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


def test_rm_through_a_linked_folder_leaves_what_is_not_pagedruns(home: Path, run) -> None:
    models = home / "models"
    studio = in_lmstudio(home, "pub/R-GGUF", "R-Q4_K_M.gguf", LLAMA)
    outside = put(home / "out" / "o.gguf", LLAMA)
    (models / "pub").symlink_to(studio.parent.parent)
    (models / "linkdir").symlink_to(outside.parent)
    where = {line.split()[0]: line for line in run("list").out.splitlines()}
    assert "LM Studio" in where["hf:pub/R-GGUF:Q4_K_M"]
    assert "elsewhere" in where[str(models / "linkdir" / "o.gguf")]
    for name in (
        "hf:pub/R-GGUF:Q4_K_M",
        str(models / "pub" / "R-GGUF" / "R-Q4_K_M.gguf"),
        str(models / "linkdir" / "o.gguf"),
        str(models / ".." / "out" / "o.gguf"),
    ):
        ran = run("rm", "-y", name)
        assert ran.code == 1 and "is not pagedrun's to delete" in ran.err, ran.err
    assert studio.exists() and outside.exists()


@pytest.mark.parametrize("name", ["/", "/dev/null", "/etc/passwd"])
def test_nobody_is_told_to_delete_what_is_no_model(name: str, run) -> None:
    for command in (["rm", "-y"], ["verify"], ["path"]):
        ran = run(*command, name)
        assert ran.code == 1 and "rm" not in ran.err.split() and "delete" not in ran.err
        assert command != ["path"] or ran.out == ""


def test_rm_does_not_tell_how_to_get_what_is_to_go(run) -> None:
    ran = run("rm", "-y", "big")
    assert ran.code == 1 and "hint:  what is here: pagedrun list" in ran.err


def test_rm_says_that_the_image_part_goes_too(home: Path, run) -> None:
    put(home / "models" / "me" / "R" / "R-Q8_0.gguf", LLAMA)
    put(home / "models" / "me" / "R" / "R-Q4_0.gguf", LLAMA + b"4")
    projector = put(home / "models" / "me" / "R" / "mmproj-F16.gguf")
    assert "image part" not in run("rm", "-y", "hf:me/R:Q8_0").err and projector.exists()
    assert f"with it goes the image part that no other model here uses: {projector}" in run("rm", "-y", "hf:me/R").err
    assert os.listdir(home / "models") == []  # noqa: PTH208


def test_rm_of_a_repository_with_several_models_wants_to_know_which(home: Path, run) -> None:
    paths = [put(home / "models" / "me" / "R" / f"R-{quant}.gguf", LLAMA) for quant in ("Q4_K_M", "Q8_0")]
    ran = run("rm", "-y", "hf:me/R")
    assert ran.code == 1 and "hint:  name one: hf:me/R:Q4_K_M, hf:me/R:Q8_0" in ran.err
    assert all(path.exists() for path in paths)


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
