"""Finding compilers and build tools, and fetching what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagedrun.errors import SetupError
from pagedrun.runtime import toolchain
from tests.runtime_fakes import Report


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of the PATH, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    return folder


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_no_compiler(programs: Path) -> None:
    with pytest.raises(SetupError, match=r"no C\+\+ compiler") as caught:
        toolchain.find_compiler()
    assert "apt install build-essential" in caught.value.hint
    program(programs / "g++", "g++ 12")
    with pytest.raises(SetupError, match="no C compiler"):
        toolchain.find_compiler()


def test_the_name_it_is_called_by_is_not_its_version(programs: Path) -> None:
    program(programs / "gcc", "gcc")
    program(programs / "g++", "g++ (Debian 12.2.0-14) 12.2.0")
    by_one_name = toolchain.find_compiler()
    program(programs / "c++", "c++ (Debian 12.2.0-14) 12.2.0")
    by_another = toolchain.find_compiler()
    assert by_one_name.cxx != by_another.cxx
    assert by_one_name.version == by_another.version == "(Debian 12.2.0-14) 12.2.0"


def test_cxx_chooses(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "cc", "cc")
    program(programs / "c++", "c++ 12")
    mine = program(tmp_path / "my-c++", "clang version 18.1.3")
    monkeypatch.setenv("CXX", str(mine))
    assert toolchain.find_compiler().cxx == str(mine)
    monkeypatch.setenv("CXX", "not-there")
    with pytest.raises(SetupError):
        toolchain.find_compiler()


def test_cmake_that_is_too_old_is_not_used(programs: Path, tmp_path: Path) -> None:
    program(programs / "cmake", "cmake version 3.10.2")
    assert toolchain.find_cmake() is None
    fetched = program(tmp_path / "cache/tools/cmake/cmake/data/bin/cmake", "cmake version 3.31.0")
    assert toolchain.find_cmake() == str(fetched)
    program(programs / "cmake", "cmake version 3.25.1")
    assert toolchain.find_cmake() == str(programs / "cmake")


def test_missing_tools_are_fetched_once(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def pip(arguments: list[str], **_: object) -> None:
        calls.append(arguments)
        target = Path(arguments[arguments.index("--target") + 1])
        program(target / "bin" / target.name, "cmake version 4.0.3" if target.name == "cmake" else "1.13.0")

    monkeypatch.setattr(toolchain, "pip", pip)
    assert toolchain.get_cmake(Report(), 0) == str(tmp_path / "cache/tools/cmake/bin/cmake")
    assert toolchain.get_ninja(Report(), 0) == str(tmp_path / "cache/tools/ninja/bin/ninja")
    assert [call[-1] for call in calls] == ["cmake>=3.21", "ninja"]
    toolchain.get_cmake(Report(), 0)
    assert len(calls) == 2


def test_a_fetched_tool_that_does_not_run(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "pip", lambda *_, **__: None)
    with pytest.raises(SetupError, match="package ninja does not run here"):
        toolchain.get_ninja(Report(), 0)


def test_jobs_fit_processors_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert toolchain.default_jobs(64 << 30, 1 << 30) == 8
    assert toolchain.default_jobs(7 << 30, 2 << 30) == 3
    assert toolchain.default_jobs(100 << 20, 1 << 30) == 1


def test_ccache_keeps_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCACHE_SLOPPINESS", "locale")
    assert toolchain.cache_environment(Path("/x"))["CCACHE_SLOPPINESS"] == "locale,time_macros"
    monkeypatch.delenv("CCACHE_SLOPPINESS")
    assert toolchain.cache_environment(Path("/x"))["CCACHE_SLOPPINESS"] == "time_macros"
