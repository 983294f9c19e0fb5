"""What the slots hold between and during requests: the scheduler's view of KV memory, paged or not.

    choose     the slot that a request had best
    known      how many of its tokens are there for it
    trunk      which running request begins like it
    fits       whether there is room for it
    resume     it takes the slot, with as much of what was computed before as it can use
    branch     it takes the slot, with what a running request has computed
    room       before a step: space for tokens; with spill, what does not fit is read from the host at every step
    awake      whether a slot's tokens can be computed now
    held       how many tokens are still there after a pause
    expect     a paused request is going to be next: its pages may come ahead of it
    foresee    so may what a waiting one will go on with
    weight     what pausing one gives, and costs
    ready      before a step: everything is where it must be
    next_stop  where a step should end
    part_at    another request is going to branch off somewhere: a step should end there
    computed   after a step
    pause      a running request gives its place in memory up for a while; nothing is computed again
    rest       a request is done; what it computed stays for follow-ups, or goes
    drop       what a paused request computed goes: others need the room
    forget_one what rests goes: others need the room

Being short of memory is a value, False, and not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pagedrun.step import Slot

if TYPE_CHECKING:
    from pagedrun.kv import KvStats, SpillStats


@dataclass(frozen=True, slots=True)
class Trunk:
    """A running request with whose first `n` tokens a prompt begins; a branch could have `there` of them now."""

    slot: Slot
    n: int
    there: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A running request has `pages` on the device to itself; if they leave and come back, that takes `copies`."""

    pages: int
    copies: int


class Slots(Protocol):
    """See the module."""

    @property
    def stride(self) -> int:
        """Tokens that a conversation is given memory for at a time."""
        ...

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

    def known(self, tokens: Sequence[int]) -> int:
        """How many of the tokens `resume` would have, in the slot that `choose` just chose for them."""
        ...

    def trunk(self, tokens: Sequence[int], running: Mapping[Slot, Sequence[int]]) -> Trunk | None:
        """Which of these requests a prompt could branch off from, at some time; None: none, or it would not pay."""
        ...

    def branch(self, slot: Slot, tokens: Sequence[int], trunk: Trunk) -> int:
        """As `resume`, from what a running request has computed."""
        ...

    def fits(self, n_tokens: int, coming: Mapping[Slot, int], *, slot: Slot | None = None, shared: int = 0) -> bool:
        """Whether there is room for so many tokens in all, of a paused slot, or of what `choose` was just asked for.

        coming: tokens that running requests are going to need. shared: of its tokens, those that a running one has.
        """
        ...

    def weight(self, slot: Slot) -> Weight:
        """What pausing a running request gives, and costs."""
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

    def part_at(self, slot: Slot, n_tokens: int) -> None:
        """Another request is going to branch off where the slot has so many tokens."""
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

    def foresee(self, prompts: Sequence[Sequence[int]]) -> None:
        """Requests with these prompts are the next to get a slot, in this order."""
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

    def refusal(self) -> str:
        """What the system says where it does not give the memory that it may take; empty where it does."""
        ...

    def stats(self) -> KvStats | None:
        """Figures of the pages; None: there are none."""
        ...

    def spilled(self) -> SpillStats | None:
        """Of these, what is about pages of running conversations that are not on the device."""
        ...
