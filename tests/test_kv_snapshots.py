"""States of recurrent layers: found, shared, dropped, inside the budget of the host's frames."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
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
    for position in (12, 20, 30):
        s.add(B, position, None, 10)
    s.best(A, 25)  # its second one was resumed from
    assert s.add(B, 40, None, 10)
    assert (positions(s, A), positions(s, C)) == ([20, 30], [])  # of equal ones the oldest, shared or not
    assert s.add(B, 50, None, 10)
    assert (positions(s, A), positions(s, B)) == ([20], [12, 20, 30, 40, 50])
    assert s.evicted == 2


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


def chat(s: SnapshotStore, turns: int, *, stripped: bool, turn: int = 300, nbytes: int = 10) -> list[ConversationId]:
    """Snapshots as turns of a chat make them: before the answer, and at its end. stripped: the next goes on before it.

    Answers the conversations, of which the last one is the chat as it is.
    """
    told = [ConversationId(0)]
    for n in range(turns):
        if n and stripped:
            told.append(ConversationId(n))
            s.fork(told[-2], told[-1], n * turn - turn // 2)
        if n:
            assert s.best(told[-1], n * turn) is not None
        for position, place in ((n * turn + turn // 2, "prompt"), ((n + 1) * turn, "end")):
            assert s.add(told[-1], position, None, nbytes, place)  # type: ignore[arg-type]
            s.thin(told[-1], least=32, most=2048)
    return told


def gaps(found: list[int]) -> list[int]:
    return [b - a for a, b in zip([0, *found], found, strict=False)]


@pytest.mark.parametrize("stripped", [False, True])
def test_a_long_chat_with_memory_thins_out_before_its_end(stripped: bool) -> None:
    s = store(1 << 30)
    found = positions(s, chat(s, 100, stripped=stripped)[-1])
    assert found[-4:] == ([29_250, 29_550, 29_850, 30_000] if stripped else [29_550, 29_700, 29_850, 30_000])
    assert max(gaps(found)) <= 2048
    assert len(found) < 45 < s.thinned
    assert all(gap <= max(2048, (30_000 - at) // 4 + 600) for at, gap in zip(found, gaps(found), strict=True))


@pytest.mark.parametrize("stripped", [False, True])
def test_a_long_chat_without_memory_keeps_what_it_goes_on_from(stripped: bool) -> None:
    """Room for twelve: those of the last turns, and some all the way back, ever farther apart."""
    s = store(120)
    told = chat(s, 100, stripped=stripped)
    found = positions(s, told[-1])
    assert s.nbytes <= 120
    before = {29_550} if stripped else {29_700}  # what the turn before was gone on from
    assert set(found) >= before | {29_850, 30_000}, "the end of the last prompt, and of the last answer"
    if not stripped:
        assert len(found) == 12
    if stripped:
        assert len(found) >= 11, "ends that nobody goes on from are of little value"
    assert min(found) < 22_000
    assert gaps(found)[1] > gaps(found)[-2]


def test_where_many_branch_off_stays() -> None:
    s = store(80)
    s.add(A, 200, None, 10, "branch")
    s.add(A, 500, None, 10, "end")
    for n in range(10, 60):
        c = ConversationId(n)
        s.fork(A, c, 200)
        if n < 20:
            s.best(c, 200)
        s.add(c, 600, None, 10, "prompt")
        s.add(c, 700, None, 10, "end")
        s.thin(c, least=32, most=2048)
    assert positions(s, A)[0] == 200 and positions(s, ConversationId(59)) == [200, 600, 700]


def test_one_that_another_needs_is_not_thinned_out() -> None:
    s = store()
    for position in (100, 150, 200):
        s.add(A, position, None, 10)
    s.fork(A, B, 150)
    for position in (300, 2000):
        s.add(A, position, None, 10)
    s.thin(A, least=32, most=2048)
    assert (positions(s, A), positions(s, B)) == ([100, 150, 300, 2000], [100, 150])  # 200 was of A alone
    for n in range(20):
        s.add(C, 100 * n, None, 10)
    s.thin(A, least=32, most=2048)
    assert (positions(s, A), positions(s, B)) == ([150, 2000], [150])  # its last one, and none that is far


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 40)), max_size=30))
def test_the_budget_is_never_exceeded(adds: list[tuple[int, int, int]]) -> None:
    budget = Budget(100)
    s = SnapshotStore(budget, lambda n: None)
    for c, position, nbytes in adds:
        assert s.add(ConversationId(c), position, None, nbytes)
        assert position in positions(s, ConversationId(c))
        assert s.nbytes == budget.used <= 100
