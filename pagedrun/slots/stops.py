"""Where a snapshot is taken while a conversation is computed, for models that cannot go back.

    snapshot           interval   another prompt parted here        before the answer          it rests
    |---- at most so many ----|---------|---------------------- <|im_start|>assistant ---- answer ----|

Before the answer means before the template's opening of it: in the next prompt, where an answer stands without its
thinking, something else may follow that. It is found by the last control token of the prompt. What `pagedrun.kv` keeps
of all these is written in pagedrun/kv/snapshots.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagedrun.kv import ConversationId, Place, SnapshotStore

#: Tokens before the end of a prompt among which the template's opening of the answer is looked for.
TAIL = 32


@dataclass(slots=True)
class _Reading:
    """places: of a prompt, by position. due: the next stop; 0: to be found."""

    conversation: ConversationId
    n_prompt: int
    places: dict[int, Place]
    due: int = 0


class Stops:
    """The next stop of each slot. interval: tokens between two snapshots, at most; apart: at least, more or less.

    is_control: whether a token is one of a template's, and not of text.
    """

    def __init__(
        self, snapshots: SnapshotStore, *, interval: int, apart: int, is_control: Callable[[int], bool]
    ) -> None:
        self._snapshots = snapshots
        self._interval = interval
        self._apart = min(apart, interval)
        self._is_control = is_control
        self._slots: dict[int, _Reading] = {}

    def begin(self, slot: int, conversation: ConversationId, tokens: Sequence[int], parted: int) -> None:
        """A slot is going to compute a prompt. parted: tokens that it has in common with another one."""
        places: dict[int, Place] = {parted: "branch"} if parted else {}
        places[self._before_answer(tokens)] = "prompt"
        self._slots[slot] = _Reading(conversation, len(tokens), places)

    def add(self, slot: int, position: int) -> None:
        """Another prompt is going to branch off from it there."""
        reading = self._slots[slot]
        reading.places[position] = "branch"
        reading.due = 0

    def end(self, slot: int) -> None:
        """It is done."""
        self._slots.pop(slot, None)

    def again(self, slot: int) -> None:
        """It has other tokens than it had, fewer."""
        if slot in self._slots:
            self._slots[slot].due = 0

    def after(self, slot: int, length: int) -> int:
        """The next one."""
        reading = self._slots[slot]
        if reading.due <= length:
            reading.due = self._next(reading, length)
        return reading.due

    def place(self, slot: int, position: int) -> Place:
        """Why there is one."""
        return self._slots[slot].places.get(position, "interval")

    # inside

    def _next(self, reading: _Reading, length: int) -> int:
        last = self._snapshots.last_before(reading.conversation, length)
        regular = last + ((length - last) // self._interval + 1) * self._interval
        for position, place in sorted(reading.places.items()):
            # Right before an answer counts what the prompt's end would cost without it.
            saved = (reading.n_prompt if place == "prompt" else position) - last
            if length < position <= regular and saved > self._apart:
                return position
        return regular

    def _before_answer(self, tokens: Sequence[int]) -> int:
        """Where the template opens the answer; or before the prompt's last token, which is computed in any case."""
        last = len(tokens) - 1
        tail = range(last, max(last - TAIL, 0), -1)
        return next((i for i in tail if self._is_control(tokens[i])), last)
