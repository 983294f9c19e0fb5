"""Of conversations that rest, which ones take room that others need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pagedrun.kv.ids import NONE, ConversationId

if TYPE_CHECKING:
    from pagedrun.kv.manager import PageManager


def first_in_the_way(manager: PageManager, conversations: Iterable[ConversationId]) -> ConversationId | None:
    """The first one without which there would be more room on a crowded device; None: none is in the way.

    It has idle pages there; where pages cannot spill, or anywhere. If all have them in common with others, the first of
    these: it is in the way together with them.
    """
    table, shared = manager.table, None
    for conversation in conversations:
        pages = manager.conversations[conversation].pages
        idle = pages[table.pins[pages] == 0]
        idle = idle[table.device[idle] != NONE] if manager.can_spill else idle
        if (table.refs[idle] == 1).any():
            return conversation
        shared = conversation if shared is None and idle.size else shared
    return shared


def could_be_bound(manager: PageManager, conversation: ConversationId) -> bool:
    """Whether it would fit the device if all idle pages could leave it."""
    table, device = manager.table, manager.residency.device
    idle = int((table.resident() & ~table.pinned()).sum())
    pages = manager.conversations[conversation].pages
    pinned = int((table.pins[pages] > 0).sum())
    return len(pages) - pinned <= device.obtainable + idle
