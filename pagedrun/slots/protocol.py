"""What the slots hold between and during requests: the scheduler's view of KV memory, paged or not.

    choose     the slot that a request had best
    resume     a request takes a slot, with as much of what was computed before as it can use
    room       before a step: space for tokens; with spill, what does not fit is read from the host at every step
    awake      whether a slot's tokens can be computed now
    held       how many tokens are still there after a pause
    expect     a paused request is going to be next: its pages may come ahead of it
    ready      before a step: everything is where it must be
    next_stop  where a step should end
    computed   after a step
    pause      a running request gives its place in memory up for a while; nothing is computed again
    rest       a request is done; what it computed stays for follow-ups, or goes
    drop       what a paused request computed goes: others need the room
    forget_one what rests goes: others need the room

Being short of memory is a value, False, and not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from pagedrun.step import Slot

if TYPE_CHECKING:
    from pagedrun.kv import KvStats


class Slots(Protocol):
    """See the module."""

    @property
    def max_tokens(self) -> int:
        """How long a conversation can be, with all memory to itself."""
        ...

    def choose(self, free: Iterable[Slot], tokens: Sequence[int]) -> Slot:
        """The best of these slots, least recently used first and at least one, for a request with this prompt."""
        ...

    def resume(self, slot: Slot, tokens: Sequence[int]) -> int:
        """Have the first tokens of a prompt in a free slot, as many as are known, and never the last; returns how many.

        Without room the slot is as if it were paused.
        """
        ...

    def awake(self, slot: Slot) -> bool:
        """Whether the slot is not paused."""
        ...

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """Make room for that many tokens more. spill: at the price of slower steps."""
        ...

    def ready(self) -> None:
        """Wait until the step can run. Raises EngineError."""
        ...

    def computed(self, slot: Slot, n_tokens: int) -> None:
        """The step has run, and the slot holds `n_tokens` more."""
        ...

    def next_stop(self, slot: Slot, length: int) -> int | None:
        """The length at which a step should end, as what is there then is kept to come back to; None: none."""
        ...

    def remember(self, slot: Slot) -> None:
        """This is a place to come back to, though no stop: keep what is needed to go on from here."""
        ...

    def pause(self, slot: Slot) -> None:
        """Others may have the memory. `wake` brings everything back."""
        ...

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Take a paused slot up again; False while there is no room. spill: at the price of slower steps."""
        ...

    def held(self, slot: Slot, n_tokens: int) -> int:
        """How many of the tokens that a slot held when it paused it holds now that it is awake."""
        ...

    def expect(self, slots: Sequence[Slot]) -> None:
        """These paused slots are the next to be taken up, in this order."""
        ...

    def rest(self, slot: Slot, tokens: Sequence[int], *, keep: bool) -> None:
        """The request is done, and these tokens were computed. keep: they may serve others."""
        ...

    def drop(self, slot: Slot) -> None:
        """Forget what a paused request computed; it keeps its slot."""
        ...

    def forget_one(self, *, all_of_it: bool = False) -> bool:
        """Forget the oldest of what rests whose end gives others room; False: there is none.

        all_of_it: also what is only in the way of pages that spill.
        """
        ...

    def stats(self) -> KvStats | None:
        """Figures of the pages; None: there are none."""
        ...
