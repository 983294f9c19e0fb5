"""Who has to leave, by policy, page by page."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.kv import POLICIES
from pagedrun.kv.policy import LRU, Clock, Policy, WorkingSet, policy_named
from tests.kv_store import GEOMETRIES
from tests.kv_world import World


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int64)


def chosen(policy: Policy, n: int, candidates: np.ndarray, clean: tuple[int, ...] = ()) -> list[int]:
    return policy.victims(n, candidates, np.isin(candidates, clean)).tolist()


def test_clock_gives_a_second_chance() -> None:
    clock = Clock(8)
    clock.touch(ids(0, 1, 2, 3))
    assert chosen(clock, 2, np.arange(4)) == [0, 1]  # all were used: the hand clears them, and stops where it began
    clock.touch(ids(2))
    assert chosen(clock, 1, ids(2, 3)) == [3]  # 2 was used again
    assert chosen(clock, 1, ids(2)) == [2]


def test_clock_goes_on_where_it_stopped() -> None:
    clock = Clock(8)
    assert [chosen(clock, 1, np.arange(4))[0] for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def test_clock_prefers_clean_pages_among_those_not_used() -> None:
    clock = Clock(8)
    clock.touch(ids(3))
    assert chosen(clock, 3, np.arange(4), clean=(2, 3)) == [2, 0, 1]
    clock = Clock(8)
    clock.touch(ids(0))
    assert chosen(clock, 1, np.arange(2), clean=(0,)) == [1]  # used and clean stays before not used and dirty


def test_clock_takes_the_chance_only_from_those_the_hand_passes() -> None:
    clock = Clock(8)
    clock.touch(ids(0, 3))
    assert chosen(clock, 1, np.arange(4)) == [1]  # passes 0
    assert chosen(clock, 2, ids(0, 2, 3)) == [2, 0]  # passes 3
    assert chosen(clock, 1, ids(3)) == [3]


def test_lru_takes_the_oldest_in_order() -> None:
    lru = LRU(8)
    for pages in (ids(4, 5), ids(0, 1), ids(4), ids(2)):
        lru.touch(pages)
    assert chosen(lru, 5, ids(0, 1, 2, 4, 5)) == [5, 0, 1, 4, 2]
    lru.admit(ids(5))
    assert chosen(lru, 1, ids(2, 5), clean=(5,)) == [5]  # as old as 2, and clean
    assert chosen(lru, 1, ids(2, 5)) == [2]


def test_lfu_counts_and_forgets_with_the_page() -> None:
    lfu = policy_named("lfu", 8)
    lfu.admit(np.arange(4))
    for pages in (ids(0, 1), ids(0, 2), ids(0)):
        lfu.touch(pages)
    assert chosen(lfu, 4, np.arange(4)) == [3, 1, 2, 0]
    lfu.admit(ids(0))
    assert chosen(lfu, 2, np.arange(4)) == [3, 0]


def test_working_set_protects_what_the_last_accesses_used() -> None:
    policy = WorkingSet(8, window=2)
    for pages in (ids(0), ids(1), ids(2), ids(3)):
        policy.touch(pages)
    assert chosen(policy, 4, np.arange(4)) == [0, 1, 2, 3]
    assert chosen(policy, 4, np.arange(4), clean=(1, 3)) == [1, 0, 2, 3]  # among those outside, clean ones first


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
def test_victims_are_candidates_each_once(name: str, data: st.DataObject) -> None:
    policy = policy_named(name, 30)
    for pages in data.draw(st.lists(st.sets(st.integers(0, 29), min_size=1), max_size=8)):
        data.draw(st.sampled_from([policy.touch, policy.admit]))(ids(*pages))
        candidates = ids(*sorted(data.draw(st.sets(st.integers(0, 29), min_size=1))))
        clean = np.array(data.draw(st.lists(st.booleans(), min_size=len(candidates), max_size=len(candidates))), bool)
        n = data.draw(st.integers(1, len(candidates)))
        victims = policy.victims(n, candidates, clean)
        assert len(np.unique(victims)) == n and np.isin(victims, candidates).all()


@pytest.mark.parametrize("name", ["lru", "lfu", "working-set"])
def test_the_conversation_that_is_used_stays(name: str) -> None:
    w = World(GEOMETRIES["rows end with pages"], device=5, policy=name)
    a, b, c = (w.open() for _ in range(3))
    for conversation in (a, b, a, a):  # a was there first, and was used since
        assert w.bind(conversation, 0) and w.extend(conversation, 2)
        w.unbind(0)
    assert w.bind(c, 1) and w.extend(c, 12)
    assert (w.manager.table.device[w.manager.pages(a)] >= 0).all()
    assert (w.manager.table.device[w.manager.pages(b)] < 0).all()


def test_what_was_bound_for_long_was_used_until_the_end() -> None:
    w = World(GEOMETRIES["rows end with pages"], device=3, policy="lru")
    a, b, c = (w.open() for _ in range(3))
    assert w.bind(a, 0) and w.extend(a, 4) and w.bind(b, 1) and w.extend(b, 4)
    w.unbind(1)
    w.unbind(0)
    assert w.bind(c, 2) and w.extend(c, 8)
    assert w.manager.table.device[w.manager.pages(a)] >= 0


def test_a_prefix_is_used_by_whoever_is_bound_with_it_even_if_he_never_lets_go() -> None:
    w = World(GEOMETRIES["rows end with pages"], device=3, policy="lru")
    a, b, c = (w.open() for _ in range(3))
    for conversation in (a, b):
        assert w.bind(conversation, 0) and w.extend(conversation, 4)
        w.unbind(0)
    child = w.fork(a, 4)
    assert child is not None and w.bind(child, 0)
    w.free(child)
    assert w.bind(c, 2) and w.extend(c, 8)
    assert w.manager.table.device[w.manager.pages(a)] >= 0


def test_clock_spares_a_conversation_that_was_bound_since_the_hand_passed() -> None:
    w = World(GEOMETRIES["rows end with pages"], device=3, host=9)
    conversations = [w.open() for _ in range(3)]
    for c in conversations:
        assert w.bind(c, 0) and w.extend(c, 4)
        w.unbind(0)
    d = w.open()
    assert w.bind(d, 1) and w.extend(d, 1)  # all were used: the hand took the first and the chance of the others
    assert w.bind(conversations[1], 0)
    w.unbind(0)
    assert w.append(d, 4)
    device = [int(w.manager.table.device[w.manager.pages(c)[0]]) for c in conversations]
    assert [frame >= 0 for frame in device] == [False, True, False]
