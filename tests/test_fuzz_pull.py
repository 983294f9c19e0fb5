"""Pulls under random faults: a sample of what scripts/fuzz_pull.py repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import running
from tests.pull_runs import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running() as hub:
        yield Lab(hub, tmp_path_factory.mktemp("pulls"))


@pytest.mark.parametrize("seed", range(40))
def test_a_pull_ends_with_the_right_file_or_a_clear_error(lab: Lab, seed: int) -> None:
    run = lab.run(seed)
    assert not run.wrong, run


def test_what_the_runs_are_judged_by_finds_fault(lab: Lab, tmp_path: Path) -> None:
    good = next(run for seed in range(40) if (run := lab.run(seed)).kind == "alone" and run.outcome == "right file")
    path = Path(good.ends[0].out.strip())
    expected = {path: path.read_bytes()}
    path.write_bytes(b"GGUF other")
    assert "WRONG CONTENT" in lab._judge(good, expected)
    path.unlink()
    assert "done without" in lab._judge(good, expected)
