"""Paths as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun import paths
from pagedrun.cli import main
from tests.hub_fakes import make_home


def test_a_tilde_is_a_home_or_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.expanded("~/m.gguf") == tmp_path / "m.gguf"
    assert paths.expanded("~nobody-here/m.gguf") == Path("~nobody-here/m.gguf")
    monkeypatch.setenv("PAGEDRUN_CACHE", "~nobody-here")
    assert paths.cache_dir() == Path.cwd() / "~nobody-here"


@pytest.mark.parametrize(
    "command",
    [
        ["quantize", "~nobody-here/x.gguf"],
        ["quantize", "m.gguf", "-o", "~nobody-here/x.gguf"],
        ["quantize", "m.gguf", "--imatrix", "~nobody-here"],
        ["quantize", "m.gguf", "--calibrate", "~nobody-here"],
        ["quantize", "m.gguf", "--check", "~nobody-here"],
        ["complete", "x", "--file", "~nobody-here"],
        ["complete", "x", "--system-file", "~nobody-here"],
        ["setup", "--from", "~nobody-here"],
        ["setup", "--export", "~nobody-here/x.tar.xz"],
        ["rm", "-y", "~nobody-here/x.gguf"],
        ["verify", "~nobody-here/x.gguf"],
    ],
)
def test_the_home_of_nobody_is_a_file_that_is_not_there(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_home(tmp_path, monkeypatch)
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.setattr("pagedrun.first_run.ensure_runtime", lambda: None)
    assert main.run(command) in {1, 2}
    assert "should not have happened" not in capfd.readouterr().err
