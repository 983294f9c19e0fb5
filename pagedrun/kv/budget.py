"""One account of bytes that several things are paid from.

swap_space   | frames of the host | ordered ones | snapshots | index | staging | left |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Below it swap_space pays for frames and snapshots alone: who allows nothing in RAM still wants prompts to go on from
#: what is on the device.
LEAST = 1 << 20


@dataclass(slots=True)
class Budget:
    """A hard limit in bytes."""

    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        """Bytes that nobody has taken."""
        return self.limit - self.used

    def take(self, n_bytes: int) -> bool:
        """Take bytes, or take nothing when there are not so many."""
        if n_bytes > self.left:
            return False
        self.used += n_bytes
        return True

    def give_back(self, n_bytes: int) -> None:
        """Return what was taken."""
        self.used -= n_bytes


@dataclass(slots=True)
class Account:
    """Something that grows and shrinks by itself, and is paid from a budget. make_room(n_bytes) may give bytes back.

    nbytes: what it takes; paid: of these. Where the two differ it has to become smaller, or others have to.
    """

    budget: Budget
    make_room: Callable[[int], None] = lambda n_bytes: None
    nbytes: int = 0
    paid: int = 0

    def resize(self, n_bytes: int) -> None:
        """It takes so many bytes now."""
        self.nbytes = n_bytes
        self.settle()

    def obtain(self, wanted: int, least: int) -> int:
        """Take as much of `wanted` as can be paid, half of it, a quarter...; 0 where that is less than `least`."""
        n = max(wanted, least)
        while True:
            self.resize(self.nbytes + n)
            if self.settle():
                return n
            self.give_back(n)
            if n == least:
                return 0
            n = max(n // 2, least)

    def give_back(self, n_bytes: int) -> None:
        """It takes so much less."""
        self.resize(self.nbytes - n_bytes)

    def settle(self) -> bool:
        """Pay what is owed, as far as the budget has it; whether nothing is owed any more."""
        if self.budget.limit < LEAST:
            return True
        owed = self.nbytes - self.paid
        if owed > self.budget.left:
            self.make_room(owed)
            owed = min(owed, self.budget.left)
        self.budget.take(owed)
        self.paid += owed
        return self.paid == self.nbytes
