"""The store fails, at every place where it can: nothing is lost, nothing is in a wrong state, and it goes on after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pagedrun.kv import Budget, FrameError, Op, Tier
from pagedrun.kv.ids import ConversationId
from pagedrun.kv.pool import FramePool
from pagedrun.kv.store import rows
from tests.kv_store import GEOMETRIES, GEOMETRY, FakeStore
from tests.kv_world import World

Insist = Callable[[Callable[[], Any]], Any]


def scenario(w: World, insist: Insist = lambda do: do()) -> None:
    """A bit of everything. `insist` does what may be refused, and says what came of it."""

    def serve(c: ConversationId, slot: int, n: int) -> None:
        if insist(lambda: w.bind(c, slot)):
            insist(lambda: w.extend(c, n))
            w.write_back(2)

    a, b = w.open(), w.open()
    serve(a, 0, 9)
    serve(b, 1, 7)
    child = insist(lambda: w.fork(a, w.manager.length(a)))
    release(w)
    if child is not None:
        serve(child, 2, 6)
        w.truncate(a, w.manager.length(a) // 2)
    release(w)
    serve(a, 0, 5)
    w.manager.demote(w.manager.pages(b))
    w.step()
    w.free(a)
    serve(b, 1, 3)
    w.step()


def release(w: World) -> None:
    for slot, c in enumerate(w.manager.shown):
        if c is not None and c.bound:
            w.unbind(slot)


def end(w: World) -> None:
    """All is well, and everything comes back."""
    w.step()
    w.validate()
    for c in list(w.known):
        w.free(c)
    w.store.fail_ops = set()
    w.manager.trim()
    w.store.wait(w.store.fence())
    w.manager.trim()
    w.validate()
    assert not w.store.frames and not w.store.windows
    assert w.device.used == w.host.used == 0


def small_world() -> World:
    return World(device=9, host=9, seed=1)


@pytest.fixture(scope="module")
def sound() -> World:
    """The scenario with a store that never fails."""
    w = small_world()
    scenario(w)
    return w


def test_the_scenario_is_worth_it(sound: World) -> None:
    assert sound.store.n_creates > 12 and sound.store.n_ops > 30
    assert {op for ops in sound.store.log for op, *_ in ops} == set(Op) - {Op.DESTROY, Op.MAP_STAGED}


def test_a_frame_cannot_be_made_once(sound: World) -> None:
    """At every k: what was asked is refused and changed nothing, or other pages made room; asked again, it works."""
    refused = 0
    for k in range(1, sound.store.n_creates + 1):
        w = small_world()
        w.store.fail_creates = {k}

        def insist(do: Callable[[], Any], w: World = w) -> Any:
            nonlocal refused
            result = do()
            w.validate()
            if result is None or result is False:
                refused += 1
                result = do()
                assert result is not None and result is not False
            return result

        scenario(w, insist)
        stats = w.manager.stats()
        assert "a test lets CREATE fail" in (stats.device.refused, stats.host.refused)
        assert {c: len(r.tokens) for c, r in w.known.items()} == {c: len(r.tokens) for c, r in sound.known.items()}
        end(w)
    assert refused > 3


def test_memory_runs_out_for_good(sound: World) -> None:
    """From the k-th frame on none can be made, though the budget allows it: less fits, and that is all."""
    for k in range(1, sound.store.n_creates + 1):
        w = small_world()
        w.store.fail_creates = set(range(k, 1000))

        def insist(do: Callable[[], Any], w: World = w) -> Any:
            result = do()
            w.validate()
            return result

        scenario(w, insist)
        assert len(w.store.frames) == k - 1
        end(w)


def test_any_other_operation_fails_once(sound: World) -> None:
    """At every j: flush says so, what was done stays done, and the next flush does the rest."""
    for j in range(1, sound.store.n_ops + 1):
        w = small_world()
        w.store.fail_ops = {j}
        scenario(w)
        assert w.store.n_ops >= j
        assert {c: r.tokens for c, r in w.known.items()} == {c: r.tokens for c, r in sound.known.items()}
        end(w)


def test_flush_says_what_failed_and_keeps_the_rest() -> None:
    w = World(GEOMETRIES["rows end with pages"])
    c = w.open()
    w.bind(c, 0)
    w.append(c, 12)
    w.store.fail_ops = {2}
    w.store.told()
    with pytest.raises(FrameError, match="a test lets MAP fail") as e:
        w.manager.flush()
    assert e.value.done == 1
    w.validate()
    w.manager.flush()
    assert w.store.told() == [
        [("MAP", 0, 0, 0), ("MAP", 0, 1, 1), ("MAP", 0, 2, 2)],
        [("UNMAP", 0, 1), ("MAP", 0, 1, 1), ("MAP", 0, 2, 2)],  # nobody knows what a page that failed shows
    ]
    w.compute(c, 12)
    w.step()


def test_copies_that_were_done_are_not_done_again() -> None:
    w = World(GEOMETRIES["rows end with pages"], device=3)
    a, b = w.open(), w.open()
    assert w.bind(a, 0) and w.extend(a, 12)
    w.free(a)
    assert w.bind(b, 1) and w.append(b, 12)
    w.step()
    w.free(b)
    c = w.open()
    assert w.bind(c, 2) and w.append(c, 12)
    w.store.fail_ops = {w.store.n_ops + 3 + 2, w.store.n_ops + 3 + 2 + 3}
    w.store.told()
    w.step()
    assert [[op for op, *_ in ops] for ops in w.store.told()] == [
        ["UNMAP"] * 3 + ["ZERO"] * 3 + ["MAP"] * 3,  # the second ZERO fails
        ["ZERO"] * 2 + ["MAP"] * 3,  # the first MAP fails
        ["UNMAP"] + ["MAP"] * 3,
    ]


def test_what_could_not_be_shown_can_be_given_up() -> None:
    w = World(GEOMETRIES["rows end with pages"])
    c = w.open()
    w.bind(c, 0)
    w.append(c, 12)
    w.store.fail_ops = set(range(2, 40))
    for _ in range(3):
        with pytest.raises(FrameError):
            w.manager.flush()
    w.free(c)
    w.store.fail_ops = set(range(2, 5))
    w.step()
    w.validate()
    assert not w.store.windows


def test_a_pool_keeps_what_it_could_make() -> None:
    store = FakeStore(GEOMETRY)
    store.fail_creates = {3, 4}
    budget = Budget(5 * GEOMETRY.frame_bytes + 1)
    pool = FramePool(store, Tier.HOST, budget, GEOMETRY.frame_bytes, first=100)
    assert pool.take(4) is None
    assert (pool.created, pool.available, budget.used) == (2, 2, 2 * GEOMETRY.frame_bytes)
    assert pool.refused == "a test lets CREATE fail"
    assert pool.take(3) is None
    frames = pool.take(5)
    assert frames is not None and sorted(frames) == [100, 101, 102, 103, 104]
    assert pool.take(1) is None and budget.left == 1
    pool.give_back(frames[:3], np.array([False, True, False]))
    assert len(pool.idle_frames) == 2 and len(pool.retiring_frames) == 1
    assert pool.shrink(9) == 2
    pool.settle(lambda frames: np.zeros(len(frames), bool))
    again = pool.take(3)
    assert again is not None and sorted(again) == sorted(frames[:3])


def test_a_store_without_frames_of_the_host_is_not_asked_at_every_step() -> None:
    w = World(GEOMETRIES["rows end with pages"])
    c = w.open()
    assert w.bind(c, 0) and w.extend(c, 4)
    w.store.fail_creates = set(range(2, 100))
    assert [w.manager.write_back(4) for _ in range(3)] == [0, 0, 0]
    assert w.store.n_creates == 2
    w.store.fail_creates = {4}
    assert w.extend(c, 4)
    assert w.manager.write_back(4) == 0 and w.store.n_creates == 4
    assert w.extend(c, 4)
    assert w.manager.write_back(4) == 3


def test_operations_are_rows() -> None:
    ops = rows(Op.COPY, np.array([4, 5]), np.array([1, 2]))
    assert ops.tolist() == [[5, 4, 1, 0], [5, 5, 2, 0]]
    assert rows(Op.ZERO, [7]).tolist() == [[6, 7, 0, 0]]
