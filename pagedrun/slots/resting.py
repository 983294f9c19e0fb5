"""Conversations that rest: any number of them, without slots, found by what they begin with.

    a prompt goes on from (nearly) the end      the conversation is taken up again
    a prompt branches off earlier               a fork of it is taken up, and it rests on: the trunk of two branches
    nobody begins like the prompt               a new conversation

Where memory is short they are forgotten, the one that was used longest ago first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import islice

from pagedrun.kv import ConversationId, PageManager, PrefixCache, could_be_bound, first_in_the_way, share

#: Conversations that are looked at for a prompt; more than one only for models that cannot go back, as the one that has
#: most in common may not have kept a state there.
LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation whose first `n` tokens are a prompt's. goes_on: where it ends, or nearly, the prompt goes on."""

    conversation: ConversationId
    n: int
    goes_on: bool


class Resting:
    """The conversations of a manager that rest.

    worth: tokens that are worth being kept: a prompt that has fewer in common with a conversation begins anew, and who
    branches off by fewer before its end takes it over. rested: is told who came to rest. spare: asked first where
    memory is short: gives back what is used for work that can wait; answers whether there was any.
    """

    def __init__(self, manager: PageManager, *, can_rewind: bool, worth: int) -> None:
        self.index = PrefixCache(manager.index)
        self.rested: Callable[[ConversationId], None] = lambda conversation: None
        self.spare: Callable[[], bool] = lambda: False
        self._manager = manager
        self._can_rewind = can_rewind
        self._worth = max(worth, 1)

    def find(self, tokens: Sequence[int], live: Container[ConversationId]) -> Found | None:
        """Who saves a prompt most. The prompt's last token is to be computed in any case: its logits are needed.

        live: conversations of which a slot still has the state.
        """
        return self.look(tokens, live)[0]

    def look(self, tokens: Sequence[int], live: Container[ConversationId]) -> tuple[Found | None, int]:
        """As `find`; and how many tokens it has in common with who begins most like it, without its last one."""
        best: Found | None = None
        most = 0
        for conversation, common in islice(self.index.alike(tokens), LOOKED_AT):
            most = max(most, min(common, len(tokens) - 1))
            if best is not None and common <= best.n:
                break
            goes_on = common > self.index.length(conversation) - self._worth
            n = self._usable(conversation, min(common, len(tokens) - 1), live)
            if n > (best.n if best else 0) and (goes_on or n >= self._worth):
                best = Found(conversation, n, goes_on)
        return best, most

    def take(self, found: Found) -> ConversationId:
        """The conversation to go on with, or a fork of it. Where there is no room for a fork it does not rest on."""
        child = None if found.goes_on else self._fork(found)
        if child is not None:
            self.index.touch(found.conversation)
            return child
        self.index.remove(found.conversation)
        self._manager.rouse(found.conversation)
        return found.conversation

    def branch(self, conversation: ConversationId, n_tokens: int) -> ConversationId | None:
        """A fork of one that does not rest, for which some that do may have to go; None: there is no room."""
        return self._fork(Found(conversation, n_tokens, goes_on=False))

    def add(self, conversation: ConversationId, tokens: Sequence[int]) -> None:
        """A conversation with these tokens rests from now on. Those go of which it has everything."""
        if not self._can_rewind and (found := self.index.find(tokens)):
            share(self._manager, conversation, *found)  # what it went on from was less than that
        for other in self.index.covered(tokens):
            if self._adds_nothing(other, conversation, len(tokens)):
                self._forget(other)
        self.index.add(conversation, tokens)
        self._manager.lay_down(conversation)
        while not self._manager.index.settle() and self.forget_one(all_of_it=True):
            pass  # swap_space has no room for what finds them
        if conversation in self.index:
            self.rested(conversation)

    def forget_one(self, *, all_of_it: bool = False, but: ConversationId | None = None) -> bool:
        """Forget the oldest one whose going makes room on the device, if any does. all_of_it: just the oldest one."""
        manager = self._manager
        if not all_of_it and not manager.is_crowded:
            return False
        if self.spare():
            return True
        others = (c for c in self.index if c != but)
        victim = next(others, None) if all_of_it else first_in_the_way(manager, others)
        if victim is None:
            return False
        self._forget(victim)
        return True

    def make_room(self, conversation: ConversationId) -> bool:
        """Forget one for an active conversation that could not be bound, unless even all of them would not help."""
        return could_be_bound(self._manager, conversation) and self.forget_one()

    # inside

    def _usable(self, conversation: ConversationId, common: int, live: Container[ConversationId]) -> int:
        """How many of the tokens in common a request can go on from."""
        length = self._manager.length(conversation)  # the disk may have lost the end
        n = min(common, length)
        if self._can_rewind or (n == self.index.length(conversation) and conversation in live):
            return n
        return self._manager.snapshots.last_before(conversation, n)

    def _adds_nothing(self, other: ConversationId, conversation: ConversationId, n_tokens: int) -> bool:
        """Whether one that another, with so many tokens, continues is of no use beside it."""
        if self._can_rewind or self.index.length(other) == n_tokens:
            return True
        present = {s.position for s in self._manager.snapshots.of(conversation)}
        return all(s.position in present for s in self._manager.snapshots.of(other))

    def _fork(self, found: Found) -> ConversationId | None:
        manager, trunk = self._manager, found.conversation
        while True:
            length = manager.length(trunk)
            child = manager.fork(trunk, min(found.n, length))
            if child is not None:
                return child
            if manager.length(trunk) == length and not self.forget_one(but=trunk):
                return None

    def _forget(self, conversation: ConversationId) -> None:
        self.index.remove(conversation)
        self._manager.free(conversation)
