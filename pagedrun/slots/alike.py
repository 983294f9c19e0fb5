"""Requests that begin like one that is running: they branch off from it, and what they have in common is there once.

    running    | You are a helpful cook. ... How long |          read so far: all but the last words
    waiting    | You are a helpful cook. ... What goes |         from here it reads its own

A branch is a fork of the running one's conversation, as far as that was computed; models that cannot go back have one
where a snapshot was taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pagedrun.slots.plain import common_prefix
from pagedrun.slots.protocol import Trunk

if TYPE_CHECKING:
    from pagedrun.kv import ConversationId, PageManager
    from pagedrun.slots.resting import Found, Resting
    from pagedrun.step import Slot

Running = Mapping["Slot", tuple["ConversationId", Sequence[int]]]


def find_trunk(manager: PageManager, tokens: Sequence[int], running: Running, *, can_rewind: bool) -> Trunk | None:
    """Who has most in common with a prompt, and among these who has computed most of it; None: nobody has anything."""
    best: Trunk | None = None
    for slot, (conversation, others) in running.items():
        n = min(common_prefix(tokens, others), len(tokens) - 1)  # the last one's logits are needed
        if n <= 0 or (best is not None and n < best.n):
            continue
        there = min(n, manager.length(conversation))
        if not can_rewind:
            there = manager.snapshots.last_before(conversation, there)
            n = n if manager.swap_bytes else there  # else there will be no snapshot
        if best is None or (n, there) > (best.n, best.there):
            best = Trunk(slot, n, there)
    return best


class Ahead:
    """What the next waiting requests will go on with. Each is looked up once."""

    def __init__(self, resting: Resting) -> None:
        self._resting = resting
        self._known: list[tuple[Sequence[int], Found | None]] = []

    def of(self, prompts: Sequence[Sequence[int]]) -> list[ConversationId]:
        """The conversations, of those that rest; from now on they are not the next to be forgotten."""
        self._known = [(prompt, self._look(prompt)) for prompt in prompts]
        return [found.conversation for _, found in self._known if found is not None]

    def _look(self, prompt: Sequence[int]) -> Found | None:
        for known, found in self._known:
            if known is prompt and (found is None or found.conversation in self._resting.index):
                return found
        found = self._resting.find(prompt, ())
        if found is not None:
            self._resting.index.touch(found.conversation)
        return found
