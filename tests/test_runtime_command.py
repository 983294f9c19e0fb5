"""The setup command's options, what it shows, and the bindings it installs."""

from __future__ import annotations

import sys
from pathlib import Path

import pexpect
import pytest

from pagedrun import hub
from pagedrun.cli.main import run
from pagedrun.errors import DownloadError, PatchError
from pagedrun.runtime import archive, bindings, install, space, store
from pagedrun.runtime.bindings import get_bindings
from pagedrun.runtime.install import Options
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.sources import Source
from pagedrun.runtime.store import Runtime
from tests.runtime_fakes import Report

MADE = Manifest(key="k", build_id="b", base="x 1", patches=(), compiler="c", options=(), glibc="", built="now")
SOURCE = Source("fake-llama", "1.0", "abcdef" * 10, 1)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the command asked for; nothing is built or fetched."""
    done: list[object] = []

    def build(options: Options, report: object) -> Runtime:
        done.append(options)
        return Runtime(tmp_path, MADE)

    def bring(file: Path, report: object) -> Runtime:
        done.append(file)
        return Runtime(tmp_path, MADE)

    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "install", build)
    monkeypatch.setattr(archive, "install_from", bring)
    monkeypatch.setattr(hub, "fetch_default_model", lambda on_progress: done.append("model"))
    return done


def test_without_options(calls: list[object], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["setup"]) == 0
    assert calls == [Options(), "model"]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"Ready for CPU: {tmp_path}\n"


def test_options_arrive(calls: list[object]) -> None:
    assert run(["setup", "--cuda-arch", "8.6; 89,90", "--portable", "--tools", "-j", "3", "--no-model"]) == 0
    assert calls == [Options(cuda_archs=("86", "89", "90"), portable=True, tools=True, jobs=3)]


def test_from_builds_nothing(calls: list[object]) -> None:
    assert run(["setup", "--from", "r.tar.xz"]) == 0
    assert calls == [Path("r.tar.xz"), "model"]


@pytest.mark.parametrize(
    "arguments",
    [["--export", "a.tar.gz", "--from", "b.tar.gz"], ["--clean", "--from", "b"], ["--cpu", "--cuda-arch", "86"]],
)
def test_options_that_exclude_each_other(
    calls: list[object], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(["setup", *arguments]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert calls == []


def test_errors_have_their_hint(
    calls: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: Options, report: object) -> Runtime:
        raise PatchError("0002-x.patch does not apply: hunk 1 of 1", hint="reinstall pagedrun")

    monkeypatch.setattr(install, "install", fail)
    assert run(["setup"]) == 1
    assert capsys.readouterr().err == "error: 0002-x.patch does not apply: hunk 1 of 1\nhint:  reinstall pagedrun\n"


def test_export_without_a_runtime(calls: list[object], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["setup", "--export", str(tmp_path / "r.tar.gz")]) == 1
    assert "has not been built" in capsys.readouterr().err
    assert not (tmp_path / "r.tar.gz").exists()


def test_clean_says_how_much(calls: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    (store.build_root() / "k").mkdir(parents=True)
    (store.build_root() / "k" / "object.o").write_bytes(bytes(3 << 20))
    assert run(["setup", "--clean"]) == 0
    assert capsys.readouterr().err == "Freed 3.0 MiB.\n"


REPORTER = """
import sys, time
from pagedrun.runtime.report import StderrReporter
with StderrReporter() as report:
    report.progress("Fetching", 1, 4)
    report.progress("Building [x]", 50, 100)
    report.note("a note [y]")
    report.progress("Building [x]", 100, 100)
    report.warn("careful")
print("done")
"""


def test_progress_on_a_terminal() -> None:
    child = pexpect.spawn(sys.executable, ["-c", REPORTER], encoding="utf-8", dimensions=(24, 80), timeout=20)
    child.expect(pexpect.EOF)
    for text in ("Building [x]", "100%", "a note [y]", "warning: careful", "done"):
        assert text in child.before


def test_progress_elsewhere_is_one_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(REPORTER, "reporter", "exec"), {})
    out, err = capfd.readouterr()
    assert out == "done\n"
    assert err == "Fetching ...\nBuilding [x] ...\na note [y]\nwarning: careful\n"


def test_bindings_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], dict[str, object]]] = []

    def pip(arguments: list[str], **options: object) -> None:
        seen.append((arguments, options))
        target = Path(arguments[arguments.index("--target") + 1])
        (target / "llama_cpp").mkdir(parents=True)
        (target / "llama_cpp" / "llama_cpp.py").touch()
        (target / "bin").mkdir()

    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path))
    monkeypatch.setattr(bindings, "pip", pip)
    folder = get_bindings(tmp_path / "x.tar.gz", SOURCE, Report(), 0)
    assert get_bindings(tmp_path / "x.tar.gz", SOURCE, Report(), 0) == folder
    ((arguments, options),) = seen
    assert arguments[:4] == ["install", "--no-deps", "--no-binary", "fake-llama"]
    assert arguments[-1] == str(tmp_path / "x.tar.gz")
    assert options["extra_env"] == {"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"}
    assert [path.name for path in folder.iterdir()] == ["llama_cpp"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_bindings_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path))
    monkeypatch.setattr(bindings, "pip", lambda *_, **__: None)
    with pytest.raises(DownloadError, match="holds no bindings"):
        get_bindings(tmp_path / "x.tar.gz", SOURCE, Report(), 0)
    assert list((tmp_path / "bindings").iterdir()) == []


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert space.free(tmp_path / "a" / "b") > 0
    space.require(tmp_path / "a" / "b", 1, "a test")
