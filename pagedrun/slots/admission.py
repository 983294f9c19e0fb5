"""Whether there is room for one more conversation, and what it costs to have one less for a while.

device   | pinned: being computed | idle: can leave | free |
                                  |<-- a new one may have -->|   less what running prompts are still going to need
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kv.ids import NONE, ConversationId
from pagedrun.slots.protocol import Weight

if TYPE_CHECKING:
    from pagedrun.kv import PageManager


def fits(
    manager: PageManager,
    conversation: ConversationId | None,
    n_tokens: int,
    coming: Mapping[ConversationId, int],
    *,
    shared: int = 0,
) -> bool:
    """Whether a conversation can have so many tokens on the device.

    coming: tokens that those who are bound are going to need. shared: of its tokens, those that lie in pages of others
    who are bound.
    """
    geometry, table, device = manager.geometry, manager.table, manager.residency.device
    pinned = geometry.full_pages(shared)
    if conversation is not None:
        pages = manager.pages(conversation)[: geometry.pages_for(n_tokens)]
        pinned = max(pinned, int((table.pins[pages] > 0).sum()))
    needed = geometry.pages_for(n_tokens) - pinned
    for other, n in coming.items():
        there = manager.conversations[other]
        needed += max(geometry.pages_for(there.length + n) - there.n_pages, 0)
    return needed <= device.obtainable + _can_leave(manager)


def weight(manager: PageManager, conversation: ConversationId) -> Weight:
    """What pausing a bound conversation gives, and costs."""
    table, pages = manager.table, manager.pages(conversation)
    own = pages[(table.pins[pages] == 1) & (table.device[pages] != NONE)]
    unsaved = int(((table.host[own] == NONE) & (table.disk[own] == NONE)).sum())
    return Weight(pages=len(own), copies=len(own) + unsaved)


def _can_leave(manager: PageManager) -> int:
    """How many idle pages of the device can leave it: those of conversations that rest can be forgotten, and for others
    there has to be room below.
    """
    table, residency = manager.table, manager.residency
    idle = table.resident() & ~table.pinned()
    paused = [manager.pages(c) for c in manager.active if not manager.is_bound(c)]
    if not paused or not idle.any():
        return int(idle.sum())
    theirs = np.unique(np.concatenate(paused))
    theirs = theirs[idle[theirs]]
    unsaved = int(((table.host[theirs] == NONE) & (table.disk[theirs] == NONE)).sum())
    file = residency.lower.file
    return int(idle.sum()) - max(unsaved - residency.host.obtainable - (file.n_slots - file.used), 0)
