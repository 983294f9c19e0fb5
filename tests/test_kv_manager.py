"""Exact frames, references and operations as conversations grow and share, in worlds small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pagedrun.errors import ContextLengthError, UsageError
from pagedrun.kv import BrokenInvariant, Budget, PageGeometry, PageManager, validate
from tests.kv_store import FOUR, FakeStore
from tests.kv_world import device, four, host, refs, served

# growing


def test_frames_are_made_as_tokens_need_them_and_a_step_without_a_new_page_tells_the_store_nothing() -> None:
    w = four()
    c = served(w, 0, 3)
    assert w.store.told() == [[("CREATE", 0, 0)], [("MAP", 0, 0, 0)]]
    assert w.extend(c, 1)
    assert w.store.told() == []
    assert w.extend(c, 9)
    assert w.store.told() == [
        [("CREATE", 1, 0), ("CREATE", 2, 0), ("CREATE", 3, 0)],
        [("MAP", 0, 1, 1), ("MAP", 0, 2, 2), ("MAP", 0, 3, 3)],
    ]
    assert w.manager.length(c) == 13
    assert w.manager.table.sealed[w.manager.pages(c)].tolist() == [True, True, True, False]


def test_a_frame_that_was_used_is_cleared_before_it_is_handed_out_again() -> None:
    w = four(device=2)
    c = served(w, 0, 5)
    w.free(c)
    w.step()
    w.store.told()
    served(w, 1, 5)
    assert w.store.told() == [[("ZERO", 0), ("ZERO", 1), ("MAP", 1, 0, 0), ("MAP", 1, 1, 1)]]
    assert w.store.waits == 2  # for both: the frames that were made, and that they are clear again


def test_room_that_was_not_used_comes_back() -> None:
    w = four(device=3)
    c = served(w, 0, 2)
    assert w.append(c, 10) and device(w, c) == [0, 1, 2]
    w.manager.truncate(c, 2)
    assert device(w, c) == [0]
    assert w.manager.residency.device.available == 2


def test_more_than_a_window_is_an_error_and_more_than_the_budget_a_value() -> None:
    w = four(device=3, host=0)
    c = served(w, 0, 12)
    assert not w.append(c, 1)
    with pytest.raises(ContextLengthError) as e:
        w.manager.append(c, 13)
    assert (e.value.prompt_tokens, e.value.max_seq_len) == (25, 24)
    assert w.manager.max_tokens == 12
    assert four(device=9).manager.max_tokens == 24


def test_only_a_bound_conversation_grows_and_only_into_its_room() -> None:
    w = four()
    c = w.open()
    with pytest.raises(ValueError, match="not bound"):
        w.manager.append(c, 1)
    w.bind(c, 0)
    with pytest.raises(ValueError, match="no room for 1"):
        w.manager.commit(c, 1)
    for wrong in (-1, 1):
        with pytest.raises(ValueError, match="cannot be cut"):
            w.manager.truncate(c, wrong)
        with pytest.raises(ValueError, match="to share"):
            w.manager.fork(c, wrong)


def test_memory_comes_back_after_free() -> None:
    w = four(host=3)
    a, b = served(w, 0, 12), served(w, 1, 4)
    w.manager.write_back(3)
    w.free(a)
    assert w.manager.trim() == 6 * FOUR.frame_bytes
    stats = w.manager.stats()
    assert (stats.device.created, stats.host.created) == (1, 0)
    w.validate()
    w.store.told()
    assert w.extend(b, 4)
    assert w.store.told()[0] == [("CREATE", 2, 0)]  # a number that was used before
    w.free(b)
    w.manager.trim()
    assert not w.store.frames and w.device.used == w.host.used == 0


# sharing


def test_a_fork_shares_full_pages_and_copies_the_one_at_the_boundary() -> None:
    w = four()
    c = served(w, 0, 10)
    w.store.told()
    child = w.fork(c, 10)
    assert child is not None
    assert device(w, c) == [0, 1, 2] and device(w, child) == [0, 1, 3]
    assert refs(w, c) == [2, 2, 1] and refs(w, child) == [2, 2, 1]
    assert w.bind(child, 1)
    w.step()
    assert w.store.told() == [
        [("CREATE", 3, 0)],
        [
            ("MAP_SHARED", 0, 0, 0),
            ("MAP_SHARED", 0, 1, 1),
            ("COPY", 3, 2),
            ("MAP_SHARED", 1, 0, 0),
            ("MAP_SHARED", 1, 1, 1),
            ("MAP", 1, 2, 3),
        ],
    ]
    assert w.extend(child, 3) and w.extend(c, 3)
    w.validate()


def test_a_fork_at_the_end_of_a_page_costs_nothing() -> None:
    w = four(device=2, host=0)
    c = served(w, 0, 8)
    child = w.fork(c, 8)
    assert child is not None and device(w, child) == [0, 1]
    assert w.fork(c, 7) is None  # its boundary would need a frame
    assert w.manager.stats().shared_pages == 2


def test_many_conversations_with_one_prefix_cost_one_prefix() -> None:
    w = four(device=5 + 40)
    c = served(w, 0, 20)
    forks = [w.fork(c, 20) for _ in range(40)]
    for fork in forks:
        assert fork is not None and w.bind(fork, 1) and w.extend(fork, 1)
        w.unbind(1)
    stats = w.manager.stats()
    assert (stats.device.used, stats.pages, stats.shared_pages, stats.tokens) == (45, 45, 5, 60)
    w.validate()


def test_a_shared_page_is_copied_before_it_is_written_to() -> None:
    w = four()
    c = served(w, 0, 8)
    child = w.fork(c, 8)
    assert child is not None
    w.truncate(c, 6)
    w.store.told()
    assert w.extend(c, 1)
    assert device(w, c) == [0, 2] and device(w, child) == [0, 1]
    assert refs(w, c) == [2, 1] and refs(w, child) == [2, 1]
    assert w.store.told() == [
        [("CREATE", 2, 0)],
        [("UNMAP", 0, 1), ("MAP_SHARED", 0, 0, 0), ("COPY", 2, 1), ("MAP", 0, 1, 2)],
    ]
    assert w.bind(child, 1)
    w.step()


def test_a_page_that_nobody_shares_any_more_is_written_to_where_it_is() -> None:
    w = four()
    c = served(w, 0, 8)
    child = w.fork(c, 8)
    assert child is not None
    w.step()
    w.truncate(c, 6)
    w.free(child)
    w.store.told()
    assert w.extend(c, 1)
    assert w.store.told() == [[("MAP", 0, 1, 1)]]  # it was shown read only
    assert device(w, c) == [0, 1]


def test_what_is_written_to_again_loses_its_copy_and_waits_for_it() -> None:
    w = four()
    c = served(w, 0, 8)
    assert w.manager.write_back(2) == 2 and host(w, c) == [10, 11]
    w.truncate(c, 6)
    waits = w.store.waits
    assert w.extend(c, 1)  # the store would complain if the page were written to while it is still being copied
    assert w.store.waits == waits + 1
    assert host(w, c) == [10, -1]
    assert w.manager.residency.host.idle_frames == [11]


# the whole


def test_rows_and_pages_need_not_end_together() -> None:
    g = PageGeometry(page_bytes=24, row_bytes=10, n_stripes=2, n_pages=8, n_slots=1)
    assert [g.pages_for(n) for n in range(7)] == [0, 1, 1, 2, 2, 3, 3]
    assert [g.full_pages(n) for n in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    assert (g.frame_bytes, g.max_tokens, g.tokens_per_page) == (48, 19, 2.4)
    with pytest.raises(ValueError, match="n_slots is 0"):
        PageGeometry(page_bytes=1, row_bytes=1, n_stripes=1, n_pages=1, n_slots=0)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(UsageError) as e:
        PageManager(FOUR, FakeStore(FOUR), gpu_memory=Budget(0), swap_space=Budget(0), policy="fifo")
    assert e.value.hint == "the policies are clock, lru, lfu, working-set"


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("refs", 7, "wrong reference counts"),
        ("pins", 0, "wrong pins"),
        ("device", -1, "pages without a place"),
        ("device", 1, "in two states"),
        ("device", 9, "shows other frames"),
        ("host", 10, "0 host frames exist, and 1 are known"),
        ("index", 3, "pages of another index"),
        ("sealed", False, "wrongly sealed"),
    ],
)
def test_the_validator_sees_what_is_wrong(column: str, value: int, complaint: str) -> None:
    w = four()
    c = served(w, 0, 8)
    getattr(w.manager.table, column)[w.manager.pages(c)[0]] = value
    with pytest.raises(BrokenInvariant, match=complaint):
        validate(w.manager)


def test_the_validator_sees_windows_and_budgets() -> None:
    w = four()
    served(w, 0, 8)
    w.manager.windows.writable[1] = False
    w.manager.windows.frame[FOUR.n_pages] = 0
    with pytest.raises(BrokenInvariant, match="slot 1 shows pages of nobody"):
        validate(w.manager)
    w.manager.windows.frame[FOUR.n_pages] = -1
    w.device.used += 1
    with pytest.raises(BrokenInvariant, match="65 bytes of the device budget"):
        validate(w.manager)
    w.device.used -= 1
    validate(w.manager)
    assert np.array_equal(w.manager.windows.there[:2], [0, 1])
