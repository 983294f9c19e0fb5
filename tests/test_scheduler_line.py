"""The waiting line: its order, how long anybody is overtaken, and what ten thousand in it cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from pagedrun.kv import SpillSettings
from pagedrun.request import GenerationRequest, RequestId
from pagedrun.scheduling import Scheduler, Sequence
from pagedrun.scheduling.line import Line
from pagedrun.slots import PlainSlots
from pagedrun.step import RunnerLimits
from tests.fakes import FakeRunner
from tests.paged_fakes import PagedEngine


def sequence(number: int, priority: int = 0) -> Sequence:
    return Sequence(RequestId(number), GenerationRequest(prompt=(number % 250, 1, 2), priority=priority))


def line(*priorities: int, window: int = 3, patience: int = 100) -> Line:
    waiting = Line(window=window, patience=patience)
    for number, priority in enumerate(priorities):
        waiting.add(sequence(number, priority))
    return waiting


def drained(waiting: Line) -> list[int]:
    order = []
    while waiting:
        first = waiting.front()[0]
        waiting.take(first)
        order.append(int(first.id))
    return order


def test_by_priority_and_then_as_they_came() -> None:
    assert drained(line(0, 5, 0, -1, 5, 0)) == [3, 0, 2, 5, 1, 4]


def test_who_has_waited_longest_is_overtaken_as_often_as_is_said() -> None:
    waiting = line(9, *[0] * 10, patience=4)
    assert drained(waiting) == [1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 10]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "take", "cancel"]), st.integers(0, 3), st.integers(0, 99)), max_size=80),
    st.integers(1, 4),
)
def test_the_line_is_a_sorted_list(steps: list[tuple[str, int, int]], window: int) -> None:
    """With patience without end."""
    waiting, model = line(window=window, patience=10**9), []
    for number, (what, priority, which) in enumerate(steps):
        if what == "add":
            model.append(sequence(number, priority))
            waiting.add(model[-1])
        elif model:
            model.sort(key=lambda s: s.place)
            gone = model.pop(0 if what == "take" else which % len(model))
            (waiting.take if what == "take" else waiting.remove)(gone)
        model.sort(key=lambda s: s.place)
        assert list(waiting) == model and len(waiting) == len(model)
        assert waiting.front() == model[:window]
        assert waiting.longest == min(model, key=lambda s: s.turn, default=None)


@given(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=60), st.integers(1, 5))
def test_nobody_starves(arrivals: list[list[int]], patience: int) -> None:
    """One is taken a turn, others arrive: who waits longest gets its turn within `patience` others."""
    waiting, number, since = line(patience=patience), 0, 0
    for priorities in arrivals:
        for priority in priorities:
            waiting.add(sequence(number, priority))
            number += 1
        if not waiting:
            continue
        longest = waiting.longest
        waiting.take(waiting.front()[0])
        since = since + 1 if waiting.longest is longest else 0
        assert since <= patience


def test_what_was_cancelled_is_not_kept() -> None:
    waiting = line()
    many = [sequence(n) for n in range(1000)]
    for s in many:
        waiting.add(s)
    for s in many[5:]:
        waiting.remove(s)
    assert len(waiting._heap) + len(waiting._arrived) < 300
    assert drained(waiting) == [0, 1, 2, 3, 4]


def calls(do: Callable[[], Any]) -> int:
    """How many functions are called, those of C included."""
    n = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return n


def turn_of(n_waiting: int) -> int:
    """What a step costs while so many wait, and adding one more, and cancelling one."""
    runner = FakeRunner(RunnerLimits(2, 100, 16))
    scheduler = Scheduler(runner, PlainSlots(runner), prefill_chunk=8)
    waiting = [sequence(n, n % 3) for n in range(n_waiting)]
    for s in waiting:
        scheduler.add(s)
    while scheduler.admit():
        pass

    def turn() -> None:
        scheduler.add(sequence(n_waiting, 1))
        scheduler.admit()
        plan = scheduler.plan()
        assert plan is not None
        scheduler.commit(plan)
        scheduler.finish(waiting[n_waiting // 2])
        for s in list(scheduler.running.values()):
            scheduler.finish(s)
        scheduler.admit()

    return calls(turn)


def test_ten_thousand_that_wait_cost_a_step_no_more_than_a_hundred() -> None:
    assert turn_of(10_000) < 1.3 * turn_of(100)


def test_who_only_waits_has_no_copy_of_its_prompt() -> None:
    runner = FakeRunner(RunnerLimits(2, 100, 16))
    scheduler = Scheduler(runner, PlainSlots(runner), prefill_chunk=8)
    waiting = [sequence(n) for n in range(50)]
    for s in waiting:
        scheduler.add(s)
    scheduler.admit()
    scheduler.plan()
    assert sum(s._tokens is not None for s in waiting) <= 4


def crowd_at_rest(n_resting: int) -> PagedEngine:
    paged = PagedEngine(device=4000, spill=SpillSettings(mode="auto", prefetch="hybrid"))
    object.__setattr__(paged.slots._settings, "check", lambda: None)
    for n in range(n_resting):
        paged.submit(f"{n} is a number", 1)
    while not paged.scheduler.idle:
        paged.engine.step()
    assert len(paged.slots.resting.index) == n_resting
    return paged


def test_four_hundred_that_rest_cost_a_step_no_more_than_twenty() -> None:
    def steps_beside(n_resting: int) -> int:
        paged = crowd_at_rest(n_resting)
        paged.submit("a story of two words", 50)
        return calls(lambda: [paged.engine.step() for _ in range(5)])

    assert steps_beside(400) < 1.2 * steps_beside(20)


def test_whose_rest_is_to_come_back_is_looked_for_among_the_last_only() -> None:
    def looking_among(n_resting: int) -> int:
        manager = crowd_at_rest(n_resting).manager
        manager.residency.behind = True
        return calls(manager.follow)

    assert looking_among(400) == looking_among(20) > 20
