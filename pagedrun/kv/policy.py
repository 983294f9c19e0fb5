"""Which pages leave the device when others need the room.

    clock     second chance: a page that was used since the hand last passed is passed over once    (the default)
    lru       the pages that were not used for the longest time
    lfu       the pages that were used the least often
    working-set   pages outside the working set, which is what the last accesses used; then the rest as lru

An access is a conversation being bound to a slot or let go: it uses all of its pages, since attention reads them all.
Among equals a clean page is preferred: it goes without a copy.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pagedrun.errors import UsageError
from pagedrun.kv.ids import Mask, PageIds

WORKING_SET = 64  # accesses: a few for each of the sequences that are usually served at once


class Policy(Protocol):
    """What is remembered of pages. Numbers of pages are used again: `admit` forgets the former page."""

    name: str

    def admit(self, pages: PageIds) -> None:
        """These pages are new, and being used."""
        ...

    def touch(self, pages: PageIds) -> None:
        """An access: these pages are being used."""
        ...

    def victims(self, n: int, candidates: PageIds, clean: Mask) -> PageIds:
        """`n` of the candidates (ascending, `n` or more), those to go first at the front. clean[i]: candidates[i]."""
        ...


class Clock:
    """Second chance with reference and dirty bits, in classes as in the enhanced form of the algorithm.

    The hand looks for pages that are neither used nor dirty; in a second round for pages that are not used, taking
    the reference bit of those it passes; and so on. F. J. Corbató, "A paging experiment with the Multics system", 1968;
    A. Silberschatz et al., "Operating System Concepts", enhanced second-chance algorithm.
    """

    name = "clock"

    def __init__(self, n_pages: int) -> None:
        self._referenced = np.zeros(n_pages, bool)
        self._hand = 0

    def admit(self, pages: PageIds) -> None:
        """Set the reference bit."""
        self._referenced[pages] = True

    def touch(self, pages: PageIds) -> None:
        """Set the reference bit."""
        self._referenced[pages] = True

    def victims(self, n: int, candidates: PageIds, clean: Mask) -> PageIds:
        """The pages the hand stops at."""
        start = int(np.searchsorted(candidates, self._hand))
        pages = np.roll(candidates, -start)
        classes = 2 * self._referenced[pages] + ~np.roll(clean, -start)
        order = np.argsort(classes, kind="stable")[:n]
        last = order[-1]
        if classes[last] == 1:
            self._referenced[pages[: last + 1]] = False
        elif classes[last] > 1:
            self._referenced[pages] = False
        self._hand = int(pages[last]) + 1
        return pages[order]


class LRU:
    """The least recently used pages; of one conversation, its first ones."""

    name = "lru"

    def __init__(self, n_pages: int) -> None:
        self._used = np.zeros(n_pages, np.int64)
        self._now = 0

    def admit(self, pages: PageIds) -> None:
        """Used now, by an access that goes on."""
        self._used[pages] = self._now

    def touch(self, pages: PageIds) -> None:
        """Used now."""
        self._now += 1
        self._used[pages] = self._now

    def victims(self, n: int, candidates: PageIds, clean: Mask) -> PageIds:
        """Those used the longest ago."""
        return candidates[np.lexsort((~clean, self._used[candidates]))[:n]]


class LFU(LRU):
    """The least frequently used pages; of equals, the least recently used."""

    name = "lfu"

    def __init__(self, n_pages: int) -> None:
        super().__init__(n_pages)
        self._count = np.zeros(n_pages, np.int64)

    def admit(self, pages: PageIds) -> None:
        """Used once."""
        super().admit(pages)
        self._count[pages] = 1

    def touch(self, pages: PageIds) -> None:
        """Used once more."""
        super().touch(pages)
        self._count[pages] += 1

    def victims(self, n: int, candidates: PageIds, clean: Mask) -> PageIds:
        """Those used the least often."""
        keys = (~clean, self._used[candidates], self._count[candidates])
        return candidates[np.lexsort(keys)[:n]]


class WorkingSet(LRU):
    """Pages that the last `window` accesses did not use, clean ones first; then the least recently used.

    P. J. Denning, "The working set model for program behavior", 1968, with accesses for time.
    """

    name = "working-set"

    def __init__(self, n_pages: int, window: int = WORKING_SET) -> None:
        super().__init__(n_pages)
        self._window = window

    def victims(self, n: int, candidates: PageIds, clean: Mask) -> PageIds:
        """Those outside the working set first."""
        used: npt.NDArray[np.int64] = self._used[candidates]
        inside = used > self._now - self._window
        keys = (used, ~clean, np.where(inside, used, 0))
        return candidates[np.lexsort(keys)[:n]]


POLICIES: dict[str, type[Clock | LRU | LFU | WorkingSet]] = {
    policy.name: policy for policy in (Clock, LRU, LFU, WorkingSet)
}


def policy_named(name: str, n_pages: int) -> Policy:
    """A policy over pages numbered below `n_pages`. Raises UsageError."""
    try:
        return POLICIES[name](n_pages)
    except KeyError:
        raise UsageError(f"there is no policy {name!r}", hint=f"the policies are {', '.join(POLICIES)}") from None
