"""A result of `pagedrun quantize` answers as its source of the registry does, or it is said that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.cli import main
from pagedrun.cli.quantize import kept
from pagedrun.hub import record
from pagedrun.quantize.source import FolderSource, GgufSource
from tests.gguf_bytes import LLAMA
from tests.hub_fakes import make_home, put


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


@pytest.fixture
def big(home: Path) -> GgufSource:
    """A model of the registry, with settings; it is somewhere else than the models folder."""
    return GgufSource((put(home / "Big-Q4_K_M.gguf"),), "Big")


def test_in_the_models_folder_it_keeps_them(home: Path, big: GgufSource, capsys: pytest.CaptureFixture[str]) -> None:
    target = put(home / "models" / "Big-Q8_0.gguf", LLAMA)
    kept.remember(big, target)
    assert capsys.readouterr() == ("", "it answers with the registry's template and settings, as big does\n")
    known = record.read(target)
    assert known is not None and (known.derived, known.source) == ("big", record.MADE)


def test_elsewhere_it_is_said_that_it_has_none(
    home: Path, big: GgufSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGEDRUN_MODELS", str(home / "my models"))
    target = put(home / "Big-Q8_0.gguf", LLAMA)
    kept.remember(big, target)
    err = capsys.readouterr().err
    assert "template and settings stay with big" in err and f"-o '{home}/my models'" in err
    assert record.last(target) is None


def test_of_other_sources_only_the_checksum_is_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = put(home / "models" / "Q8_0.gguf", LLAMA + b"as it was before")
    kept.remember(GgufSource((put(home / "x.gguf", LLAMA),), "x"), old)
    target = put(home / "models" / "Q8_0.gguf", LLAMA)
    kept.remember(FolderSource(home, "x"), target)
    kept.remember(FolderSource(home, "x"), put(home / "Q8_0.gguf", LLAMA))
    assert capsys.readouterr().err == ""
    known = record.read(target)
    assert known is not None and known.derived == ""


@pytest.mark.real
def test_smollm2_still_answers(
    library: object, smollm2: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "config" / "models.toml").unlink()
    (home / "models" / smollm2.name).symlink_to(smollm2)
    assert main.run(["quantize", "smollm2-135m", "--type", "Q8_0", "--force"]) == 0
    made = Path(capfd.readouterr().out.strip())
    assert made == home / "models" / "SmolLM2-135M-Instruct-Q8_0.gguf"
    assert main.run(["complete", "-m", made.name, "--temp", "0", "What is the capital of France?"]) == 0
    assert "Paris" in capfd.readouterr().out
    made.unlink()
