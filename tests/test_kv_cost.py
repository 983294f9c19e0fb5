"""What should be read how: the cost model against trying everything, and the cases that decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.errors import UsageError
from pagedrun.kv import Rates, Space, SpillSettings, choose
from pagedrun.kv.cost import OVERLAP_LOSS

SPACE = Space(pages=100, least_hot=2, device_bytes=500, frame_bytes=10, stage_bytes=2, most_cold=1000)
KNOWN = Rates(copy=1000.0, zero_copy=1000.0, decode_s=1.0, prefill_s=20.0)


def mix(space: Space = SPACE, rates: Rates = KNOWN, mode: str = "auto", *, prefill: bool = False) -> tuple[int, ...]:
    chosen = choose(space, rates, mode, prefill=prefill)
    assert chosen is not None
    return chosen.hot, chosen.staged, chosen.zero_copy


def test_all_is_hot_where_it_fits() -> None:
    assert mix(replace(SPACE, pages=50)) == (50, 0, 0)
    assert mix(replace(SPACE, pages=51)) == (49, 2, 0)


def test_copies_that_are_hidden_behind_a_step_cost_little() -> None:
    assert mix() == (37, 63, 0)  # 630 bytes at 1000 bytes/s, in a step of a second
    assert choose(SPACE, KNOWN, "auto").seconds == 1.0 + OVERLAP_LOSS * 0.63  # type: ignore[union-attr]


def test_where_copies_take_longer_than_the_step_direct_reading_needs_fewer_cold_pages() -> None:
    slow = replace(KNOWN, decode_s=0.0)
    assert mix(rates=slow) == (50, 0, 50)
    assert mix(rates=replace(slow, decode_reads=2.0)) == (37, 63, 0)
    assert mix(rates=slow, prefill=True) == (37, 63, 0)  # the kernel reads everything again and again


def test_wishes_and_what_cannot_be() -> None:
    assert mix(mode="staged") == (37, 63, 0)
    assert mix(mode="zero-copy") == (50, 0, 50)
    assert mix(rates=Rates()) == (37, 63, 0)
    assert mix(replace(SPACE, stage_bytes=0), mode="staged") == (50, 0, 50)
    assert mix(replace(SPACE, stage_bytes=10), mode="staged") == (50, 0, 50)
    assert mix(replace(SPACE, can_zero_copy=False), mode="zero-copy") == (37, 63, 0)
    assert choose(replace(SPACE, can_zero_copy=False, stage_bytes=0), KNOWN, "auto") is None
    assert choose(replace(SPACE, most_cold=49), KNOWN, "auto") is None
    assert mix(replace(SPACE, most_cold=50)) == (50, 0, 50)
    assert mix(replace(SPACE, pages=260, least_hot=5)) == (30, 100, 130)  # a second of copies is hidden
    assert mix(replace(SPACE, pages=260, least_hot=5), mode="staged") == (
        5,
        225,
        30,
    )  # 450 bytes of stages and five pages


@pytest.mark.parametrize("wrong", [{"mode": "on"}, {"prefetch": "always"}, {"batch": 0}])
def test_settings_that_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SpillSettings(**wrong)  # type: ignore[arg-type]


@given(
    pages=st.integers(1, 12),
    least=st.integers(0, 4),
    device=st.integers(0, 60),
    stage=st.integers(0, 7),
    cold=st.integers(0, 12),
    direct=st.booleans(),
    mode=st.sampled_from(["auto", "staged", "zero-copy"]),
    rates=st.builds(Rates, copy=st.sampled_from([0.0, 3.0]), zero_copy=st.sampled_from([0.0, 3.0, 9.0]),
                    decode_s=st.sampled_from([0.0, 9.0])),
)  # fmt: skip
def test_no_other_mix_is_better(
    pages: int, least: int, device: int, stage: int, cold: int, direct: bool, mode: str, rates: Rates
) -> None:
    space = Space(
        pages=pages, least_hot=least, device_bytes=device, frame_bytes=6, stage_bytes=stage,
        most_cold=cold, can_zero_copy=direct,
    )  # fmt: skip
    possible = [
        (s, z)
        for s in range(pages + 1 if 0 < stage < 6 else 1)
        for z in range(pages + 1 - s if direct else 1)
        if s + z <= cold and pages - s - z >= least and (pages - s - z) * 6 + s * stage <= device
    ]
    chosen = choose(space, rates, mode)
    if chosen is None:
        assert not possible
        return
    assert (chosen.staged, chosen.zero_copy) in possible and chosen.hot == pages - chosen.cold

    def cost(staged: int, zero: int) -> float:
        copied = staged * 6 / rates.copy if rates.copy else 0.0
        both = max(rates.decode_s, copied) + OVERLAP_LOSS * min(rates.decode_s, copied)
        return both + (zero * 6 / rates.zero_copy if rates.zero_copy else 0.0)

    assert chosen.seconds == pytest.approx(cost(chosen.staged, chosen.zero_copy))
    if mode == "auto" and rates.copy and rates.zero_copy:
        assert chosen.seconds == pytest.approx(min(cost(s, z) for s, z in possible))
    elif mode == "zero-copy":
        assert chosen.staged == min(s for s, _ in possible)
    else:
        assert chosen.zero_copy == min(z for _, z in possible)
