"""The engine over paged slots and few frames: every answer is what it is without pages, whatever had to move."""

from __future__ import annotations

import random

import pytest

from pagedrun.engine import Cancel, Shutdown
from pagedrun.errors import ContextLengthError, EngineError
from pagedrun.kv import BrokenInvariant, SpillSettings
from pagedrun.request import FinishReason, RequestId
from pagedrun.step import Slot
from tests.paged_fakes import PagedEngine, end, expected, reason, text

STORY = "it was a dark and stormy night, and"  # 35 tokens: six pages


def paused_engine(host: int = 12) -> PagedEngine:
    """Two requests, of which the younger had to pause: ten pages for the device's nine frames."""
    paged = PagedEngine(device=9, host=host)
    paged.submit("a" * 24, 10)
    paged.submit("b" * 24, 10)
    while not paged.scheduler.paused:
        paged.turn()
    assert paged.scheduler.paused == {Slot(1)}
    return paged


def test_one_answer_over_pages() -> None:
    paged = PagedEngine(device=10)
    assert paged.ask(STORY) == expected(STORY)
    assert paged.used() == (7, 0)  # 35 + 5 computed tokens lie there for a follow-up


def test_a_follow_up_goes_on_from_pages_that_are_there() -> None:
    paged = PagedEngine(device=12)
    first = paged.ask(STORY)
    events = paged.submit(STORY + first + " he")
    paged.finish()
    assert text(events) == expected(STORY + first + " he")
    assert end(events).usage.cached_tokens == 40


def test_four_conversations_that_together_need_three_times_what_there_is() -> None:
    paged = PagedEngine(device=10, host=40)
    prompts = [STORY[i:] for i in range(4)]
    answers = [paged.submit(p, 12) for p in prompts]
    paged.finish()
    assert [text(a) for a in answers] == [expected(p, 12) for p in prompts]
    assert paged.manager.stats().evictions


def test_without_swap_space_who_came_last_is_computed_again() -> None:
    paged = PagedEngine(device=9, host=0)
    prompts = ["a" * 24, "b" * 24, "c" * 20]
    answers = [paged.submit(p, 12) for p in prompts]
    paged.finish()
    assert [text(a) for a in answers] == [expected(p, 12) for p in prompts]
    assert paged.runner.computed > sum(len(p) + 11 for p in prompts)


def test_what_rests_goes_before_anybody_pauses() -> None:
    paged = PagedEngine(device=9, host=0)
    paged.ask(STORY)
    assert paged.ask("x" * 30) == expected("x" * 30)
    assert not paged.scheduler.paused
    assert [len(tokens) for tokens in paged.resting()] == [35]


def test_who_pauses_goes_on_where_it_was() -> None:
    paged = paused_engine()
    computed = paged.runner.computed
    left = sum(s.uncomputed for s in paged.scheduler.running.values())
    paged.finish()
    assert [text(e) for e in paged.events] == [expected("a" * 24, 10), expected("b" * 24, 10)]
    assert paged.runner.computed <= computed + left + 20, "something was computed twice"


def test_who_pauses_and_is_cancelled_rests() -> None:
    paged = paused_engine()
    computed = paged.scheduler.running[Slot(1)].computed
    paged.engine._carry_out(Cancel(RequestId(1)))
    assert reason(paged.events[1]) is FinishReason.CANCELLED
    assert not paged.scheduler.paused
    paged.finish()
    assert text(paged.events[0]) == expected("a" * 24, 10)
    events = paged.submit("b" * 24, 10)
    paged.finish()
    assert text(events) == expected("b" * 24, 10)
    assert end(events).usage.cached_tokens == min(computed, 23)


def test_a_shutdown_ends_everybody_paused_or_not() -> None:
    paged = paused_engine()
    waiting = [paged.submit("later") for _ in range(4)]
    paged.engine._carry_out(Shutdown())
    assert {reason(e) for e in (*paged.events, *waiting)} == {FinishReason.CANCELLED}
    assert paged.scheduler.idle


def test_an_answer_that_outgrows_the_memory_ends_with_context_and_others_go_on() -> None:
    paged = PagedEngine(device=5, host=20)
    long, short = paged.submit("a" * 20, 40), paged.submit("b" * 10, 8)
    paged.finish()
    assert reason(long) is FinishReason.CONTEXT
    assert text(long) == expected("a" * 20, 10)  # 30 tokens fill five pages
    assert text(short) == expected("b" * 10, 8)


def test_memory_that_the_system_refuses_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """What has said nothing is an error with the reason; what has ends as if its context were full, with a warning."""
    paged = PagedEngine(device=12)
    paged.store.fail_creates = set(range(4, 1000))
    long = paged.submit("a" * 20, 40)
    paged.finish()
    error = end(long).error
    assert isinstance(error, EngineError) and "a test lets CREATE fail" in error.message and "gpu_memory" in error.hint
    assert not caplog.messages
    for _ in range(2):
        answer = paged.submit("b" * 10, 40)
        paged.finish()
        assert reason(answer) is FinishReason.CONTEXT and text(answer) == expected("b" * 10, 9)
    assert caplog.messages == ["an answer ends early, as no page can be had: a test lets CREATE fail"]
    paged.store.fail_creates.clear()
    assert paged.ask(STORY) == expected(STORY)
    assert not paged.slots.refusal()


def test_figures_say_what_was_cold_while_an_answer_was_made() -> None:
    """Once it rests nothing is cold: a page on the host is then just one that left."""
    paged = PagedEngine(device=6, host=12, spill=SpillSettings(mode="auto"))
    paged.ask("it was a dark and stormy night, and the rain", 10)
    kv = paged.engine.stats.kv
    assert kv is not None and kv.spill.cold == kv.spill.zero_copy >= 3
    assert paged.manager.stats().spill.cold == 0
    paged.ask("hi", 2)
    assert paged.engine.stats.kv is not None and not paged.engine.stats.kv.spill.cold


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    paged = PagedEngine(device=5)
    refused, served = paged.submit("a" * 31), paged.submit("b" * 30, 1)
    paged.turn()
    assert isinstance(end(refused).error, ContextLengthError)
    assert "gpu_memory" in end(refused).error.hint
    paged.finish()
    assert text(served) == expected("b" * 30, 1)


@pytest.mark.parametrize("can_rewind", [True, False])
def test_an_edit_goes_back(can_rewind: bool) -> None:
    """To any token, or to the last snapshot before it: snapshots are 8 tokens apart."""
    paged = PagedEngine(device=12, host=12, can_rewind=can_rewind)
    paged.ask(STORY)
    edited = STORY[:20] + "bright" + STORY[24:]
    events = paged.submit(edited)
    paged.finish()
    assert text(events) == expected(edited)
    assert end(events).usage.cached_tokens == (20 if can_rewind else 16)


def test_snapshots_lie_at_the_interval_before_the_last_token_of_the_prompt_and_at_the_end() -> None:
    paged = PagedEngine(device=12, host=12, can_rewind=False)
    paged.ask(STORY)
    (conversation,) = paged.slots.resting.index
    assert [s.position for s in paged.manager.snapshots.of(conversation)] == [8, 16, 24, 32, 34, 40]
    events = paged.submit(STORY)
    paged.finish()
    assert (text(events), end(events).usage.cached_tokens) == (expected(STORY), 34)


def test_without_room_for_snapshots_everything_is_computed_again() -> None:
    paged = PagedEngine(device=12, host=0, can_rewind=False)
    paged.ask(STORY)
    events = paged.submit(STORY[:30])
    paged.finish()
    assert (text(events), end(events).usage.cached_tokens) == (expected(STORY[:30]), 0)


def test_a_recurrent_conversation_that_paused_goes_on_with_its_state() -> None:
    paged = PagedEngine(device=9, host=30, can_rewind=False)
    prompts = ["a" * 24, "b" * 24, "c" * 24]
    answers = [paged.submit(p, 12) for p in prompts]
    paged.finish()
    assert [text(a) for a in answers] == [expected(p, 12) for p in prompts]


@pytest.mark.parametrize("at", range(1, 60))
def test_a_store_that_fails_ends_that_step_and_nothing_else(at: int) -> None:
    paged = PagedEngine(device=9, host=20)
    paged.store.fail_ops = {at}
    answers = [paged.submit(letter * 24, 10) for letter in "ab"]
    paged.finish()
    paged.store.fail_ops = {0}  # it has failed, and does not again
    for letter, events in zip("ab", answers, strict=True):
        error = end(events).error
        assert error is None or isinstance(error, EngineError)
        assert text(events) == expected(letter * 24, 10) or (
            error and expected(letter * 24, 10).startswith(text(events))
        )
    assert paged.ask("c" * 30) == expected("c" * 30)
    paged.forget_all()
    paged.manager.flush()
    assert paged.used() == (0, 0)


@pytest.mark.parametrize("n_frames", range(8))
def test_a_store_that_cannot_make_more_frames_is_a_smaller_one(n_frames: int) -> None:
    paged = PagedEngine(device=14)
    paged.store.fail_creates = set(range(n_frames + 1, 1000))
    events = paged.submit("a" * 24, 12)
    paged.finish()
    n = 0 if n_frames < 4 else min(6 * n_frames - 24 + 1, 12)  # six tokens a frame, and one is chosen from the last
    assert text(events) == expected("a" * 24, 12)[:n]
    ends = {0: FinishReason.ERROR, 12: FinishReason.LENGTH}
    assert reason(events) is ends.get(n, FinishReason.CONTEXT)


def test_a_copy_that_fails_in_the_background_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    paged = PagedEngine(device=9, host=20)
    events = paged.submit("a" * 44, 6)
    paged.turn(2)
    assert paged.manager.stats().host.n_bytes == 0  # before the device is nearly full nothing is saved
    paged.store.fail_ops = {paged.store.n_ops + 4}  # after the two pages of the next step, the second of what is saved
    paged.turn()
    assert "could not be saved" in caplog.text
    paged.finish()
    assert text(events) == expected("a" * 44, 6)


def test_pages_are_saved_while_prompts_are_read_as_many_as_the_step_is_long() -> None:
    """A step of a few tokens would wait for the driver, which makes frames of the host."""
    paged = PagedEngine(device=9, host=20)
    paged.submit("a" * 44, 6)
    paged.turn(3)
    assert paged.manager.stats().write_backs == 3  # 12 of 16 tokens, four pages in a whole batch
    paged.turn(4)
    assert paged.manager.stats().write_backs == 3


def test_the_check_of_debug_kv_runs_with_every_step_and_ends_what_it_finds_wrong() -> None:
    paged = PagedEngine(device=9)
    paged.submit(STORY, 10)
    paged.turn(4)
    paged.manager.table.refs[0] += 1
    with pytest.raises(BrokenInvariant, match="reference counts"):
        paged.engine.step()


@pytest.mark.parametrize("seed", range(12))
def test_many_requests_over_few_frames(seed: int) -> None:
    """Arrivals, ends, follow-ups and cancellations at random: who is not cancelled gets the right answer."""
    rng = random.Random(seed)
    paged = PagedEngine(
        device=rng.randint(9, 16), host=rng.choice([0, 3, 12, 40]), can_rewind=bool(seed % 2), seed=seed
    )
    asked: dict[int, tuple[str, int]] = {}
    prefixes = ["the ", "a story about ", STORY]
    for _ in range(60):
        if rng.random() < 0.6:
            prompt = (rng.choice(prefixes) + "x" * rng.randrange(12))[: rng.randint(1, 45)]
            if asked and rng.random() < 0.3:
                before, n = asked[rng.choice(list(asked))]
                prompt = (before + expected(before, n) + "?")[:45]
            n = rng.randint(1, 9)
            asked[len(paged.events)] = (prompt, n)
            paged.submit(prompt, n)
        if rng.random() < 0.1 and paged.events:
            paged.engine._carry_out(Cancel(RequestId(rng.randrange(len(paged.events)))))
        for _ in range(rng.randrange(5)):
            if not paged.scheduler.idle:
                paged.turn()
    paged.finish()
    for number, (prompt, n) in asked.items():
        events = paged.events[number]
        assert reason(events) in (FinishReason.LENGTH, FinishReason.CANCELLED)
        assert expected(prompt, n).startswith(text(events))
        assert reason(events) is FinishReason.CANCELLED or text(events) == expected(prompt, n)
