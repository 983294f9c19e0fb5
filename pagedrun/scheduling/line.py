"""Requests that wait for a slot, in order of priority and arrival; any number of them.

    front    the next few, which the scheduler looks at      | 3 | 5 | 8 |
    heap     all others                                      | ... |

Adding and taking cost the logarithm of how many there are, whatever happens at each step the front only.

Nobody starves: who has waited longest comes first, whatever its priority, once `patience` others were taken before it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from pagedrun.scheduling.sequence import Sequence

_place = attrgetter("place")
_FEW = 64  # that are gone already may be kept


class Line:
    """See the module. window: how many are in the front."""

    def __init__(self, *, window: int, patience: int) -> None:
        self._window = window
        self._patience = patience
        self._waiting: set[Sequence] = set()
        self._front: list[Sequence] = []
        self._heap: list[tuple[tuple[int, int], Sequence]] = []  # those that are gone too, until there are many
        self._arrived: deque[Sequence] = deque()  # likewise
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Everybody, in order of priority and arrival."""
        return iter(sorted(self._waiting, key=_place))

    def add(self, sequence: Sequence) -> None:
        """Somebody arrives."""
        sequence.turn = self._arrivals
        self._arrivals += 1
        self._waiting.add(sequence)
        self._arrived.append(sequence)
        if len(self._front) == len(self._waiting) - 1 or sequence.place < self._front[-1].place:
            insort(self._front, sequence, key=_place)
            if len(self._front) > self._window:
                self._push(self._front.pop())
        else:
            self._push(sequence)

    def front(self) -> list[Sequence]:
        """The next ones, the first one first."""
        longest = self.longest
        if longest is None or longest.overtaken < self._patience:
            return list(self._front)
        return [longest, *(s for s in self._front if s is not longest)]

    @property
    def longest(self) -> Sequence | None:
        """Who has waited longest."""
        while self._arrived and self._arrived[0] not in self._waiting:
            self._arrived.popleft()
        return self._arrived[0] if self._arrived else None

    def take(self, sequence: Sequence, followers: Iterable[Sequence] = ()) -> None:
        """It gets a slot before those followers, and before who has waited longest."""
        longest = self.longest
        for other in {*followers, *([longest] if longest else [])} - {sequence}:
            other.overtaken += 1
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self._waiting.remove(sequence)
        if sequence in self._front:
            self._front.remove(sequence)
            self._refill()
        self._tidy()

    def _push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.place, sequence))

    def _refill(self) -> None:
        while self._heap and len(self._front) < self._window:
            _, sequence = heapq.heappop(self._heap)
            if sequence in self._waiting:
                self._front.append(sequence)

    def _tidy(self) -> None:
        """Forget who is gone once these are most, so that each is looked at twice at most."""
        few = 2 * len(self._waiting) + _FEW
        if len(self._heap) > few:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
        if len(self._arrived) > few:
            self._arrived = deque(s for s in self._arrived if s in self._waiting)
