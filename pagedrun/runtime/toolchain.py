"""Finds what builds: a C++ compiler (must be there), cmake and ninja (fetched if not), ccache (used if there)."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedrun import paths
from pagedrun.errors import SetupError
from pagedrun.runtime.packages import pip
from pagedrun.runtime.process import output_of
from pagedrun.runtime.report import Reporter

MIN_CMAKE = (3, 21)
_CXX = ("c++", "g++", "clang++")
_CC = ("cc", "gcc", "clang")
COMPILER_HINT = (
    "Debian, Ubuntu: sudo apt install build-essential   Fedora: sudo dnf install gcc-c++   "
    "Arch: sudo pacman -S gcc   (or bring a runtime from another machine: pagedrun setup --from FILE)"
)


@dataclass(frozen=True)
class Compiler:
    """The host compiler; `version` is the line it prints about itself, without its own name or path."""

    cc: str
    cxx: str
    version: str


def find_compiler() -> Compiler:
    """The C and C++ compiler: $CC and $CXX, else the usual names on the PATH. Raises SetupError."""
    cxx = _program("CXX", _CXX)
    cc = _program("CC", _CC)
    if cxx is None or cc is None:
        missing = "C++" if cxx is None else "C"
        raise SetupError(f"there is no {missing} compiler on this machine", hint=COMPILER_HINT)
    printed = output_of([cxx, "--version"])
    if not printed:
        raise SetupError(f"the C++ compiler {cxx} does not run", hint=COMPILER_HINT)
    # "c++ (Debian 12.2.0-14) 12.2.0": which name it was called by must not matter.
    line = printed.splitlines()[0]
    return Compiler(cc, cxx, re.sub(r"^\S*(c\+\+|g\+\+)\S* ", "", line).strip())


def find_ccache() -> str | None:
    """ccache, when it is installed."""
    return shutil.which("ccache")


def find_cmake() -> str | None:
    """A cmake that is new enough: on the PATH, or fetched earlier."""
    for candidate in (shutil.which("cmake"), _fetched("cmake")):
        version = cmake_version(candidate) if candidate else None
        if candidate and version and version >= MIN_CMAKE:
            return candidate
    return None


def cmake_version(cmake: str) -> tuple[int, ...] | None:
    """(3, 25, 1), or None if it does not run."""
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", output_of([cmake, "--version"]) or "")
    return tuple(int(part) for part in match.groups()) if match else None


def find_ninja() -> str | None:
    """ninja: on the PATH, or fetched earlier."""
    return next((c for c in (shutil.which("ninja"), _fetched("ninja")) if c and output_of([c, "--version"])), None)


def get_cmake(report: Reporter, fd: int) -> str:
    """cmake, fetched from the package index if this machine has none. `fd`: the setup lock."""
    return _get("cmake", f"cmake>={MIN_CMAKE[0]}.{MIN_CMAKE[1]}", find_cmake, report, fd)


def get_ninja(report: Reporter, fd: int) -> str:
    """ninja, fetched from the package index if this machine has none. `fd`: the setup lock."""
    return _get("ninja", "ninja", find_ninja, report, fd)


def _get(name: str, requirement: str, find: Callable[[], str | None], report: Reporter, fd: int) -> str:
    found = find()
    if found:
        return found
    report.progress(f"Fetching {name}", 0, None)
    target = paths.cache_dir() / "tools" / name
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
        pip(
            ["install", "--no-deps", "--only-binary", ":all:", "--target", str(target), requirement],
            purpose=f"fetching {name}",
            scratch=Path(scratch),
            fd=fd,
        )
    found = find()
    if not found:
        raise SetupError(f"the package {name} does not run here", hint=f"install {name} with your package manager")
    return found


def _fetched(name: str) -> str | None:
    """The program inside a package that pip put into the cache: some releases keep it in data/, some in bin/.

    The bin/ of the former holds a Python script that finds its module only in an environment, so data/ goes first.
    """
    folder = paths.cache_dir() / "tools" / name
    return next((str(p) for p in (folder / name / "data/bin" / name, folder / "bin" / name) if p.is_file()), None)


def _program(variable: str, names: tuple[str, ...]) -> str | None:
    chosen = os.environ.get(variable)
    if chosen:
        return shutil.which(chosen)
    return next((found for name in names if (found := shutil.which(name))), None)


def default_jobs(available_bytes: int, bytes_each: int) -> int:
    """How many compilers to run at once: one per processor we may use, as far as free memory goes."""
    return max(1, min(len(os.sched_getaffinity(0)), available_bytes // bytes_each))


def cache_environment(root: Path) -> dict[str, str]:
    """ccache settings under which a build in another folder (another key) finds the objects of this one."""
    sloppiness = os.environ.get("CCACHE_SLOPPINESS", "")
    return {
        "CCACHE_BASEDIR": str(root),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": f"{sloppiness},time_macros".lstrip(","),
    }
