"""Tokens that two conversations computed each for itself: their pages are there once.

conversation 1    | page 0 | page 1 | page 2 | page 3 |
conversation 2    | page 0 | page 1 | page 7 | page 8 |        it went on from a snapshot in page 1, and computed the
                                                               tokens of pages 2 and 3 again: it gets those
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kv.ids import NONE, ConversationId

if TYPE_CHECKING:
    from pagedrun.kv.manager import PageManager


def share(manager: PageManager, conversation: ConversationId, other: ConversationId, n_tokens: int) -> int:
    """Give a conversation that is not bound the pages of another one that has the same first tokens, for its own that
    hold them; answers how many. Pages of the other one that are not on the device stay its own.
    """
    c, o, table = manager.conversations[conversation], manager.conversations[other], manager.table
    if c.bound:
        return 0
    full = manager.geometry.full_pages(min(n_tokens, c.length, o.length))
    mine, theirs = c.pages[:full], o.pages[:full]
    idle = (table.refs[mine] == 1) & (table.pins[mine] == 0)
    at = np.flatnonzero((mine != theirs) & idle & (table.device[theirs] != NONE))
    if not at.size:
        return 0
    gone = mine[at]
    table.refs[theirs[at]] += 1
    table.refs[gone] -= 1
    mine[at] = theirs[at]
    if c.slot is not None:
        manager.windows.hide(c.slot, int(at[0]))
    if o.slot is not None:
        manager.windows.protect(o.slot, full)
    manager.residency.release(gone)
    return int(at.size)
