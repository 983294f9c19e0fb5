"""Exact frames and operations as conversations change slots and tiers."""

from __future__ import annotations

import pytest

from tests.kv_world import device, four, host, served

# slots


def test_binding_where_the_window_still_shows_it_costs_nothing() -> None:
    w = four()
    c = served(w, 0, 10)
    w.unbind(0)
    w.store.told()
    assert w.bind(c, 0)
    w.step()
    assert w.store.told() == []


def test_a_slot_is_taken_over_page_by_page() -> None:
    w = four()
    a, b = served(w, 0, 10), served(w, 1, 4)
    w.unbind(0)
    w.unbind(1)
    w.store.told()
    assert w.bind(b, 0)
    w.step()
    assert w.store.told() == [[("UNMAP", 0, 1), ("UNMAP", 0, 2), ("UNMAP", 1, 0), ("MAP_SHARED", 0, 0, 3)]]
    assert [c and c.id for c in w.manager.shown] == [b, None, None]
    assert w.bind(a, 1)
    w.step()
    assert w.store.told() == [[("MAP_SHARED", 1, 0, 0), ("MAP_SHARED", 1, 1, 1), ("MAP", 1, 2, 2)]]


def test_one_slot_one_conversation() -> None:
    w = four()
    a, b = served(w, 0, 1), w.open()
    for c, slot in ((a, 1), (b, 0)):
        with pytest.raises(ValueError, match="is bound already, or slot"):
            w.manager.bind(c, slot)
    with pytest.raises(ValueError, match="slot 1 is not bound"):
        w.manager.unbind(1)
    w.free(a)
    assert w.bind(b, 0)


# tiers


def test_an_idle_conversation_makes_room_and_comes_back() -> None:
    w = four(device=3, host=3)
    a = served(w, 0, 10)
    w.unbind(0)
    w.store.told()
    b = served(w, 1, 4)
    assert device(w, a) == [-1, 1, 2] and host(w, a) == [3, -1, -1]
    assert w.store.told() == [
        [("CREATE", 3, 1)],
        [("UNMAP", 0, 0), ("COPY", 3, 0)],
        [("ZERO", 0), ("MAP", 1, 0, 0)],
    ]
    w.unbind(1)
    assert w.bind(a, 0)
    w.step()
    assert device(w, a) == [0, 1, 2] and host(w, a) == [3, -1, -1]  # the copy stays: the page is clean
    assert host(w, b) == [4]
    w.validate()


def test_a_clean_page_leaves_without_a_copy() -> None:
    w = four(device=2, host=2)
    a = served(w, 0, 8)
    assert w.manager.write_back(9) == 2
    assert w.manager.write_back(9) == 0
    w.unbind(0)
    w.store.wait(w.store.fence())
    w.store.told()
    served(w, 1, 8)
    assert w.store.told() == [
        [("UNMAP", 0, 0), ("UNMAP", 0, 1), ("ZERO", 0), ("ZERO", 1), ("MAP", 1, 0, 0), ("MAP", 1, 1, 1)]
    ]
    stats = w.manager.stats()
    assert (stats.evictions, stats.clean_victims, stats.dirty_victims, stats.write_backs) == (2, 2, 0, 2)
    assert host(w, a) == [2, 3]


def test_full_pages_are_written_back_those_of_idle_conversations_first() -> None:
    w = four()
    a, b = served(w, 0, 8), served(w, 1, 7)
    w.unbind(1)
    assert w.manager.write_back(2) == 2
    assert host(w, b) == [10, -1]  # its second page is not full
    assert host(w, a) == [11, -1]
    assert [w.manager.write_back(1) for _ in range(2)] == [1, 0]
    assert host(w, a) == [11, 12]


def test_being_short_of_frames_is_a_value() -> None:
    w = four(device=2, host=1)
    a, b = served(w, 0, 4), served(w, 1, 4)
    assert not w.append(a, 1)  # both are bound
    w.unbind(1)
    assert w.append(a, 1)
    w.validate()
    assert not w.append(a, 5) and not w.bind(b, 1) and w.fork(a, 3) is None
    w.free(b)
    w.validate()


def test_a_full_host_lets_clean_pages_leave_and_copies_of_bound_ones_go() -> None:
    w = four(device=3, host=1)
    a, b, c = served(w, 0, 4), served(w, 1, 4), served(w, 2, 4)
    assert w.manager.write_back(1) == 1 and host(w, a) == [3]
    w.unbind(1)
    assert w.append(c, 1)  # takes the copy's frame from a, which is bound, for b
    assert host(w, a) == [-1] and host(w, b) == [3] and device(w, b) == [-1]
    w.validate()
    w.unbind(2)
    w.unbind(0)
    assert not w.bind(b, 1)  # the only frame of the host is b's own
    w.validate()


def test_when_too_few_pages_can_be_saved_clean_ones_leave_instead() -> None:
    w = four(device=3, host=1, policy="lru")
    a, b, c = served(w, 0, 4), served(w, 1, 4), served(w, 2, 0)
    w.unbind(1)
    assert w.manager.write_back(1) == 1 and host(w, b) == [3]
    w.unbind(0)  # a was used last, but lru would send the clean b first only by that
    w.manager.residency.policy.touch(w.manager.pages(b))
    assert w.append(c, 5)
    assert device(w, a) == [0] and device(w, b) == [-1]
    w.validate()


def test_demote_and_promote_by_hand() -> None:
    w = four(device=4, host=2)
    a = served(w, 0, 12)
    assert w.manager.demote(w.manager.pages(a)) == 0  # it is bound
    w.unbind(0)
    assert w.manager.demote(w.manager.pages(a)[[0, 2, 1, 0]]) == 2  # there is room for two
    w.step()
    assert device(w, a) == [-1, -1, 2]
    w.validate()
    assert w.manager.promote(w.manager.pages(a)[:1])
    assert device(w, a) == [0, -1, 2]
    assert w.bind(a, 0)
    w.step()
    w.validate()


def test_stats_count_bytes_and_tokens() -> None:
    w = four(device=4)
    served(w, 0, 6)
    stats = w.manager.stats()
    assert (stats.device.budget, stats.device.created, stats.device.used, stats.device.n_bytes) == (4, 2, 2, 64)
    assert (stats.tokens, stats.utilisation, stats.conversations) == (6, 0.75, 1)
    assert four().manager.stats().utilisation == 1.0
