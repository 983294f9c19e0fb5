"""Frames of the host that the store makes ahead of need, paid out of swap space when they are ordered."""

from __future__ import annotations

import numpy as np
import pytest

from pagedrun.kv import Budget, Tier, validate
from pagedrun.kv.pool import FramePool
from pagedrun.kv.validate import BrokenInvariant
from tests.kv_store import FOUR, FakeStore
from tests.kv_world import World, host, served

SIZE = FOUR.frame_bytes


class SlowStore(FakeStore):
    """Makes frames ahead when `work` is called, and only then."""

    def work(self, n: int) -> None:
        self.there = min(self.there + n, self.wanted)

    def stocked(self) -> int:
        return self.there


def slow(*, device: int = 10, host: int = 10) -> tuple[World, SlowStore]:
    store = SlowStore(FOUR)
    return World(FOUR, device=device, host=host, store=store), store


def pool(store: FakeStore, n: int, ahead: int) -> FramePool:
    return FramePool(store, Tier.HOST, Budget(n * SIZE), SIZE, first=100, ahead=ahead)


def test_what_is_ordered_is_paid_for_once() -> None:
    store = SlowStore(FOUR)
    p = pool(store, 6, ahead=4)
    p.order()
    p.order()
    assert (p.ordered, store.wanted, p.budget.used, p.created) == (4, 4, 4 * SIZE, 0)
    assert (p.ready, p.obtainable) == (0, 6)
    store.work(3)
    assert (p.ready, p.obtainable) == (3, 6)
    assert p.take(2) is not None and store.n_made == 0
    assert (p.ordered, store.wanted, p.budget.used, p.created) == (2, 2, 4 * SIZE, 2)
    p.order()
    assert (p.ordered, store.wanted, p.budget.used) == (4, 4, 6 * SIZE)
    assert p.take(4) is not None and store.n_made == 3  # one was there
    p.order()
    assert (p.ordered, store.wanted, p.budget.left, p.obtainable, p.take(1)) == (0, 0, 0, 0, None)


def test_a_budget_for_less_than_is_wished_for() -> None:
    store = SlowStore(FOUR)
    p = pool(store, 3, ahead=9)
    p.budget.take(SIZE + 1)
    p.order()
    assert (p.ordered, p.budget.left, p.obtainable) == (1, SIZE - 1, 1)


def test_an_order_is_cancelled() -> None:
    store = SlowStore(FOUR)
    p = pool(store, 5, ahead=4)
    p.order()
    store.work(4)
    assert p.cancel(3) == 3 and (p.ordered, store.wanted, store.there, p.budget.used) == (1, 1, 1, SIZE)
    assert p.cancel(9) == 1 and p.cancel(1) == 0 and p.cancel(-1) == 0
    assert (p.ordered, store.wanted, p.budget.used) == (0, 0, 0)


def test_after_a_failure_the_store_is_told_again() -> None:
    store = SlowStore(FOUR)
    p = pool(store, 6, ahead=4)
    p.order()
    store.fail_creates = {2}
    assert p.take(3) is None
    assert (p.created, p.ordered, store.wanted, p.budget.used) == (1, 3, 3, 4 * SIZE)
    assert p.take(3) is not None
    assert (p.created, p.ordered, store.wanted, p.budget.used) == (3, 1, 1, 4 * SIZE)


def test_pages_are_saved_as_frames_come() -> None:
    w, store = slow()
    c = served(w, 0, 12)
    assert w.manager.write_back(0) == 0 and w.host.used == 0
    assert w.manager.write_back(3) == 0 and w.host.left == 0  # all of it is less than what is wished for
    w.validate()
    store.work(1)
    assert w.manager.write_back(3) == 1 and host(w, c) == [10, -1, -1]
    assert w.manager.write_back(3) == 0
    store.work(9)
    assert w.manager.write_back(3) == 2 and host(w, c) == [10, 11, 12]
    w.validate()
    assert (store.n_made, w.host.left, w.manager.residency.host.ordered) == (0, 0, 7)


def test_a_page_that_must_leave_does_not_wait_for_the_store() -> None:
    w, store = slow(device=3)
    a = served(w, 0, 12)
    w.manager.write_back(3)
    w.unbind(0)
    b = w.open()
    assert w.bind(b, 1) and w.extend(b, 8)
    w.validate()
    assert host(w, a) == [3, 4, -1] and store.n_made == 2
    assert (w.host.left, w.manager.residency.host.ordered) == (0, 8)


def test_snapshots_come_before_frames_that_nobody_needs_yet() -> None:
    w, store = slow(host=4)
    c = served(w, 0, 8)
    w.manager.write_back(2)
    store.work(2)
    assert w.manager.write_back(2) == 2
    assert w.manager.snapshots.add(c, 8, None, SIZE + 1)
    w.validate()
    assert (w.manager.residency.host.ordered, store.there, w.host.left) == (0, 0, SIZE - 1)
    w.manager.write_back(2)
    w.validate()
    assert host(w, c) == [10, 11] and w.manager.residency.host.ordered == 0


def test_what_is_ordered_counts_as_memory_of_the_host() -> None:
    w, store = slow()
    served(w, 0, 8)
    w.manager.write_back(2)
    stats = w.manager.stats().host
    assert (stats.created, stats.used, stats.n_bytes) == (0, 0, 10 * SIZE)
    assert w.manager.trim() == 0  # what was ordered was not there
    assert (w.host.used, store.wanted, w.manager.stats().host.n_bytes) == (0, 0, 0)
    w.validate()


def test_a_long_stock_is_no_more_than_is_wished_for() -> None:
    w, _ = slow()
    w.manager.residency.host.ahead = 2
    served(w, 0, 8)
    w.manager.write_back(2)
    assert (w.manager.residency.host.ordered, w.host.used) == (2, 2 * SIZE)
    w.validate()


@pytest.mark.parametrize("change", [-1, 1])
def test_the_validator_knows_what_is_ordered(change: int) -> None:
    w, _ = slow()
    served(w, 0, 8)
    w.manager.residency.host.ahead = 3
    w.manager.write_back(2)
    validate(w.manager)
    w.manager.residency.host.ordered += change
    with pytest.raises(BrokenInvariant, match=r"are ordered, and|of the host budget are taken"):
        validate(w.manager)


def test_frames_that_were_made_ahead_are_zeros() -> None:
    w, store = slow()
    w.manager.write_back(1)
    store.work(2)
    frames = w.manager.residency.host.take(2)
    assert frames is not None and store.n_made == 0
    store.wait(store.fence())
    assert not any(store.read(int(frame)).any() for frame in frames)
    assert np.array_equal(frames, [10, 11])
