"""The engine with a spill file: what rests goes to the disk and is not forgotten, and nobody gets a wrong answer."""

from __future__ import annotations

import random

import pytest

from pagedrun.kv import SpillSettings
from pagedrun.request import FinishReason
from tests.paged_fakes import PagedEngine, end, expected, reason, text

AHEAD = SpillSettings(prefetch="hybrid", batch=1, per_step=1)
BOTH = pytest.mark.parametrize("can_rewind", [True, False])


def four_conversations(**kind: object) -> tuple[PagedEngine, list[str]]:
    """Four of them, one after the other, in slots of their own; only one and a half fit the device and the host."""
    paged = PagedEngine(device=6, host=2, disk=40, **kind)  # type: ignore[arg-type]
    told = [letter * 24 for letter in "abcd"]
    return paged, [prompt + paged.ask(prompt, 6) for prompt in told]


def on_disk(paged: PagedEngine) -> list[int]:
    """Pages of each conversation that are nowhere else."""
    return [paged.manager.on_disk(c) for c in paged.manager.conversations]


def test_what_rests_is_kept_on_disk() -> None:
    paged, told = four_conversations()
    assert on_disk(paged)[0] == 5
    for conversation in told:
        events = paged.submit(conversation + "!", 4)
        paged.finish()
        assert text(events) == expected(conversation + "!", 4)
        assert end(events).usage.cached_tokens == 29
    assert paged.manager.stats().disk.read >= 5


def test_without_a_disk_the_same_is_computed_again() -> None:
    paged = PagedEngine(device=6, host=2)
    told = "a" * 24 + paged.ask("a" * 24, 6)
    for letter in "bcd":
        paged.ask(letter * 24, 6)
    events = paged.submit(told + "!", 4)
    paged.finish()
    assert end(events).usage.cached_tokens == 0


@BOTH
@pytest.mark.parametrize("at", [1, 3, 5])
def test_what_the_disk_has_lost_is_computed_again(at: int, can_rewind: bool) -> None:
    paged, told = four_conversations(can_rewind=can_rewind)
    paged.file.fail_reads = {paged.file.n_reads + at}
    events = paged.submit(told[0] + "!", 4)
    paged.finish()
    assert text(events) == expected(told[0] + "!", 4)
    cached = end(events).usage.cached_tokens
    assert cached == 6 * (at - 1) if can_rewind else cached in range(0, 6 * (at - 1) + 1)
    assert paged.manager.stats().disk.lost == 1


@BOTH
@pytest.mark.parametrize("at", range(1, 5))
def test_a_paused_request_loses_pages(at: int, can_rewind: bool) -> None:
    """Two that do not fit together: the pages of the younger one go to the disk while it waits."""
    paged = PagedEngine(device=9, host=1, disk=40, can_rewind=can_rewind)
    answers = [paged.submit(letter * 24, 16) for letter in "ab"]
    while not (paged.scheduler.paused and max(on_disk(paged)) > 1):
        paged.turn()
    paged.file.fail_reads = {paged.file.n_reads + at}
    paged.finish()
    assert [text(a) for a in answers] == [expected(letter * 24, 16) for letter in "ab"]
    assert paged.manager.stats().disk.lost or at > 2


def test_pages_come_from_the_disk_while_others_compute() -> None:
    paged = PagedEngine(device=8, host=3, disk=40, spill=AHEAD)
    told = "a" * 24 + paged.ask("a" * 24, 6)
    for letter in "bc":
        paged.ask(letter * 24, 6)
    assert on_disk(paged)[0] > 1
    other = paged.submit("e" * 6, 12)
    paged.turn(2)
    events = paged.submit(told + "!", 4)
    left = [on_disk(paged)[0]]
    while left[-1]:
        computed = paged.runner.computed
        paged.turn()
        assert paged.runner.computed > computed, "the other one goes on"
        left.append(on_disk(paged)[0])
    assert len(left) > 2 and left == sorted(left, reverse=True)
    paged.finish()
    assert text(events) == expected(told + "!", 4) and text(other) == expected("e" * 6, 12)
    assert end(events).usage.cached_tokens == 29


def test_the_rest_of_a_conversation_follows_into_free_frames() -> None:
    paged = PagedEngine(device=9, host=20, spill=AHEAD)
    told = "a" * 24 + paged.ask("a" * 24, 6)
    paged.ask("b" * 24, 6)
    a, b = paged.slots.resting.index
    assert 0 < (paged.manager.table.device[paged.manager.pages(a)] >= 0).sum() < 5
    paged.slots.resting.index.touch(a)
    assert paged.slots.forget_one(all_of_it=True) and b not in paged.manager.conversations
    paged.ask("c" * 3, 6)
    assert (paged.manager.table.device[paged.manager.pages(a)] >= 0).all()
    events = paged.submit(told + "!", 4)
    paged.finish()
    assert text(events) == expected(told + "!", 4)
    assert paged.manager.stats().prefetch.hits


@pytest.mark.parametrize("seed", range(24))
def test_many_requests(seed: int) -> None:
    rng = random.Random(seed)
    paged = PagedEngine(
        device=rng.randint(9, 14), host=rng.choice([0, 2, 6]), disk=rng.choice([6, 60]), can_rewind=bool(seed % 2),
        seed=seed, spill=SpillSettings(mode=rng.choice(["off", "auto"]), prefetch=rng.choice(["off", "hybrid"])),
    )  # fmt: skip
    asked: list[tuple[str, int]] = []
    for _ in range(60):
        if rng.random() < 0.2 and seed % 3:
            paged.file.fail_reads.add(paged.file.n_reads + rng.randint(1, 9))
        if rng.random() < 0.6:
            prompt = (rng.choice(["the ", "a story about "]) + "x" * rng.randrange(30))[: rng.randint(1, 45)]
            if asked and rng.random() < 0.6:
                before, n = rng.choice(asked)
                prompt = (before + expected(before, n) + "?")[:45]
            asked.append((prompt, rng.randint(1, 9)))
            paged.submit(*asked[-1])
        for _ in range(rng.randrange(8)):
            if not paged.scheduler.idle:
                paged.turn()
    paged.finish()
    for events, (prompt, n) in zip(paged.events, asked, strict=True):
        assert reason(events) is FinishReason.LENGTH
        assert text(events) == expected(prompt, n)
