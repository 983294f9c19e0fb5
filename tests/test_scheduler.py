"""What is computed when: exact plans, slots, cached tokens, and a state machine over all of it."""

from __future__ import annotations

from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedrun.errors import GrammarError
from pagedrun.request import GenerationRequest, RequestId
from pagedrun.scheduling import Scheduler, Sequence
from pagedrun.slots import PlainSlots
from pagedrun.slots.plain import common_prefix
from pagedrun.step import RunnerLimits, Slot, StepPlan
from tests.fakes import FakeRunner


def make(
    slots: int = 2, length: int = 100, batch: int = 16, chunk: int = 8, **kind: bool
) -> tuple[Scheduler, FakeRunner]:
    runner = FakeRunner(RunnerLimits(slots, length, batch), **kind)
    return Scheduler(runner, PlainSlots(runner), prefill_chunk=chunk), runner


def sequence(number: int, prompt: list[int]) -> Sequence:
    return Sequence(RequestId(number), GenerationRequest(prompt=tuple(prompt)))


def step(scheduler: Scheduler, runner: FakeRunner, token: int = 7) -> StepPlan:
    """Admit, plan, run, commit; every sequence that samples gets `token`."""
    while scheduler.admit():
        pass
    plan = scheduler.plan()
    assert plan is not None
    runner.run(plan)
    scheduler.commit(plan)
    for chunk in plan.chunks:
        if chunk.sample:
            scheduler.running[chunk.slot].tokens.append(token)
    return plan


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(c.slot, c.start, len(c.tokens), c.sample) for c in plan.chunks]


def test_a_long_prompt_is_read_in_steps_and_sampled_at_its_end() -> None:
    scheduler, runner = make(batch=16)
    scheduler.add(sequence(0, list(range(40))))
    assert [shape(step(scheduler, runner)) for _ in range(4)] == [
        [(0, 0, 16, False)],
        [(0, 16, 16, False)],
        [(0, 32, 8, True)],
        [(0, 40, 1, True)],
    ]


def test_a_running_answer_gets_a_token_every_step_while_a_prompt_is_read_in_chunks() -> None:
    scheduler, runner = make(batch=16, chunk=8)
    scheduler.add(sequence(0, [1, 2, 3]))
    step(scheduler, runner)
    scheduler.add(sequence(1, list(range(20))))
    plans = [shape(step(scheduler, runner)) for _ in range(4)]
    assert plans == [
        [(0, 3, 1, True), (1, 0, 8, False)],
        [(0, 4, 1, True), (1, 8, 8, False)],
        [(0, 5, 1, True), (1, 16, 4, True)],
        [(0, 6, 1, True), (1, 20, 1, True)],
    ]


def test_prompts_share_a_step_oldest_first() -> None:
    scheduler, runner = make(batch=16)
    scheduler.add(sequence(0, list(range(10))))
    scheduler.add(sequence(1, list(range(50, 70))))
    assert shape(step(scheduler, runner)) == [(0, 0, 10, True), (1, 0, 6, False)]


def test_who_comes_when_all_slots_are_taken_waits() -> None:
    scheduler, runner = make(slots=1)
    first, second = sequence(0, [1, 2]), sequence(1, [3])
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler, runner)
    assert list(scheduler.waiting) == [second]
    scheduler.finish(first)
    assert shape(step(scheduler, runner)) == [(0, 0, 1, True)]


def test_a_follow_up_continues_from_what_its_slot_holds() -> None:
    scheduler, runner = make()
    first = sequence(0, [1, 2, 3])
    scheduler.add(first)
    step(scheduler, runner, token=9)
    step(scheduler, runner, token=8)
    scheduler.finish(first)  # computed 1 2 3 9; 8 was sampled but never computed
    follow_up = sequence(1, [1, 2, 3, 9, 8, 4])
    scheduler.add(follow_up)
    assert shape(step(scheduler, runner)) == [(0, 4, 2, True)]
    assert follow_up.cached == 4


def test_the_last_prompt_token_is_computed_even_when_all_is_cached() -> None:
    scheduler, runner = make()
    for number in range(2):
        again = sequence(number, [1, 2, 3])
        scheduler.add(again)
        plan = step(scheduler, runner)
        scheduler.finish(again)
    assert shape(plan) == [(0, 2, 1, True)]


def test_a_model_that_cannot_rewind_keeps_only_an_exact_beginning() -> None:
    scheduler, runner = make(slots=1, can_rewind=False)
    first = sequence(0, [1, 2, 3])
    scheduler.add(first)
    step(scheduler, runner, token=9)
    scheduler.finish(first)
    exact = sequence(1, [1, 2, 3, 9])
    scheduler.add(exact)
    assert shape(step(scheduler, runner, token=9)) == [(0, 3, 1, True)]
    scheduler.finish(exact)
    edited = sequence(2, [1, 2, 5])
    scheduler.add(edited)
    assert shape(step(scheduler, runner)) == [(0, 0, 3, True)]


def test_a_new_conversation_takes_the_slot_unused_for_longest() -> None:
    scheduler, runner = make(slots=2)
    a, b = sequence(0, [1, 1]), sequence(1, [2, 2])
    scheduler.add(a)
    scheduler.add(b)
    step(scheduler, runner)
    scheduler.finish(b)
    scheduler.finish(a)
    scheduler.add(sequence(2, [3, 3]))
    step(scheduler, runner)
    assert list(scheduler.running) == [Slot(1)]


def test_a_request_the_runner_refuses_takes_no_slot() -> None:
    scheduler, runner = make(slots=1)
    runner.fail_open = GrammarError("bad grammar")
    scheduler.add(sequence(0, [1]))
    with pytest.raises(GrammarError):
        scheduler.admit()
    assert scheduler.idle
    scheduler.add(sequence(1, [1]))
    assert shape(step(scheduler, runner)) == [(0, 0, 1, True)]


def test_a_failed_sequence_leaves_nothing_in_its_slot() -> None:
    scheduler, runner = make()
    failed = sequence(0, [1, 2, 3])
    scheduler.add(failed)
    step(scheduler, runner)
    scheduler.finish(failed, keep=False)
    assert runner.kv[Slot(0)] == []


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 1000, 4999])
def test_common_prefix_finds_the_first_difference(at: int) -> None:
    a = list(range(5000))
    b = [*a[:at], -1, *a[at + 1 :]]
    assert common_prefix(a, b) == at
    assert common_prefix(a, a[:at]) == at
    assert common_prefix(a, a) == 5000


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, steps, ends and failures, against what the fake KV cache really holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler, self.runner = make(slots=3, length=60, batch=12, chunk=5)
        self.slots = cast(PlainSlots, self.scheduler._slots)
        self.live: list[Sequence] = []
        self.number = 0
        self.waited: dict[int, int] = {}

    @rule(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30))
    def arrive(self, prompt: list[int]) -> None:
        self.live.append(sequence(self.number, prompt))
        self.scheduler.add(self.live[-1])
        self.number += 1

    @precondition(lambda self: self.live)
    @rule(token=st.integers(0, 2))
    def one_step(self, token: int) -> None:
        step(self.scheduler, self.runner, token)
        for done in [s for s in self.live if len(s.tokens) > 60]:
            self.scheduler.finish(done)
            self.live.remove(done)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        ended = data.draw(st.sampled_from(self.live))
        self.live.remove(ended)
        self.scheduler.finish(ended, keep=keep)

    @invariant()
    def slots_are_free_or_taken(self) -> None:
        taken, free = set(self.scheduler.running), set(self.scheduler._free)
        assert taken | free == {0, 1, 2}
        assert not taken & free
        assert set(self.runner.requests) == taken

    @invariant()
    def the_books_agree_with_the_cache(self) -> None:
        for slot, running in self.scheduler.running.items():
            assert self.runner.kv[slot] == running.tokens[: running.computed]
            assert running.slot == slot
            assert running.uncomputed >= 1
        for slot in self.scheduler._free:
            assert self.runner.kv[slot] == self.slots._resting.get(slot, [])


TestSchedulerMachine = SchedulerMachine.TestCase
