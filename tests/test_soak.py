"""Random traffic for a while: a sample of what scripts/soak.py does for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak_runs import KINDS, MIB, Soaked, Weather, soak

pytestmark = pytest.mark.real


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_nothing_breaks_and_nothing_is_left(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    found = soak(path, Weather(answers=50, longest=256, fit=2, every=0.1))
    assert not found.errors
    assert set(found.asked) == set(KINDS)
    assert found.cached
    assert not found.remains
    assert found.left - found.before < 16 * MIB  # of frames, snapshots and the index, of which more were there
    assert found.kv is not None and found.kv.evictions


def test_growth_is_seen() -> None:
    flat, growing = Soaked(), Soaked()
    flat.memory = [(float(t), 100 * MIB + t % 2) for t in range(60)]
    growing.memory = [(float(t), (100 + t) * MIB) for t in range(60)]
    assert abs(flat.grown()) < MIB and abs(flat.slope()) < MIB
    assert growing.grown() > 30 * MIB
    assert round(growing.slope() / MIB) == 3600
