"""What others need of the GPU, and when it may be taken back."""

from __future__ import annotations

import pytest

from pagedrun.slots.pressure import AMPLE, LOW, Pressure


@pytest.mark.parametrize(
    ("free", "wanted"),
    [(0, AMPLE), (LOW - 1, AMPLE - LOW + 1), (LOW, AMPLE - LOW), (AMPLE, 0), (AMPLE + 5, -5)],
)
def test_memory_is_given_back_below_the_low_mark_and_taken_above_the_high_one(free: int, wanted: int) -> None:
    expected = 0 if LOW <= free <= AMPLE else wanted
    assert Pressure(lambda: free)() == expected


def test_what_was_given_back_makes_it_neither_give_nor_take() -> None:
    """Giving back leads to the middle: no page goes to and fro."""
    free = 10 << 20
    assert Pressure(lambda: free + Pressure(lambda: free)())() == 0


def test_who_may_take_all_of_a_gpu_does_not_give_back_what_is_its_own() -> None:
    free = 60 << 20
    assert Pressure(lambda: free, spare=free)() == 0
    assert Pressure(lambda: free // 4, spare=free)() > 0
    assert Pressure(lambda: 0, spare=-(1 << 30))() == 32 << 20
