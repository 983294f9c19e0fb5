"""Which of the conversations that rest are in the way of others."""

from __future__ import annotations

from pagedrun.kv import could_be_bound, first_in_the_way
from pagedrun.kv.ids import ConversationId
from tests.kv_world import World, four, served


def rested(w: World, n: int) -> ConversationId:
    """A conversation of so many tokens, of which four fill a page, bound to no slot."""
    c = served(w, 0, n)
    w.unbind(0)
    return c


def test_whose_pages_are_others_too_is_in_nobodys_way() -> None:
    w = four(device=8, host=0)
    trunk = rested(w, 8)
    branch = w.fork(trunk, 8)
    assert branch is not None
    other = rested(w, 4)
    assert first_in_the_way(w.manager, [trunk, branch, other]) == other
    assert first_in_the_way(w.manager, [trunk, branch]) == trunk  # together with the other one
    assert w.bind(branch, 1)
    assert first_in_the_way(w.manager, [trunk]) is None
    assert first_in_the_way(w.manager, []) is None


def test_one_fits_if_what_is_idle_could_leave() -> None:
    w = four(device=5, host=8)
    a, b = rested(w, 12), rested(w, 12)
    assert could_be_bound(w.manager, a) and could_be_bound(w.manager, b)
    assert w.bind(b, 1)
    assert not could_be_bound(w.manager, a)
