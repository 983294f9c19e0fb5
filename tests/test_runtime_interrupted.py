"""Setup raced, killed and interrupted: real processes over the small stand-in for llama.cpp."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagedrun.runtime import manifest, store, toolchain

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and toolchain.find_cmake() and toolchain.find_ninja()),
    reason="needs a C++ compiler, cmake and ninja",
)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts setup as a process; FOLDER/slow holds its build up."""
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime_program", str(tmp_path), *arguments],
            env={**os.environ, "PAGEDRUN_CACHE": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    (tmp_path / "slow").unlink(missing_ok=True)
    for child in children:
        child.kill()
        child.communicate()


def wait_for(path: Path) -> None:
    for _ in range(400):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not come")


def test_two_setups_at_once(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    first = program()
    wait_for(tmp_path / "building")
    second = program()
    assert second.stderr is not None
    assert "Another pagedrun setup is running; waiting" in second.stderr.readline()
    assert second.poll() is None
    (tmp_path / "slow").unlink()
    first_root, _ = first.communicate(timeout=60)
    second_root, said = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first_root == second_root
    assert "Building" not in said


def test_killed_in_the_middle(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    first = program()
    wait_for(tmp_path / "building")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = program()
    assert second.stderr is not None
    # Its ninja is still at work, so the next one must not start a second one in the same folder.
    assert "Another pagedrun setup is running; waiting" in second.stderr.readline()
    (tmp_path / "slow").unlink()
    root, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert store.reported_build_id(store.Runtime(Path(root.strip()), manifest.load(Path(root.strip()))))


def test_interrupted_with_ctrl_c(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    first = program()
    wait_for(tmp_path / "building")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=20)
    assert first.returncode != 0
    (tmp_path / "slow").unlink()
    second = program()
    second.communicate(timeout=60)
    assert second.returncode == 0
