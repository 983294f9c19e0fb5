"""Saves that are killed, cut off from power, or share a name: a sample of what scripts/fuzz_sessions.py repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.sessions import SessionFolder
from tests.session_runs import Journal, faults, killed, power_cut, two_writers, wrong_with
from tests.session_saver import state


@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_is_killed_leaves_the_old_state_or_the_new_one(tmp_path: Path, seed: int) -> None:
    run = killed(tmp_path, seed)
    assert not run.wrong, run


@pytest.mark.parametrize("seed", range(3))
def test_two_writers_of_one_name_never_mix(tmp_path: Path, seed: int) -> None:
    run = two_writers(tmp_path, seed)
    assert not run.wrong, run


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_leaves_the_old_state_or_the_new_one(tmp_path: Path, seed: int) -> None:
    run = power_cut(tmp_path, seed)
    assert not run.wrong, run


@pytest.mark.parametrize("seed", range(60))
def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, seed: int) -> None:
    run = faults(tmp_path, seed)
    assert not run.wrong, run


class Careless(Journal):
    """Does not sync files."""

    def sync(self, fd: int) -> None:
        pass


class Nameless(Journal):
    """Does not sync folders."""

    def sync_folder(self, folder: Path) -> None:
        pass


@pytest.mark.parametrize("disk", [Careless, Nameless])
def test_every_sync_is_needed(tmp_path: Path, disk: type[Journal]) -> None:
    """What power cuts are judged by finds fault, and none of these lines is there for nothing."""
    assert any(power_cut(tmp_path, seed, disk=disk).wrong for seed in range(5))


def test_what_runs_are_judged_by_finds_fault(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path, 0)
    saved, _, _ = state(1, 3)
    folder.save("a", saved)
    path = folder.path("a")
    assert not wrong_with(path, [1], 3)
    assert "is not state 3" in wrong_with(path, [2], 3)
    assert "4 was saved" in wrong_with(path, [1], 4)
    raw = bytearray(path.read_bytes())
    raw[8192] ^= 1
    path.write_bytes(raw)
    assert "not whole" in wrong_with(path, [1], 3)
    path.unlink()
    assert "nothing is there" in wrong_with(path, [1], 3) and not wrong_with(path, [1], -1)
