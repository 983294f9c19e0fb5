"""scripts/pagedrun in a pretended checkout: quick errors, one environment, whatever happens in between."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
SHELL_TOOLS = ("sh", "dirname", "readlink", "cat", "env", "rm", "mkdir", "sleep")

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "pagedrun"
version = "1"
"""

# A build backend without dependencies: an editable wheel that holds one .pth file.
BACKEND = """\
import os, pathlib, time, zipfile
HERE = str(pathlib.Path(__file__).parent)
def build_editable(folder, config_settings=None, metadata_directory=None):
    with open(HERE + "/installs", "a") as file:
        file.write("x")
    while os.path.exists(HERE + "/slow"):
        time.sleep(0.05)
    name = "pagedrun-1-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("pagedrun.pth", HERE)
        info = "pagedrun-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: pagedrun\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
def get_requires_for_build_editable(config_settings=None):
    return []
"""

MAIN = """\
import os, sys
print(sys.argv[1:], os.environ.get("PAGEDRUN_AUTO_SETUP"), os.path.dirname(__file__))
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("results", "__pycache__"))
    (root / "pagedrun").mkdir()
    (root / "pagedrun" / "__init__.py").touch()
    (root / "pagedrun" / "__main__.py").write_text(MAIN)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    return root


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with a shell's tools, this Python and a compiler's name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in SHELL_TOOLS:
        (folder / name).symlink_to(shutil.which(name) or name)
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "python3").symlink_to(python if python.exists() else sys.executable)
    (folder / "c++").symlink_to(shutil.which("true") or "true")
    return folder


def environment(programs: Path, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**kept, "PATH": str(programs), "HOME": str(tmp_path / "home"), "PAGEDRUN_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def launch(checkout: Path, programs: Path, tmp_path: Path) -> Run:
    def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        program = more.pop("program", checkout / "scripts" / "pagedrun")
        env = environment(programs, tmp_path)
        return subprocess.run(
            [str(program), *arguments], env=env, capture_output=True, text=True, check=False, timeout=120, **more
        )  # type: ignore[call-overload,no-any-return]

    return run


def installs(checkout: Path) -> int:
    """How often pip has installed the package."""
    marks = checkout / "installs"
    return len(marks.read_text()) if marks.exists() else 0


def test_no_python(launch: Run, programs: Path, checkout: Path) -> None:
    (programs / "python3").unlink()
    done = launch("chat")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "needs Python 3.10 or newer" in done.stderr
    assert "sudo apt install python3 python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def fake_python(programs: Path, name: str, old: bool) -> None:
    """A python that only knows whether it is too old, and says which it is."""
    (programs / name).unlink(missing_ok=True)
    (programs / name).write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {int(old)}\necho {name} >&2\nexit 3\n')
    (programs / name).chmod(0o755)


def test_an_old_python_beside_a_newer_one(launch: Run, programs: Path) -> None:
    fake_python(programs, "python3", old=True)
    assert "needs Python 3.10" in launch("chat").stderr
    fake_python(programs, "python3.12", old=False)
    assert launch("chat").stderr.strip() == "python3.12"


def test_no_venv_module(launch: Run, programs: Path, tmp_path: Path, checkout: Path) -> None:
    real = (programs / "python3").readlink()
    (programs / "python3").unlink()
    # As on Debian without python3-venv: ensurepip cannot be imported.
    hide = "import sys; sys.modules['ensurepip'] = None; sys.argv = sys.argv[1:]; import runpy; "
    hide += "runpy.run_path(sys.argv[0], run_name='__main__')"
    script = f'#!/bin/sh\n[ "$1" = -I ] && shift && exec "{real}" -c "{hide}" "$@"\nexec "{real}" "$@"\n'
    (programs / "python3").write_text(script)
    (programs / "python3").chmod(0o755)
    done = launch("chat")
    assert done.returncode == 1
    assert "venv module is not installed" in done.stderr
    assert "sudo apt install python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_no_compiler_is_said_before_anything_is_installed(launch: Run, programs: Path, checkout: Path) -> None:
    (programs / "c++").unlink()
    done = launch("chat")
    assert done.returncode == 1
    assert "no C++ compiler" in done.stderr
    assert "sudo apt install build-essential" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.install
def test_no_compiler_is_needed_once_there_is_a_runtime(
    launch: Run, programs: Path, checkout: Path, tmp_path: Path
) -> None:
    (programs / "c++").unlink()
    (tmp_path / "cache" / "runtime").mkdir(parents=True)
    (tmp_path / "cache" / "runtime" / "current-0").touch()
    assert launch("chat").returncode == 0


@pytest.mark.install
def test_first_and_second_run(launch: Run, checkout: Path, tmp_path: Path) -> None:
    first = launch("chat", "two words", "", "$x")
    assert first.stdout == f"['chat', 'two words', '', '$x'] 1 {checkout}/pagedrun\n"
    assert "Making the Python environment" in first.stderr
    began = time.monotonic()
    second = launch("chat", cwd="/")
    took = time.monotonic() - began
    assert (second.returncode, second.stderr) == (0, "")
    assert installs(checkout) == 1
    assert took < 1

    link = tmp_path / "link"
    link.symlink_to(checkout / "scripts" / "pagedrun")
    assert launch("chat", program=link).stdout.startswith("['chat']")

    (checkout / "pyproject.toml").write_text(PYPROJECT + "# other packages\n")
    assert launch("chat").returncode == 0
    assert installs(checkout) == 2
    launch("chat")
    assert installs(checkout) == 2

    moved = checkout.with_name("moved")
    checkout.rename(moved)
    done = launch("chat", program=moved / "scripts" / "pagedrun")
    assert done.stdout.endswith(f"{moved}/pagedrun\n")
    assert installs(moved) == 3


@pytest.mark.install
def test_pip_fails(launch: Run, checkout: Path) -> None:
    (checkout / "backend.py").write_text("raise RuntimeError('no such backend')\n")
    done = launch("chat")
    assert done.returncode == 1
    assert "no such backend" in done.stderr
    assert "error: pip could not install pagedrun's packages" in done.stderr
    (checkout / "backend.py").write_text(BACKEND)
    assert launch("chat").returncode == 0


@pytest.mark.install
@pytest.mark.parametrize("damage", ["dangling", "not executable", "no program", "no pagedrun", "no bin"])
def test_a_broken_environment_is_made_again(launch: Run, checkout: Path, damage: str) -> None:
    assert launch("chat").returncode == 0
    python = checkout / ".venv" / "bin" / "python"
    if damage == "no bin":
        shutil.rmtree(python.parent)
    elif damage == "no pagedrun":
        next(checkout.glob(".venv/lib/*/site-packages/pagedrun.pth")).unlink()
    else:
        for link in python.parent.glob("python*"):
            link.unlink()
        if damage == "dangling":
            python.symlink_to("/nowhere/python3")
        else:
            python.write_text("no program")
            python.chmod(0o755 if damage == "no program" else 0o644)
    done = launch("chat")
    assert done.stdout.startswith("['chat']"), done.stderr
    assert launch("chat").stderr == ""
    assert installs(checkout) == 2


@pytest.mark.install
def test_modules_in_the_current_folder_are_not_imported(launch: Run, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("typing", "pip", "subprocess", "venv", "pagedrun"):
        (folder / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    done = launch("chat", cwd=folder)
    assert done.stdout.startswith("['chat']"), done.stderr


def test_a_missing_package_is_one_clear_line() -> None:
    code = "import runpy, sys; sys.modules['typer'] = None; runpy.run_module('pagedrun', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a package that pagedrun needs is missing: typer\nhint: ")


@pytest.fixture
def start(checkout: Path, programs: Path, tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    def run() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [checkout / "scripts" / "pagedrun", "chat"],
            env=environment(programs, tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def wait_for_install(checkout: Path) -> None:
    for _ in range(600):
        if installs(checkout):
            return
        time.sleep(0.05)
    raise AssertionError("pip was not started")


@pytest.mark.install
def test_two_first_runs_at_once(checkout: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    (checkout / "slow").touch()
    first = start()
    wait_for_install(checkout)
    second = start()
    assert second.stderr is not None
    assert "Another pagedrun is making the environment" in second.stderr.readline()
    (checkout / "slow").unlink()
    outputs = [first.communicate(timeout=60)[0], second.communicate(timeout=60)[0]]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("['chat']")
    assert installs(checkout) == 1


@pytest.mark.install
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle(
    checkout: Path, launch: Run, start: Callable[[], subprocess.Popen[str]], how: signal.Signals
) -> None:
    (checkout / "slow").touch()
    first = start()
    wait_for_install(checkout)
    os.killpg(first.pid, how)
    _, err = first.communicate(timeout=20)
    assert first.returncode != 0
    assert "Traceback" not in err
    (checkout / "slow").unlink()
    assert launch("chat").stdout.startswith("['chat']")
    assert installs(checkout) == 2
