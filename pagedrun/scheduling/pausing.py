"""Who gives memory up when it runs short, and when it is taken up again.

    awake   --pause: it is the cheapest, or may not be spared-->   paused   --wake: first in line, and there is room-->

What a running conversation has is never lost by that: its pages may leave, one by one as others need them, and come
back. Cheapest is whoever has the fewest copies to be made for each token that it still may be given: to pause one that
is nearly done would buy little time. A lower priority goes first.

Nobody pauses again and again. Of those awake the first in order is spared, so that somebody always gets on, and so is
who paused `PAUSES` times: it goes to the head of the line, and wakes for good, once it is the oldest or there is room
for all that is left of it and of the others. Where all are to be spared, who came last of them pauses all the same; so
nobody does more often than PAUSES + max_num_seqs times.
"""

from __future__ import annotations

from pagedrun.scheduling.sequence import Sequence
from pagedrun.slots import Slots
from pagedrun.step import Slot

#: How often a request pauses for anybody else.
PAUSES = 3
#: Requests of a better priority that may overtake another, for each slot.
PATIENCE = 8


class Pausing:
    """See the module. running: by slot, the scheduler's; exhausted: gets those for which there is no memory at all.

    moves: how often somebody paused or woke.
    """

    def __init__(self, slots: Slots, running: dict[Slot, Sequence], exhausted: list[Sequence], n_seqs: int) -> None:
        self.paused: set[Slot] = set()
        self.moves = 0
        self._slots = slots
        self._running = running
        self._exhausted = exhausted
        self._n_seqs = n_seqs

    def awake(self) -> list[Sequence]:
        """Those that are not paused, in order."""
        return sorted((s for slot, s in self._running.items() if slot not in self.paused), key=lambda s: s.place)

    def in_line(self) -> list[Slot]:
        """Paused ones, the next one first."""
        return sorted(self.paused, key=lambda slot: _in_line(self._running[slot]))

    def may_pass(self, sequence: Sequence) -> bool:
        """Whether a new one may be taken up before all those that are paused."""
        return all(s.overtaken < self._patience(s, sequence) for s in self._earlier(sequence))

    def passed_by(self, sequence: Sequence) -> None:
        """It was."""
        for s in self._earlier(sequence):
            s.overtaken += 1

    def make_room(self, slot: Slot, n_tokens: int) -> bool:
        """Room in memory, for which others have to go: what rests, then somebody who is awake."""
        sequence = self._running[slot]
        if sequence.computed + n_tokens > self._slots.max_tokens:
            self._exhausted.append(sequence)
            return False
        while slot not in self.paused:
            if self._slots.room(slot, n_tokens):
                return True
            if self._slots.forget_one():
                continue
            victim = self._victim()
            if victim is not None:
                self._pause(victim)
            elif self._slots.room(slot, n_tokens, spill=True):
                return True
            elif not (self._slots.forget_one(all_of_it=True) or self._forget_paused(slot)):
                self._exhausted.append(sequence)
                return False
        return False

    def wake(self) -> None:
        """Take up paused sequences again, in line, as long as there is room for what they have to compute."""
        for slot in self.in_line():
            alone = len(self.paused) == len(self._running)
            if not alone and not self._in_peace(slot):
                return
            while not self._take_up(slot, whole=not alone):
                if not alone:
                    return
                if self._slots.forget_one():
                    continue
                if self._wake_up(slot, spill=True):
                    break
                if not (self._slots.forget_one(all_of_it=True) or self._forget_paused(slot)):
                    self._exhausted.append(self._running[slot])
                    return
            self.paused.remove(slot)
            self.moves += 1

    # inside

    def _earlier(self, sequence: Sequence) -> list[Sequence]:
        return [s for s in map(self._running.__getitem__, self.paused) if s.turn < sequence.turn]

    def _patience(self, paused: Sequence, other: Sequence) -> int:
        return self._n_seqs * (PATIENCE if other.request.priority < paused.request.priority else 1)

    def _victim(self) -> Slot | None:
        """Who pauses; None: only one is awake."""
        first, *others = self.awake()
        if not others:
            return None
        others = [s for s in others if s.pauses < PAUSES]
        victim = min(others, key=self._cost) if others else max(first, *self.awake()[1:], key=lambda s: s.turn)
        return victim.slot

    def _cost(self, sequence: Sequence) -> tuple[bool, int, float, int]:
        assert sequence.slot is not None  # it is running
        weight = self._slots.weight(sequence.slot)
        left = sequence.uncomputed + sequence.left(self._slots.max_tokens)
        return not weight.pages, -sequence.request.priority, weight.copies / max(left, 1), -sequence.turn

    def _pause(self, slot: Slot) -> None:
        self._slots.pause(slot)
        self.paused.add(slot)
        self._running[slot].pauses += 1
        self.moves += 1

    def _in_peace(self, slot: Slot) -> bool:
        """Whether one that wakes beside others would not soon have to pause again."""
        sequence, stride = self._running[slot], self._slots.stride
        for_good = sequence.pauses >= PAUSES
        if for_good and sequence.turn == min(s.turn for s in self._running.values()):
            return True
        coming = {}
        for s in (*self.awake(), sequence):
            assert s.slot is not None  # it is running
            left = s.left(self._slots.max_tokens)
            coming[s.slot] = s.uncomputed + (left if for_good else min(left, stride))
        n_tokens = sequence.computed + coming.pop(slot)
        return self._slots.fits(n_tokens, coming, slot=slot)

    def _take_up(self, slot: Slot, *, whole: bool) -> bool:
        """Wake one sequence. `whole`: only if it would not have to stop again for want of room."""
        if not self._wake_up(slot):
            return False
        if whole and not self._slots.room(slot, self._running[slot].uncomputed):
            self._slots.pause(slot)
            return False
        return True

    def _wake_up(self, slot: Slot, *, spill: bool = False) -> bool:
        if not self._slots.wake(slot, spill=spill):
            return False
        sequence = self._running[slot]
        sequence.computed = self._slots.held(slot, sequence.computed)
        return True

    def _forget_paused(self, but: Slot) -> bool:
        """Where pages of paused sequences have nowhere to go: the last in line is computed again later.

        False when none has anything.
        """
        full = [slot for slot in self.in_line() if slot != but and self._running[slot].computed]
        if not full:
            return False
        self._slots.drop(full[-1])
        self._running[full[-1]].computed = 0
        return True


def _in_line(sequence: Sequence) -> tuple[bool, int, int]:
    spared = sequence.pauses >= PAUSES
    priority, turn = sequence.place
    return not spared, 0 if spared else priority, turn
