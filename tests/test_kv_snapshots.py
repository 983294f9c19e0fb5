"""States of recurrent layers: found, shared, dropped, inside the budget of the host's frames."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pagedrun.kv import Budget, SnapshotStore
from pagedrun.kv.ids import ConversationId
from tests.kv_store import GEOMETRIES
from tests.kv_world import World

A, B, C = (ConversationId(n) for n in range(3))


def store(limit: int = 1000) -> SnapshotStore:
    return SnapshotStore(Budget(limit), lambda n: None)


def positions(s: SnapshotStore, c: ConversationId) -> list[int]:
    return [snapshot.position for snapshot in s.of(c)]


def test_the_last_one_before_a_token_is_found() -> None:
    s = store()
    for position in (300, 100, 200):
        assert s.add(A, position, f"state {position}", 10)
    assert positions(s, A) == [100, 200, 300]
    found = {n: s.best(A, n) for n in (99, 100, 250, 999)}
    assert {n: f and f.data for n, f in found.items()} == {
        99: None,
        100: "state 100",
        250: "state 200",
        999: "state 300",
    }
    assert s.best(B, 5) is None


def test_the_same_position_is_kept_once() -> None:
    s = store()
    assert s.add(A, 100, "first", 10) and s.add(A, 100, "second", 10)
    assert [snapshot.data for snapshot in s] == ["first"] and s.nbytes == 10


def test_a_fork_shares_what_lies_before_it_and_truncation_drops_what_lies_after() -> None:
    budget = Budget(100)
    s = SnapshotStore(budget, lambda n: None)
    for position in (10, 20, 30):
        s.add(A, position, None, 10)
    s.fork(A, B, 20)
    assert positions(s, B) == [10, 20] and [x.refs for x in s.of(A)] == [2, 2, 1] and budget.used == 30
    s.truncate(A, 15)
    assert positions(s, A) == [10] and positions(s, B) == [10, 20] and budget.used == 20
    s.free(B)
    assert positions(s, A) == [10] and budget.used == 10
    s.free(A)
    s.free(C)
    assert list(s) == [] and budget.used == 0


def test_the_least_useful_goes_first() -> None:
    s = store(60)
    for position in (10, 20, 30):
        s.add(A, position, None, 10)
    s.fork(A, C, 10)
    for position in (10, 20, 30):
        s.add(B, position, None, 10)
    s.best(A, 25)  # its second one was resumed from
    assert s.add(B, 40, None, 10)
    assert positions(s, B) == [20, 30, 40]  # the oldest that is neither shared nor anybody's newest
    assert s.add(B, 50, None, 30)
    assert (positions(s, A), positions(s, B), positions(s, C)) == ([10, 30], [40, 50], [10])
    assert s.evicted == 4


def test_one_that_is_too_large_drives_nobody_out() -> None:
    s = store(50)
    s.add(A, 1, None, 20)
    assert not s.add(B, 1, None, 51)
    assert positions(s, A) == [1] and positions(s, B) == []
    assert s.add(B, 1, None, 50)
    assert positions(s, A) == []


def test_swap_space_is_one_account() -> None:
    """Frames that no page needs make room for snapshots, copies of pages on the device too; pages themselves do not."""
    g = GEOMETRIES["rows end with pages"]
    w = World(g, device=4, host=3)
    c = w.open()
    assert w.bind(c, 0) and w.extend(c, 12)
    assert w.manager.write_back(3) == 3
    assert w.host.left == 0
    assert not w.manager.snapshots.add(c, 12, None, 10)  # all frames are still being copied to
    w.store.wait(w.store.fence())
    w.manager.poll()
    assert w.manager.snapshots.add(c, 12, None, g.frame_bytes + 10)
    w.validate()
    assert w.host.used == g.frame_bytes + g.frame_bytes + 10
    w.unbind(0)
    assert w.manager.demote(w.manager.pages(c)) == 1  # one page has its copy still, and there is room for no other
    w.step()
    assert not w.manager.snapshots.add(c, 4, None, 3 * g.frame_bytes)
    assert w.manager.stats().snapshot_bytes == g.frame_bytes + 10
    w.validate()
    w.truncate(c, 8)
    assert (w.manager.stats().snapshots, w.manager.stats().snapshot_bytes) == (0, 0)
    w.validate()


def test_forks_of_conversations_have_the_snapshots() -> None:
    w = World()
    c = w.open()
    assert w.bind(c, 0) and w.extend(c, 10)
    w.manager.snapshots.add(c, 5, "five", 1)
    w.manager.snapshots.add(c, 10, "ten", 1)
    child = w.fork(c, 7)
    assert child is not None
    best = w.manager.snapshots.best(child, 7)
    assert best is not None and best.data == "five"
    w.validate()
    w.free(c)
    w.validate()
    assert [s.position for s in w.manager.snapshots] == [5]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 40)), max_size=30))
def test_the_budget_is_never_exceeded(adds: list[tuple[int, int, int]]) -> None:
    budget = Budget(100)
    s = SnapshotStore(budget, lambda n: None)
    for c, position, nbytes in adds:
        assert s.add(ConversationId(c), position, None, nbytes)
        assert position in positions(s, ConversationId(c))
        assert s.nbytes == budget.used <= 100
