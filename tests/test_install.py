"""Installing as a package: no compiler runs, and what the runtime is built from comes along."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make", "nvcc", "ld")

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compilers that fail, and write down that they were called."""
    folder = tmp_path_factory.mktemp("traps")
    for name in COMPILERS:
        trap = folder / name
        trap.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/called"\nexit 1\n')
        trap.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def environment(traps: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PAGEDRUN_", "PYTHON", "XDG_"))}
    return {**kept, "HOME": str(home), "PATH": f"{traps}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def installed(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with pagedrun in it; returns its bin folder."""
    venv = tmp_path_factory.mktemp("install") / "venv"
    run([sys.executable, "-m", "venv", str(venv)], environment)
    run([str(venv / "bin/pip"), "install", "-q", "--disable-pip-version-check", str(ROOT)], environment)
    return venv / "bin"


def run(command: list[str], env: dict[str, str], *, status: int = 0) -> str:
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_installs_and_runs_without_a_compiler(installed: Path, traps: Path, environment: dict[str, str]) -> None:
    assert "setup" in run([str(installed / "pagedrun"), "--help"], environment)
    assert "--portable" in run([str(installed / "pagedrun"), "setup", "--help"], environment)
    run([str(installed / "python"), "-c", "import pagedrun"], environment)
    assert not (traps / "called").exists(), (traps / "called").read_text()


def test_the_build_id_is_the_one_of_this_checkout(installed: Path, environment: dict[str, str]) -> None:
    code = "from pagedrun.runtime.sources import build_id; print(build_id())"
    here = run([sys.executable, "-c", code], {**environment, "PYTHONPATH": str(ROOT)})
    assert run([str(installed / "python"), "-c", code], environment) == here


def test_the_registry_comes_along(installed: Path, environment: dict[str, str]) -> None:
    code = "from pagedrun.catalog import load_catalog; print(load_catalog().default)"
    assert run([str(installed / "python"), "-c", code], environment).strip()


def test_without_a_runtime_it_says_what_to_do(installed: Path, environment: dict[str, str]) -> None:
    said = run([str(installed / "pagedrun"), "complete", "hello"], environment, status=1)
    assert "hint:  run: pagedrun setup" in said
    assert "missing  runtime" in run([str(installed / "pagedrun"), "doctor"], environment, status=1)


def test_wheel_and_sdist_hold_what_they_need(environment: dict[str, str], tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", str(tmp_path)]
    run([*pip, str(ROOT)], environment)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"pagedrun/data/patches/{path.name}" for path in (ROOT / "patches").glob("*.patch")} <= names
    assert {"pagedrun/data/models.toml", "pagedrun/runtime/install.py", "pagedrun/py.typed"} <= names
    assert not any(name.startswith(("tests/", "scripts/", "patches/")) for name in names)
