"""How a request gets a slot over pages: with what rests, or with a branch of what another one has computed.

    choose -> known, trunk, fits -> resume | branch

What `choose` found is remembered until the request has its slot, so that each is looked up once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pagedrun.slots.paged import PagedMemory
from pagedrun.slots.protocol import Trunk, Weight
from pagedrun.slots.settings import PagedSettings
from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import ConversationId, PageManager
    from pagedrun.slots.resting import Found


class PagedSlots(PagedMemory):
    """Paged KV memory for a scheduler."""

    def __init__(self, runner: Runner, manager: PageManager, settings: PagedSettings) -> None:
        from pagedrun.slots.alike import Ahead  # NumPy, late

        super().__init__(runner, manager, settings)
        self._ahead = Ahead(self.resting)
        # What `choose` found, and where the prompt parts from who begins most like it.
        self._looked: tuple[Slot, Sequence[int], Found | None, int] | None = None

    def choose(self, free: Iterable[Slot], tokens: Sequence[int]) -> Slot:
        """The one that still shows the conversation to go on with, or else the one used longest ago."""
        free = list(free)
        found, parted = self._look(tokens, free)
        slot = free[0] if found is None else self._slot_of(found.conversation, free)
        self._looked = slot, tokens, found, parted
        return slot

    def known(self, tokens: Sequence[int]) -> int:
        """What rests of them."""
        found = self._looked[2] if self._looked and self._looked[1] is tokens else None
        return 0 if found is None else found.n

    def trunk(self, tokens: Sequence[int], running: Mapping[Slot, Sequence[int]]) -> Trunk | None:
        """The one with most in common, where that is more than what rests has."""
        from pagedrun.slots.alike import find_trunk

        theirs = {slot: (self._of[slot], others) for slot, others in running.items()}
        trunk = find_trunk(self._manager, tokens, theirs, can_rewind=self._runner.can_rewind)
        return None if trunk is None or trunk.n < self.known(tokens) + self._settings.worth else trunk

    def fits(self, n_tokens: int, coming: Mapping[Slot, int], *, slot: Slot | None = None, shared: int = 0) -> bool:
        """What is idle may leave for it."""
        from pagedrun.slots.admission import fits

        found = self._looked[2] if self._looked and slot is None else None
        conversation = self._of[slot] if slot is not None else found.conversation if found else None
        theirs = {self._of[other]: n for other, n in coming.items()}
        return fits(self._manager, conversation, n_tokens, theirs, shared=shared)

    def resume(self, slot: Slot, tokens: Sequence[int]) -> int:
        """From the conversation that has most in common, as far as the model can go back: to any token, or to a
        snapshot.
        """
        found, parted = self._found(slot, tokens)
        conversation = self._manager.open() if found is None else self.resting.take(found)
        self._stops.begin(slot, conversation, tokens, parted)
        return self._begin(slot, conversation, 0 if found is None else found.n)

    def branch(self, slot: Slot, tokens: Sequence[int], trunk: Trunk) -> int:
        """From a fork of its conversation, where there is room for one."""
        child = self.resting.branch(self._of[trunk.slot], trunk.there)
        if child is None:
            return self.resume(slot, tokens)
        self._stops.begin(slot, child, tokens, trunk.n)
        return self._begin(slot, child, trunk.there)

    def weight(self, slot: Slot) -> Weight:
        """Of its conversation's pages."""
        from pagedrun.slots.admission import weight

        return weight(self._manager, self._of[slot])

    def foresee(self, prompts: Sequence[Sequence[int]]) -> None:
        """As `expect`, for what rests."""
        self._manager.expect(self._ahead.of(prompts))

    # inside

    def _look(self, tokens: Sequence[int], slots: Iterable[Slot]) -> tuple[Found | None, int]:
        """What rests and begins like a prompt. slots: of which the state may be used as it is."""
        return self.resting.look(tokens, [self._live[slot] for slot in slots if slot in self._live])

    def _found(self, slot: Slot, tokens: Sequence[int]) -> tuple[Found | None, int]:
        """What `choose` found, or else what there is now."""
        looked, self._looked = self._looked, None
        if looked is None or looked[0] != slot or looked[1] is not tokens:
            return self._look(tokens, [slot])
        found = looked[2]
        there = found is None or found.conversation in self.resting.index
        return (found, looked[3]) if there else self._look(tokens, [slot])

    def _slot_of(self, conversation: ConversationId, free: list[Slot]) -> Slot:
        """Where its state or its window still is, else the one used longest ago."""
        shown = self._manager.slot_of(conversation)
        live = (slot for slot in free if self._live.get(slot) == conversation)
        return next(live, next((slot for slot in free if slot == shown), free[0]))

    def _begin(self, slot: Slot, conversation: ConversationId, n_tokens: int) -> int:
        """A request takes a slot, with the first tokens of a conversation; answers how many it has."""
        self._of[slot] = conversation
        kept = self._keep(slot, n_tokens)
        coming = self._comes(slot)
        bound = not coming and self._bind(slot)
        while not (bound or coming) and self.resting.make_room(conversation):
            bound = self._bind(slot)
        kept = self.held(slot, kept)
        if bound or coming or self._manager.can_spill:
            return kept  # and if it is not bound, it waits: reading it is worth more than its place in the line
        self._keep(slot, 0)  # its pages are on the host, and there is no room to bring them back
        self._bind(slot)
        return 0
