"""Exact pages, stages and operations as a conversation outgrows the device, and comes back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagedrun.kv import BrokenInvariant, Rates, SpillSettings, validate
from pagedrun.kv.ids import ConversationId
from tests.kv_store import SPILLING, with_stages
from tests.kv_world import World, device, host, served

#: Four tokens to a page; a frame takes 128 bytes, a stage 64.
STAGED = with_stages(4, page_bytes=32, row_bytes=8, zero_copy=False)
DIRECT = replace(STAGED, stage_bytes=0, zero_copy=True)


def world(geometry=STAGED, *, frames: int = 5, host: int = 12, prefetch: str = "off", **spill: object) -> World:  # type: ignore[no-untyped-def]
    settings = SpillSettings(**({"mode": "auto", "prefetch": prefetch, "batch": 1, "per_step": 2} | spill))  # type: ignore[arg-type]
    return World(geometry, device=frames, host=host, spill=settings)


def grown(w: World, c: ConversationId, n_tokens: int) -> None:
    for _ in range(n_tokens):
        assert w.spill(c, 1)
        w.step()
        w.compute(c, 1)
        w.validate()


def test_the_oldest_page_is_read_directly() -> None:
    w = world(DIRECT, frames=2)
    c = served(w, 0, 8)
    w.manager.write_back(2)
    w.step()
    w.store.told()
    assert not w.append(c, 1)
    assert w.spill(c, 1)
    w.step()
    assert device(w, c) == [-1, 1, 0] and host(w, c) == [2, 3, -1]
    assert w.store.told() == [
        [("UNMAP", 0, 0), ("ZERO", 0), ("MAP_SHARED", 0, 0, 2), ("MAP", 0, 2, 0)]
    ]  # it had been written back: no copy
    stats = w.manager.stats().spill
    assert (stats.cold, stats.staged, stats.zero_copy, stats.reason) == (1, 0, 1, "there are no stages here")


def test_the_first_stage_is_paid_from_the_reserve_and_a_frame_for_the_next_ones() -> None:
    w = world(frames=5)  # 640 bytes: four frames, and one stage in reserve
    assert w.manager.residency.device.most == 4
    c = served(w, 0, 16)
    assert w.spill(c, 1)
    w.step()
    assert device(w, c)[:3] == [-1, -1, -1] and w.device.used <= 640
    stats = w.manager.stats().spill
    assert (stats.cold, stats.staged, stats.stage_bytes) == (3, 3, 192)
    assert sorted(page for _, page in w.store.stages) == [0, 1, 2]
    assert w.device.left >= 64 or w.manager.stages.free


@pytest.mark.parametrize("mode", ["staged", "zero-copy", "auto"])
@pytest.mark.parametrize("name", sorted(SPILLING))
@pytest.mark.parametrize("frames", range(2, 9))
@pytest.mark.parametrize("n_host", [0, 1, 3, 8])
def test_max_tokens_is_what_a_conversation_can_have(name: str, mode: str, frames: int, n_host: int) -> None:
    """Whatever there is of device and host: it grows that far, token by token."""
    w = world(SPILLING[name], frames=frames, host=n_host, mode=mode)
    c = served(w, 0, 0)
    grown(w, c, w.manager.max_tokens)


def test_max_tokens_with_and_without() -> None:
    assert World(STAGED, device=5, host=12).manager.max_tokens == 20
    assert world(frames=5, host=3, mode="off").manager.max_tokens == 20
    assert world(frames=5, host=3).manager.max_tokens == 4 * (3 + 3)  # three staged, and 576 - 192 bytes are three
    assert world(frames=5, host=99).manager.max_tokens == 4 * (2 + 5)
    assert world(DIRECT, frames=5, host=3).manager.max_tokens == 4 * 8


def test_a_conversation_that_does_not_fit_is_bound_with_its_newest_pages_hot() -> None:
    w = world(DIRECT, frames=4)
    c = served(w, 0, 14)
    w.unbind(0)
    other = served(w, 1, 8)
    assert not w.bind(c, 0)
    assert w.bind(c, 0, spill=True)
    w.step()
    assert [d >= 0 for d in device(w, c)] == [False, False, True, True]
    w.validate()
    w.unbind(0)
    w.validate()
    assert not w.manager.windows.n_cold  # nothing of the host is shown when nobody reads it
    w.unbind(1)
    assert w.bind(c, 0) and all(d >= 0 for d in device(w, c))
    assert w.manager.length(other) == 8


def test_a_page_that_two_share_has_a_stage_for_each() -> None:
    w = world(frames=12, host=20)
    c = served(w, 0, 0)
    grown(w, c, 32)
    w.unbind(0)
    child = w.fork(c, 32)
    assert child is not None
    w.manager.demote(w.manager.pages(c))
    w.manager.shrink(4 * STAGED.frame_bytes)
    w.manager.shrink(w.device.limit - 8 * STAGED.frame_bytes)
    assert w.bind(c, 0, spill=True)
    w.step()
    n_cold = w.manager.stats().spill.cold
    w.manager.grow(STAGED.stage_bytes * n_cold)
    assert n_cold and w.bind(child, 1, spill=True)
    w.step()
    w.validate()
    assert w.manager.stats().spill.staged > n_cold


def test_cold_pages_come_back_and_leave_as_many_frames_free_as_a_spill_makes() -> None:
    w = world(frames=8, host=12, prefetch="sequential")
    w.manager.shrink(4 * STAGED.frame_bytes)
    c = served(w, 0, 0)
    grown(w, c, 20)
    cold = w.manager.stats().spill.cold
    assert cold >= 2 and w.manager.recall() == 0
    w.manager.grow(4 * STAGED.frame_bytes)
    assert w.manager.recall() == 2
    assert [d >= 0 for d in device(w, c)][cold - 2 :] == [True] * (7 - cold)  # the newest first
    w.step()
    while w.manager.recall():
        w.step()
    w.validate()
    assert w.manager.residency.within_reach() >= 1


def test_a_cold_page_is_written_to_again_after_it_was_cut() -> None:
    w = world(DIRECT, frames=2, host=6)
    c = served(w, 0, 0)
    grown(w, c, 16)
    w.truncate(c, 2)
    grown(w, c, 6)
    assert device(w, c)[0] >= 0 or device(w, c)[1] >= 0


def test_pages_come_ahead_into_frames_that_nobody_needs() -> None:
    w = world(DIRECT, frames=6, prefetch="hybrid", per_step=3)
    a, b = served(w, 0, 16), served(w, 1, 4)
    w.unbind(0)
    assert w.manager.demote(w.manager.pages(a)) == 4
    assert w.manager.prefetch(w.manager.pages(a)) == 3
    w.step()
    w.store.wait(w.store.fence())
    w.manager.poll()
    assert w.manager.prefetch(w.manager.pages(a)) == 1
    assert w.bind(a, 0)
    stats = w.manager.stats().prefetch
    assert (stats.pages, stats.hits, stats.late, stats.wasted) == (4, 3, 1, 0)
    w.unbind(0)
    w.manager.demote(w.manager.pages(a))
    assert w.manager.prefetch(w.manager.pages(a)) == 3
    w.free(a)
    assert w.manager.stats().prefetch.wasted == 3
    assert w.manager.prefetch(w.manager.pages(b)) == 0


def test_memory_goes_to_others_idle_pages_first() -> None:
    w = world(DIRECT, frames=6)
    a, b = served(w, 0, 12), served(w, 1, 12)
    w.unbind(0)
    assert w.manager.shrink(2 * DIRECT.frame_bytes) == 2 * DIRECT.frame_bytes
    assert device(w, b) == [3, 4, 5] and sum(d >= 0 for d in device(w, a)) == 1
    assert w.manager.shrink(3 * DIRECT.frame_bytes) == 3 * DIRECT.frame_bytes
    w.step()
    w.validate()
    assert w.manager.stats().spill.cold == 2 and w.device.limit == DIRECT.frame_bytes
    assert w.manager.grow(99 * DIRECT.frame_bytes) == 5 * DIRECT.frame_bytes


def test_snapshots_that_are_needed_least_make_room_for_cold_pages() -> None:
    w = world(DIRECT, frames=2, host=2)
    c = served(w, 0, 8)
    for position in (2, 4, 6):
        assert w.manager.snapshots.add(c, position, b"", 60)
    assert w.spill(c, 1)
    assert [s.position for s in w.manager.snapshots.of(c)] == [4, 6]  # one was enough
    assert w.manager.snapshots.needed_bytes([c]) == 60


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (lambda w: w.manager.windows.stage.__setitem__(1, w.manager.windows.stage[0]), "a stage is used twice"),
        (lambda w: w.manager.windows.stage.__setitem__(0, -1), "stages exist"),
        (lambda w: setattr(w.manager.windows, "n_cold", 0), "counted as cold"),
        (lambda w: w.manager.windows.writable.__setitem__(0, True), "writable pages that are on the host"),
    ],
)
def test_the_validator_sees_what_is_wrong_with_stages(break_it, complaint: str) -> None:  # type: ignore[no-untyped-def]
    w = world(frames=5)
    c = served(w, 0, 0)
    grown(w, c, 17)
    assert np.count_nonzero(w.manager.windows.stage >= 0) >= 2
    break_it(w)
    with pytest.raises(BrokenInvariant, match=complaint):
        validate(w.manager)


def test_what_suits_a_prompt_is_changed_for_the_answer_and_back() -> None:
    """Over a slow bus for copies, and with a kernel that reads a page of a prompt again and again."""
    rates = Rates(copy=1e3, zero_copy=1e4, decode_s=0.1, prefill_s=1.0)
    w = world(replace(STAGED, zero_copy=True), frames=5, rates=rates)
    c = served(w, 0, 16)
    assert w.manager.spill(c, 4) and w.append(c, 4)  # as for a prompt
    w.step()
    w.compute(c, 4)
    before = w.manager.stats().spill
    w.rearrange(c, prefill=True)
    assert w.manager.stats().spill == before and before.staged
    w.rearrange(c, prefill=False)
    w.step()
    w.validate()
    stats = w.manager.stats().spill
    assert stats.staged == 0 < stats.zero_copy and stats.reason == "shortest step by what was measured"
    grown(w, c, 1)
    w.rearrange(c, prefill=True)
    w.step()
    w.validate()
    assert w.manager.stats().spill.staged
