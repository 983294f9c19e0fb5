"""Requests that begin alike at the same time: the first one reads what they have in common, and the others wait for it.

    leader      | system prompt, 2,000 tokens | question |        running, 700 read
    follower    | system prompt, 2,000 tokens | another  |        waits until 2,000 are, and branches off there

A follower waits if that saves more than a chunk or a page, and as long as its leader gets on and not too many have
overtaken it. It has no slot in the meantime.
"""

from __future__ import annotations

from pagedrun.scheduling.pausing import Pausing
from pagedrun.scheduling.sequence import Sequence
from pagedrun.scheduling.stall import Chunks
from pagedrun.slots import Slots
from pagedrun.slots.protocol import Trunk
from pagedrun.step import Slot


class Following:
    """See the module. running: by slot, the scheduler's; most: how many may overtake a follower."""

    def __init__(
        self, slots: Slots, running: dict[Slot, Sequence], pausing: Pausing, chunks: Chunks, most: int
    ) -> None:
        self._slots = slots
        self._running = running
        self._pausing = pausing
        self._chunks = chunks
        self._most = most
        self._leaders: dict[Sequence, tuple[Sequence, int]] = {}

    def waits(self, sequence: Sequence) -> bool:
        """Whether its leader still has to compute something for it."""
        if sequence not in self._leaders:
            return False
        if sequence.overtaken < self._most and self._gets_on(*self._leaders[sequence]):
            return True
        self.forget(sequence)
        return False

    def begins(self, sequence: Sequence, trunk: Trunk | None) -> bool:
        """Whether it waits from now on, for the one that it would branch off from."""
        if trunk is None or sequence.overtaken >= self._most:
            return False
        leader = self._running[trunk.slot]
        known = max(trunk.there, self._slots.known(sequence.tokens))
        if trunk.n - known <= min(self._chunks.size, self._slots.stride) or not self._gets_on(leader, trunk.n):
            return False
        self._slots.part_at(trunk.slot, trunk.n)
        self._leaders[sequence] = leader, trunk.n
        return True

    def forget(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self._leaders.pop(sequence, None)

    def _gets_on(self, leader: Sequence, n_tokens: int) -> bool:
        """Whether a leader is on its way to so many tokens."""
        slot = leader.slot
        return slot is not None and slot not in self._pausing.paused and leader.computed < n_tokens
