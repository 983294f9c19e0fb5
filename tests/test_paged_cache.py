"""More conversations than slots: what each computed is found again, in any slot, and only what is new is computed."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagedrun.engine import Cancel
from pagedrun.kv import SpillSettings
from pagedrun.kv.ids import ConversationId
from pagedrun.request import Event, Finished, FinishReason, RequestId
from pagedrun.step import RunnerLimits
from tests.paged_fakes import PagedEngine, end, expected, reason, text

TWO = RunnerLimits(max_num_seqs=2, max_seq_len=60, max_batch_tokens=16)
BOTH = pytest.mark.parametrize("can_rewind", [True, False])
TRUNK = "once upon a time there was "  # 27 tokens


def plenty(**kind: object) -> PagedEngine:
    """Two slots, and room for everything."""
    return PagedEngine(device=40, host=400, limits=TWO, **kind)  # type: ignore[arg-type]


def cached(paged: PagedEngine, prompt: str, n: int = 6) -> int:
    """How much of a prompt was there; the answer is the right one."""
    events = paged.submit(prompt, n)
    paged.finish()
    assert text(events) == expected(prompt, n)
    return end(events).usage.cached_tokens


@BOTH
def test_thirty_conversations_in_two_slots_compute_only_what_is_new(can_rewind: bool) -> None:
    paged = plenty(can_rewind=can_rewind)
    told = [f"{number:02} asks: " + "why? " * (number % 4) for number in range(30)]
    for _ in range(3):
        for number, prompt in enumerate(told):
            told[number] = prompt + paged.ask(prompt, 4) + "?!"
    start = paged.runner.computed
    for prompt in told:
        assert cached(paged, prompt, 4) == len(prompt) - 3  # the last token of an answer is not computed
    assert paged.runner.computed - start == 30 * (3 + 3)
    assert len(paged.resting()) == paged.engine.stats.kv.resting == 30  # type: ignore[union-attr]


@BOTH
def test_two_at_a_time_of_many(can_rewind: bool) -> None:
    paged = plenty(can_rewind=can_rewind)
    told = [f"{number} " * 8 for number in range(8)]
    for turn in range(3):
        asked = [paged.submit(prompt, 5) for prompt in told]
        paged.finish()
        for number, (prompt, events) in enumerate(zip(told, asked, strict=True)):
            assert text(events) == expected(prompt, 5)
            assert end(events).usage.cached_tokens == (len(prompt) - 2 if turn else 0)
            told[number] = prompt + text(events) + "."


def test_a_branch_from_the_middle_leaves_the_trunk() -> None:
    paged = plenty()
    told = TRUNK + paged.ask(TRUNK)
    assert cached(paged, TRUNK[:17] + "where we met") == 17
    assert cached(paged, told + " and") == len(told) - 1, "the trunk"
    branch = TRUNK[:17] + "where we met"
    assert cached(paged, branch + expected(branch) + " and") == len(branch) + 5, "the branch"
    assert paged.manager.stats().shared_pages == 17 // 6
    assert len(paged.resting()) == 2


def test_a_branch_of_a_model_that_cannot_go_back_begins_at_a_snapshot_that_both_keep() -> None:
    paged = plenty(can_rewind=False)
    told = TRUNK + paged.ask(TRUNK)
    branch = TRUNK[:17] + "where we met"
    assert cached(paged, branch) == 16
    assert cached(paged, told + " and") == len(told) - 1
    assert cached(paged, branch + expected(branch) + " and") == len(branch) + 5
    shared = [s.position for s in paged.manager.snapshots if s.refs == 2]
    assert sorted(shared) == [8, 16]


@BOTH
def test_regenerating_the_last_answer(can_rewind: bool) -> None:
    """All but the prompt's last token is there, and the first answer can be gone on from as well."""
    paged = plenty(can_rewind=can_rewind)
    told = TRUNK + paged.ask(TRUNK)
    assert cached(paged, TRUNK, 12) == len(TRUNK) - 1
    assert cached(paged, told + "!") >= len(told) - 1
    assert cached(paged, TRUNK + expected(TRUNK, 12) + "?") == len(TRUNK) + 11


@BOTH
def test_thinking_that_is_stripped_costs_the_last_answer_only(can_rewind: bool) -> None:
    paged = plenty(can_rewind=can_rewind)
    answer = paged.ask(TRUNK, 12)
    stripped = TRUNK + answer[8:] + " so?"  # eight tokens of thinking are not in the history
    at = len(TRUNK) + next(i for i in range(4) if answer[i] != answer[8 + i])
    assert cached(paged, stripped) == (at if can_rewind else len(TRUNK) - 1)


@BOTH
def test_asked_again_the_same_is_kept_once(can_rewind: bool) -> None:
    paged = plenty(can_rewind=can_rewind)
    for _ in range(4):
        paged.ask(TRUNK)
    assert len(paged.resting()) == 1
    assert paged.used()[0] == paged.manager.geometry.pages_for(len(TRUNK) + 5)


def test_who_branches_off_at_the_very_end_takes_it_over() -> None:
    paged = plenty(worth=4)
    told = TRUNK + paged.ask(TRUNK)
    assert cached(paged, told[:-4] + "#") == len(told) - 4
    assert len(paged.resting()) == 1


def test_a_few_tokens_in_common_are_not_worth_a_page() -> None:
    paged = plenty(worth=4)
    paged.ask(TRUNK)
    assert cached(paged, TRUNK[:3] + "xyz") == 0
    assert cached(paged, TRUNK[:4] + "XYZ") == 4
    assert len(paged.resting()) == 3


def test_a_follow_up_gets_the_slot_that_still_shows_its_pages() -> None:
    paged = plenty()
    told = [prompt + paged.ask(prompt) for prompt in ("a" * 20, "b" * 20)]
    for conversation in (told[1], told[0], told[0] + expected(told[0])):
        paged.submit(conversation)
        paged.turn()
        (slot,) = paged.scheduler.running
        assert slot == (1 if conversation is told[1] else 0)
        paged.finish()
    assert paged.ask("c" * 20) == expected("c" * 20)
    assert paged.manager.shown[1] is not None and paged.manager.shown[1].id == max(paged.slots.resting.index)


@BOTH
def test_where_memory_is_short_the_oldest_go_first(can_rewind: bool) -> None:
    """Five conversations of five pages each; there is room for three and a half."""
    paged = PagedEngine(device=17, host=0 if can_rewind else 1, limits=TWO, can_rewind=can_rewind)
    told = [letter * 24 + paged.ask(letter * 24) for letter in "abcde"]
    assert [t[0] for t in paged.resting()] == ["c", "d", "e"]
    assert cached(paged, told[0] + "!", 1) == 0
    assert [t[0] for t in paged.resting()] == ["d", "e", "a"]
    if can_rewind:
        assert cached(paged, told[3] + "!", 1) == 29
        assert [t[0] for t in paged.resting()] == ["e", "a", "d"]


def test_a_trunk_that_is_used_is_not_old() -> None:
    paged = PagedEngine(device=17, limits=TWO)
    for letter in "abc":
        paged.ask(letter * 24)
    assert cached(paged, "a" * 18 + "bcdefg") == 18  # three of its pages are shared with the trunk
    paged.ask("d" * 24)
    assert [t[17:19] for t in paged.resting()] == ["cc", "aa", "ab", "dd"]


def test_the_end_of_one_that_shares_all_its_pages_makes_no_room() -> None:
    """The trunk's pages are those of a branch that runs: it is left alone, and others go."""
    paged = PagedEngine(device=10, limits=TWO)
    paged.ask("a" * 24, 1)  # four pages
    paged.ask("b" * 24, 1)
    events = paged.submit("a" * 24 + "c" * 6, 8)  # goes on from the first one
    paged.submit("a" * 24 + "d" * 6, 8)
    paged.finish()
    assert text(events) == expected("a" * 24 + "c" * 6, 8)
    assert all(reason(e) is FinishReason.LENGTH for e in paged.events)
    assert "b" * 24 not in paged.resting()


def test_without_a_frame_for_a_fork_the_trunk_is_taken_over() -> None:
    paged = PagedEngine(device=10, limits=TWO)
    paged.ask("a" * 30, 1)
    running = paged.submit("b" * 24, 6)
    paged.turn(3)
    assert paged.used() == (10, 0)
    branch = paged.submit("a" * 20 + "c", 3)
    paged.turn()
    assert paged.scheduler.running.keys() == {0, 1} and not paged.resting()
    paged.finish()
    assert text(running) == expected("b" * 24, 6)
    assert text(branch) == expected("a" * 20 + "c", 3)
    assert end(branch).usage.cached_tokens == 20


@BOTH
def test_what_was_cancelled_is_gone_on_from(can_rewind: bool) -> None:
    paged = plenty(can_rewind=can_rewind)
    paged.submit(TRUNK, 30)
    paged.turn(6)
    (sequence,) = paged.scheduler.running.values()
    computed, tokens = sequence.computed, bytes(sequence.tokens).decode()
    paged.engine._carry_out(Cancel(RequestId(0)))
    assert cached(paged, tokens + " go on") == computed


def test_a_conversation_that_moved_leaves_no_state_behind() -> None:
    """A recurrent state in the slot where it was before is of other tokens than those it has now."""
    paged = plenty(can_rewind=False)
    told = "a" * 20 + paged.ask("a" * 20)
    other = paged.submit("b" * 10, 20)  # has a slot when the first one comes back
    paged.turn()
    slots = []
    for _ in range(3):
        events = paged.submit(told + "!", 2)
        paged.turn()
        slots += [slot for slot, s in paged.scheduler.running.items() if s.request.max_tokens == 2]
        while not reason_known(events):
            paged.turn()
        assert text(events) == expected(told + "!", 2)
        told += "!" + text(events)
    paged.finish()
    assert text(other) == expected("b" * 10, 20)
    assert cached(paged, told + "?") == len(told) - 1


def reason_known(events: list[Event]) -> bool:
    return bool(events) and isinstance(events[-1], Finished)


def test_one_comes_back_although_another_has_to_be_forgotten_for_it() -> None:
    """The pages of the first are on the host, those of the second cannot leave the device, the third needs its own."""
    paged = PagedEngine(device=10, host=5, limits=TWO)
    told = ["x" * 24 + paged.ask("x" * 24), "y" * 24 + paged.ask("y" * 24)]
    running = paged.submit("r" * 24, 6)
    paged.turn(3)
    assert paged.used() == (10, 5)
    events = paged.submit(told[0], 1)
    paged.turn()
    assert end(events).usage.cached_tokens == 29
    assert not paged.scheduler.paused and len(paged.scheduler.running) == 1
    assert paged.resting()[-1] == told[0]
    paged.finish()
    assert text(running) == expected("r" * 24, 6)


def test_who_is_cancelled_after_the_disk_lost_some_of_it_keeps_the_beginning() -> None:
    spill = SpillSettings(prefetch="hybrid", batch=1, per_step=1)
    paged = PagedEngine(device=10, host=1, disk=40, can_rewind=False, spill=spill, limits=TWO)
    paged.submit("a" * 24, 16)
    paged.submit("b" * 24, 16)
    while not paged.scheduler.paused:
        paged.turn()
    ((slot, sequence),) = ((s, paged.scheduler.running[s]) for s in paged.scheduler.paused)
    conversation = paged.slots._of[slot]
    assert paged.manager.on_disk(conversation)
    (lost, *_) = paged.manager.pages(conversation)[2:]
    paged.manager.lower.lost.append(int(lost))  # as reading it for another that shares it would find
    paged.manager._cut_lost()
    assert paged.manager.length(conversation) == 12 < sequence.computed
    paged.engine._carry_out(Cancel(sequence.id))
    paged.finish()
    assert cached(paged, "b" * 24, 3) == 8


def test_the_resting_ones_do_not_shorten_what_a_request_may_have() -> None:
    """Their snapshots take swap space that cold pages could have; they go when it is needed."""
    paged = PagedEngine(device=6, host=3, can_rewind=False, spill=SpillSettings(mode="auto"))
    most = paged.slots.max_tokens
    assert most == 54
    for letter in "abcd":
        paged.ask(letter * 12, 2)
    assert paged.manager.snapshots.nbytes
    assert paged.slots.max_tokens == most
    assert paged.ask("e" * 40, 8) == expected("e" * 40, 8)


@pytest.mark.parametrize("spill", ["off", "auto"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_chats_with_few_frames(spill: str, data: st.DataObject) -> None:
    """Follow-ups, branches, edits, regenerated answers and cancellations, of more chats than slots."""
    draw = data.draw
    paged = PagedEngine(
        device=draw(st.integers(10, 20)),
        host=draw(st.sampled_from([0, 3, 30])),
        disk=draw(st.sampled_from([0, 20])),
        can_rewind=draw(st.booleans()),
        limits=TWO,
        worth=draw(st.sampled_from([1, 3, 8])),
        spill=SpillSettings(mode=spill, prefetch=draw(st.sampled_from(["off", "hybrid"]))),
    )
    chats = ["you are a cook. ", "you are a poet. ", "why"]
    asked: list[tuple[str, int]] = []
    for _ in range(draw(st.integers(1, 14))):
        chat = draw(st.sampled_from(chats))
        kind = draw(st.sampled_from(["follow", "branch", "again", "cancel"]))
        if kind == "branch":
            chat = chat[: draw(st.integers(1, len(chat)))]
        prompt = chat if kind == "again" else (chat + draw(st.sampled_from(["go on", "no!", "a", "hm, then "])))[:46]
        n = draw(st.integers(1, 9))
        asked.append((prompt, n))
        paged.submit(prompt, n)
        chats.append((prompt + expected(prompt, n))[:46])
        if draw(st.integers(0, 4)) == 0:
            paged.file.fail_reads.add(paged.file.n_reads + draw(st.integers(1, 6)))
        if kind == "cancel":
            paged.engine._carry_out(Cancel(RequestId(draw(st.integers(0, len(asked) - 1)))))
        for _ in range(draw(st.integers(0, 9))):
            if not paged.scheduler.idle:
                paged.turn()
    paged.finish()
    for events, (prompt, n) in zip(paged.events, asked, strict=True):
        cancelled = reason(events) is FinishReason.CANCELLED
        assert reason(events) is FinishReason.LENGTH or cancelled
        assert text(events) == expected(prompt, n)[: len(text(events)) if cancelled else n]
    paged.forget_all()
    paged.manager.flush()
    assert paged.used() == (0, 0) and not paged.manager.snapshots.nbytes and not paged.slots.resting.index.nbytes


def test_the_index_says_what_it_takes() -> None:
    paged = plenty()
    paged.ask(TRUNK)
    kv = paged.engine.stats.kv
    assert kv is not None and kv.index_bytes == paged.slots.resting.index.nbytes > 4 * len(TRUNK)
    assert paged.slots.resting.index.length(ConversationId(0)) == len(TRUNK) + 5
