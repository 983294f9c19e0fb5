"""The engine over paged slots where conversations do not fit the device: the same answers, and pages on the host."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pagedrun.errors import EngineError
from pagedrun.kv import Rates, SpillSettings
from pagedrun.request import FinishReason
from tests.paged_fakes import GEOMETRY, STAGED, PagedEngine, end, expected, reason, text

SPILL = SpillSettings(mode="auto", prefetch="hybrid", batch=2, per_step=2, step_tokens=16)
BOTH = pytest.mark.parametrize("geometry", [STAGED, GEOMETRY, replace(STAGED, zero_copy=True)])
LONG = "it was a dark and stormy night, and the rain fell"  # 49 tokens: nine pages


@BOTH
def test_a_conversation_longer_than_the_device(geometry) -> None:  # type: ignore[no-untyped-def]
    paged = PagedEngine(device=6, host=10, spill=SPILL, geometry=geometry)
    assert paged.ask(LONG, 10) == expected(LONG, 10)
    stats = paged.manager.stats()
    assert stats.spill.spilled >= 4
    assert stats.device.used <= 6


def test_cold_pages_lie_as_suits_prompts_and_answers() -> None:
    """Copies are slow here, and direct reading is fast for a token and slow for many."""
    rates = Rates(copy=1e3, zero_copy=1e5, decode_s=0.01, prefill_s=10.0)
    paged = PagedEngine(device=6, host=10, spill=replace(SPILL, rates=rates), geometry=replace(STAGED, zero_copy=True))
    paged.slots._settings = replace(paged.slots._settings, few=1)
    events = paged.submit(LONG, 10)
    seen = set()
    while paged.scheduler.running or paged.scheduler.waiting:
        paged.turn()
        spill = paged.manager.stats().spill
        seen.add((len(events) > 0, spill.staged > 0, spill.zero_copy > 0))
    assert text(events) == expected(LONG, 10)
    assert (False, True, False) in seen and (True, False, True) in seen
    assert not {s for s in seen if s[0] and s[1]}  # while a prompt was read some may have had no room for stages


@BOTH
def test_what_pauses_before_it_spills(geometry) -> None:  # type: ignore[no-untyped-def]
    """Two that do not fit together: the younger one pauses; nothing is read from the host while one alone fits."""
    paged = PagedEngine(device=9, host=12, spill=SPILL, geometry=geometry)
    answers = [paged.submit(letter * 18, 16) for letter in "ab"]
    while not paged.scheduler.paused:
        paged.turn()
    paged.finish()
    assert [text(a) for a in answers] == [expected(letter * 18, 16) for letter in "ab"]
    assert not paged.manager.stats().spill.spilled


@BOTH
def test_without_spilling_the_same_is_refused(geometry) -> None:  # type: ignore[no-untyped-def]
    paged = PagedEngine(device=6, host=10, geometry=geometry)
    events = paged.submit(LONG)
    paged.turn()
    assert reason(events) is FinishReason.ERROR


@BOTH
def test_a_follow_up_whose_pages_do_not_fit_any_more(geometry) -> None:  # type: ignore[no-untyped-def]
    """What rests on the host is bound as far as it fits, and nothing is computed again."""
    paged = PagedEngine(device=6, host=20, spill=SPILL, geometry=geometry)
    first = paged.ask(LONG, 4)
    paged.ask("something else entirely", 4)
    computed = paged.runner.computed
    events = paged.submit(LONG + first + "!", 4)
    paged.finish()
    assert text(events) == expected(LONG + first + "!", 4)
    assert end(events).usage.cached_tokens == 52
    assert paged.runner.computed == computed + 2 + 3


@BOTH
def test_cold_pages_come_back_when_others_leave(geometry) -> None:  # type: ignore[no-untyped-def]
    paged = PagedEngine(device=14, host=14, spill=SPILL, geometry=geometry)
    paged.manager.shrink(8 * geometry.frame_bytes)
    events = paged.submit(LONG[:36], 10)
    for _ in range(99):
        if paged.manager.stats().spill.cold:
            break
        paged.turn()
    assert paged.manager.grow(9 * geometry.frame_bytes) == 8 * geometry.frame_bytes
    paged.finish()
    assert text(events) == expected(LONG[:36], 10)
    assert paged.manager.stats().spill.recalled


@BOTH
def test_others_need_memory_for_a_while(geometry) -> None:  # type: ignore[no-untyped-def]
    wanted = [0, 0, 3 * geometry.frame_bytes, 0, 0, -geometry.frame_bytes, -9 * geometry.frame_bytes]
    paged = PagedEngine(
        device=10, host=14, spill=SPILL, geometry=geometry, watch=lambda: wanted.pop(0) if wanted else 0
    )
    events = paged.submit(LONG[:40], 16)
    before = paged.manager.residency.device.budget.limit
    paged.turn(6)
    assert paged.manager.residency.device.budget.limit < before
    paged.finish()
    assert text(events) == expected(LONG[:40], 16)
    assert paged.manager.residency.device.budget.limit == before


@BOTH
@pytest.mark.parametrize("at", range(1, 80, 3))
def test_a_store_that_fails(geometry, at: int) -> None:  # type: ignore[no-untyped-def]
    paged = PagedEngine(device=6, host=12, spill=SPILL, geometry=geometry)
    paged.store.fail_ops = {at}
    events = paged.submit(LONG, 8)
    paged.finish()
    error = end(events).error
    assert error is None or isinstance(error, EngineError)
    assert expected(LONG, 8).startswith(text(events)) and (error or text(events) == expected(LONG, 8))
    paged.store.fail_ops = {0}
    assert paged.ask("c" * 30) == expected("c" * 30)


@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_many_requests(geometry, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(seed)
    paged = PagedEngine(
        device=rng.randint(5, 9), host=rng.randint(12, 30), can_rewind=bool(seed % 2), seed=seed,
        spill=replace(SPILL, mode=rng.choice(["staged", "zero-copy", "auto"])), geometry=geometry,
    )  # fmt: skip
    asked: list[tuple[str, int]] = []
    for _ in range(40):
        if rng.random() < 0.6:
            prompt = (rng.choice(["the ", LONG]) + "x" * rng.randrange(12))[: rng.randint(1, 50)]
            if asked and rng.random() < 0.4:
                before, n = rng.choice(asked)
                prompt = (before + expected(before, n) + "?")[:50]
            asked.append((prompt, rng.randint(1, 9)))
            paged.submit(*asked[-1])
        for _ in range(rng.randrange(5)):
            if not paged.scheduler.idle:
                paged.turn()
    paged.finish()
    for events, (prompt, n) in zip(paged.events, asked, strict=True):
        if reason(events) is FinishReason.LENGTH:
            assert text(events) == expected(prompt, n)
        else:
            assert reason(events) in (FinishReason.CONTEXT, FinishReason.ERROR)
            assert len(prompt) + n > paged.slots.max_tokens, "it would have fitted"
