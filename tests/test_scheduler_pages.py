"""Many requests over few pages: who is admitted, pauses or branches off, and that everybody gets the right answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedrun.engine import Cancel
from pagedrun.kv.ids import ConversationId
from pagedrun.request import FinishReason, RequestId
from pagedrun.scheduling import Sequence
from pagedrun.scheduling.pausing import PATIENCE, PAUSES
from pagedrun.step import RunnerLimits, Slot
from tests.paged_fakes import PagedEngine, end, expected, reason, text

SYSTEM = "you are a helpful cook, and short of words: "  # 44 tokens: seven pages and a bit
STORY = "it was a dark and stormy night, and"
BOTH = pytest.mark.parametrize("can_rewind", [True, False])


def sequences(paged: PagedEngine) -> dict[int, Sequence]:
    return {int(s.id): s for s in paged.scheduler.running.values()}


def admissions(paged: PagedEngine) -> list[int]:
    """Numbers of requests in the order in which they get slots, from now on."""
    order: list[int] = []
    admit = paged.scheduler.admit

    def noted() -> Sequence | None:
        sequence = admit()
        if sequence is not None:
            order.append(int(sequence.id))
        return sequence

    paged.scheduler.admit = noted  # type: ignore[method-assign]
    return order


@BOTH
def test_what_begins_alike_is_computed_and_stored_once(can_rewind: bool) -> None:
    paged = PagedEngine(device=60, host=60, can_rewind=can_rewind)
    events = [paged.submit(SYSTEM + end_of, 4) for end_of in ("eggs", "rice", "beans", "soup")]
    paged.turn()
    assert len(paged.scheduler.running) == 1 and len(paged.scheduler.waiting) == 3
    paged.finish()
    assert [text(e) for e in events] == [expected(SYSTEM + e, 4) for e in ("eggs", "rice", "beans", "soup")]
    assert [end(e).usage.cached_tokens for e in events] == [0, 44, 44, 44]
    assert paged.runner.computed == len(SYSTEM) + len("eggsricebeanssoup") + 4 * 3
    assert paged.manager.stats().shared_pages == 7


@BOTH
def test_the_same_prompt_twice_at_the_same_moment(can_rewind: bool) -> None:
    paged = PagedEngine(device=60, host=60, can_rewind=can_rewind)
    events = [paged.submit(SYSTEM, 4) for _ in range(2)]
    paged.finish()
    assert [text(e) for e in events] == [expected(SYSTEM, 4)] * 2
    assert [end(e).usage.cached_tokens for e in events] == [0, 43]


def test_who_comes_later_branches_off_from_what_is_computed() -> None:
    paged = PagedEngine(device=60)
    first = paged.submit(SYSTEM + "eggs", 12)
    paged.turn(6)
    second = paged.submit(SYSTEM + "rice", 4)
    paged.finish()
    assert end(second).usage.cached_tokens == 44
    assert (text(first), text(second)) == (expected(SYSTEM + "eggs", 12), expected(SYSTEM + "rice", 4))


def test_a_model_that_cannot_go_back_branches_off_where_a_snapshot_is() -> None:
    paged = PagedEngine(device=60, host=60, can_rewind=False)
    paged.submit(SYSTEM + "eggs", 12)
    paged.turn(9)
    second = paged.submit(SYSTEM[:30] + "rice", 4)
    paged.finish()
    assert end(second).usage.cached_tokens == 24  # snapshots are 8 tokens apart
    assert text(second) == expected(SYSTEM[:30] + "rice", 4)


def test_without_room_for_a_snapshot_nobody_waits_for_one() -> None:
    paged = PagedEngine(device=60, host=0, can_rewind=False)
    for end_of in ("eggs", "rice"):
        paged.submit(SYSTEM + end_of, 4)
    paged.turn()
    assert len(paged.scheduler.running) == 2


def test_a_short_beginning_in_common_is_not_waited_for() -> None:
    paged = PagedEngine(device=60)
    for end_of in ("eggs", "rice"):
        paged.submit("cook: " + end_of * 8, 4)  # no more than a page
    paged.turn()
    assert len(paged.scheduler.running) == 2


@pytest.mark.parametrize("at", range(4))
@BOTH
def test_a_leader_that_is_cancelled_leaves_what_it_read(at: int, can_rewind: bool) -> None:
    paged = PagedEngine(device=60, host=60, can_rewind=can_rewind)
    events = [paged.submit(SYSTEM + end_of, 4) for end_of in ("eggs", "rice", "beans")]
    paged.turn(at)
    paged.engine._carry_out(Cancel(RequestId(0)))
    paged.finish()
    assert [text(e) for e in events[1:]] == [expected(SYSTEM + e, 4) for e in ("rice", "beans")]
    assert paged.runner.computed < 2 * len(SYSTEM) + 30


def test_others_go_first_while_somebody_waits_for_what_is_read() -> None:
    """As many as there are slots."""
    paged = PagedEngine(device=200, limits=RunnerLimits(4, 60, 4))
    paged.submit(SYSTEM + "eggs", 4)
    follower = paged.submit(SYSTEM + "rice", 4)
    for n in range(9):
        paged.submit(f"{n}", 1)
    order = admissions(paged)
    paged.turn(20)
    assert order.index(1) == 5
    paged.finish()
    assert end(follower).usage.cached_tokens > 0


def test_a_prompt_that_has_no_room_now_is_not_begun() -> None:
    """Else it would only make others pause, and be computed in vain."""
    paged = PagedEngine(device=9, host=20)
    paged.submit("a" * 40, 10)
    second = paged.submit("b" * 24, 4)
    paged.turn(4)
    assert len(paged.scheduler.running) == 1
    paged.finish()
    assert text(second) == expected("b" * 24, 4) and not paged.manager.stats().dirty_victims > 9


def lookups(paged: PagedEngine) -> list[int]:
    """The length of each prompt that is looked for among those that rest, from now on."""
    lengths: list[int] = []
    find = paged.slots.resting.index.alike

    def noted(tokens: list[int]) -> Iterator[tuple[ConversationId, int]]:
        lengths.append(len(tokens))
        return find(tokens)

    paged.slots.resting.index.alike = noted  # type: ignore[method-assign, assignment]
    return lengths


@BOTH
def test_a_prompt_is_looked_for_once(can_rewind: bool) -> None:
    paged = PagedEngine(device=60, host=60, can_rewind=can_rewind)
    told = STORY + paged.ask(STORY, 4)
    found = lookups(paged)
    events = paged.submit(told + "!", 4)
    paged.turn()
    assert found == [len(told) + 1]
    paged.finish()
    assert end(events).usage.cached_tokens >= len(told) - 2


def test_who_found_no_room_is_not_looked_for_at_every_step() -> None:
    paged = PagedEngine(device=9, host=20)
    paged.submit("a" * 30, 24)
    paged.turn(3)
    found = lookups(paged)
    second = paged.submit("b" * 24, 4)
    third = paged.submit("c" * 24, 4)
    paged.turn(15)
    assert len(found) == 3  # one for its turn, and the pages of two are looked for ahead
    paged.finish()
    assert (text(second), text(third)) == (expected("b" * 24, 4), expected("c" * 24, 4))


def test_the_cheapest_pauses_and_the_first_does_not() -> None:
    """The second has five pages for itself and little left, the third two and much left; they came in this order."""
    paged = PagedEngine(device=14, host=40)
    for prompt, n in (("a" * 17, 40), ("b" * 29, 4), ("c" * 6, 40)):
        paged.submit(prompt, n)
    while not paged.scheduler.paused:
        paged.turn()
    assert {int(s.id) for slot, s in paged.scheduler.running.items() if slot in paged.scheduler.paused} == {2}
    paged.finish()
    assert [text(e) for e in paged.events] == [expected("a" * 17, 40), expected("b" * 29, 4), expected("c" * 6, 40)]


def test_a_lower_priority_pauses_before_a_cheaper_one() -> None:
    paged = PagedEngine(device=12, host=40)
    paged.submit("a" * 17, 40)
    paged.submit("b" * 24, 30, priority=1)
    paged.turn(3)
    paged.submit("c" * 6, 40)
    while not paged.scheduler.paused:
        paged.turn()
    assert {int(s.id) for slot, s in paged.scheduler.running.items() if slot in paged.scheduler.paused} == {1}
    paged.finish()
    assert [text(e) for e in paged.events] == [expected("a" * 17, 40), expected("b" * 24, 30), expected("c" * 6, 40)]


def test_priorities_are_served_first() -> None:
    paged = PagedEngine(device=60, limits=RunnerLimits(1, 60, 16))
    done: list[int] = []
    for number, priority in enumerate((0, 2, 1, 0, -1)):
        paged.submit(f"{number} " * 3, 2, priority=priority)
    while not paged.scheduler.idle:
        paged.turn()
        done += [n for n, e in enumerate(paged.events) if n not in done and e and hasattr(e[-1], "reason")]
    assert done == [4, 0, 3, 2, 1]


def test_a_long_prompt_of_low_priority_gets_on_beside_a_stream_of_short_ones() -> None:
    paged = PagedEngine(device=60, limits=RunnerLimits(2, 60, 8))
    low = paged.submit("z" * 40, 1, priority=9)
    n = 0
    while not low:
        paged.submit(f"{n:03}" * 9, 1, priority=0)
        paged.turn()
        n += 1
        assert n < 40
    assert text(low) == expected("z" * 40, 1)


def test_pages_of_who_waits_come_before_its_turn() -> None:
    from pagedrun.kv import SpillSettings

    spill = SpillSettings(mode="auto", prefetch="associative", batch=1, per_step=4)
    paged = PagedEngine(device=16, host=40, limits=RunnerLimits(1, 60, 16), spill=spill)
    told = "s" * 30 + paged.ask("s" * 30, 4)
    for letter in "xyz":
        paged.ask(letter * 40, 4)
    conversation = next(c for c in paged.slots.resting.index if paged.slots.resting.index.tokens(c)[0] == ord("s"))
    assert not paged.manager.residency.device.obtainable > 4
    there = paged.manager.table.device
    assert (there[paged.manager.pages(conversation)] < 0).any()
    paged.submit("r" * 10, 12)
    again = paged.submit(told + "!", 4)
    while len(paged.events[-2]) < 6:
        paged.turn()
    assert (there[paged.manager.pages(conversation)] >= 0).all() and not again
    paged.finish()
    assert text(again) == expected(told + "!", 4)
    prefetch = paged.manager.stats().prefetch
    assert prefetch.hits and not prefetch.late


class Crowd(RuleBasedStateMachine):
    """Arrivals, cancellations and steps in any order over any memory: everybody finishes, and nobody waits too long."""

    @initialize(
        device=st.integers(10, 24), host=st.integers(0, 40), can_rewind=st.booleans(), n_seqs=st.integers(1, 4),
        batch=st.integers(4, 16),
    )  # fmt: skip
    def begin(self, device: int, host: int, can_rewind: bool, n_seqs: int, batch: int) -> None:
        limits = RunnerLimits(n_seqs, 60, batch)
        self.n_seqs = n_seqs
        self.paged = PagedEngine(device=device, host=host, can_rewind=can_rewind, limits=limits)
        self.asked: list[tuple[str, int, int]] = []
        self.sequences: list[Sequence] = []
        self.admitted = admissions(self.paged)

    @rule(
        beginning=st.sampled_from(["", "it", SYSTEM[:20], SYSTEM[:33], SYSTEM[:38]]),
        rest=st.text("ab", min_size=1, max_size=9), n=st.integers(1, 7),
        priority=st.sampled_from([0, 0, 0, 1, -1]), times=st.integers(1, 3),
    )  # fmt: skip
    def arrive(self, beginning: str, rest: str, n: int, priority: int, times: int) -> None:
        for _ in range(times):
            self.asked.append((beginning + rest, n, priority))
            self.paged.submit(*self.asked[-1])
            self.sequences.append(self.paged.engine._answers[RequestId(len(self.asked) - 1)].sequence)

    @precondition(lambda self: len(self.asked) < 12)
    @rule(letters=st.text("cde", min_size=2, max_size=3), n=st.integers(20, 40), priority=st.sampled_from([0, 0, 1]))
    def long_answers(self, letters: str, n: int, priority: int) -> None:
        """Which outgrow memory together."""
        for letter in letters:
            self.arrive(letter, letter * 6, n, priority, 1)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def follow_up(self, data: st.DataObject) -> None:
        prompt, n, priority = data.draw(st.sampled_from(self.asked))
        self.arrive((prompt + expected(prompt, n))[:46], "?", min(n, 7), priority, 1)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.asked) - 1))
        self.paged.engine._carry_out(Cancel(RequestId(number)))

    @rule(n=st.integers(1, 12))
    def steps(self, n: int) -> None:
        for _ in range(n):
            if not self.paged.scheduler.idle:
                self.paged.turn()

    @invariant()
    def nobody_pauses_again_and_again(self) -> None:
        for s in getattr(self, "sequences", ()):
            assert s.pauses <= PAUSES + self.n_seqs
            assert s.overtaken <= self.n_seqs * (PATIENCE + 1)

    @invariant()
    def nobody_is_overtaken_by_more_equals_than_there_are_slots(self) -> None:
        place = {number: at for at, number in enumerate(getattr(self, "admitted", ()))}
        for number, at in place.items():
            priority = self.asked[number][2]
            later = [n for n, p in place.items() if n > number and p < at and self.asked[n][2] == priority]
            assert len(later) <= self.n_seqs

    def teardown(self) -> None:
        if not hasattr(self, "paged"):
            return
        self.paged.finish()
        for events, (prompt, n, _) in zip(self.paged.events, self.asked, strict=True):
            if reason(events) is FinishReason.CANCELLED:
                assert expected(prompt, n).startswith(text(events))
            else:
                room = self.paged.slots.max_tokens - len(prompt)
                assert reason(events) is (FinishReason.LENGTH if n <= room else FinishReason.CONTEXT)
                assert text(events) == expected(prompt, min(n, room))
        self.nobody_pauses_again_and_again()
        self.nobody_is_overtaken_by_more_equals_than_there_are_slots()
        assert not self.paged.scheduler._following._leaders
        self.paged.forget_all()
        assert self.paged.used() == (0, 0)
        assert Slot(0) in self.paged.scheduler._free


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("seed", range(16))
def test_answers_that_outgrow_memory_together(seed: int) -> None:
    """Every one of them has room alone: nobody pauses again and again, and nothing is computed twice."""
    rng = random.Random(seed)
    n_seqs, host = rng.randint(2, 4), rng.choice([0, 8, 60])
    limits = RunnerLimits(n_seqs, 60, 16)
    paged = PagedEngine(device=rng.randint(9, 14), host=host, can_rewind=bool(seed % 2), limits=limits)
    asked, asking = [], []
    for number in range(14):
        asked.append((chr(97 + number) * rng.randint(1, 12), rng.randint(5, 42), rng.choice([0, 0, 0, 1])))
        paged.submit(*asked[-1])
        asking.append(paged.engine._answers[RequestId(number)].sequence)
        for _ in range(rng.randint(0, 6)):
            if not paged.scheduler.idle:
                paged.turn()
    paged.finish()
    assert [text(e) for e in paged.events] == [expected(prompt, n) for prompt, n, _ in asked]
    assert max(s.pauses for s in asking) <= PAUSES + n_seqs
    if host == 60:
        assert paged.runner.computed == sum(len(prompt) + n - 1 for prompt, n, _ in asked)
