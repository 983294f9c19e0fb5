"""How many answers may be asked for at once: those that run, and a queue with an end."""

from __future__ import annotations

import math
from collections.abc import Callable

from pagedrun.server.errors import ApiError, invalid, not_ready
from pagedrun.units import count

_LONGEST_WAIT_S = 120


class Gate:
    """Counts answers from when they are asked for to when the engine has ended them. For the event loop only.

    slots: answers that are computed together; max_queue: that may wait beside them.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self.slots = slots
        self.max_queue = max_queue
        self.inside = 0
        self.stopping = False
        self.on_empty: Callable[[], None] = lambda: None  # the last one has ended
        self._mean_s = 5.0  # of an answer; nobody knows before the first

    @property
    def running(self) -> int:
        """Answers that have a slot, or get one with the next step."""
        return min(self.inside, self.slots)

    @property
    def waiting(self) -> int:
        """Answers beyond that."""
        return self.inside - self.running

    def check(self) -> None:
        """Raise ApiError when one more would be refused, before work is put into it."""
        self._check(1)

    def enter(self, n: int) -> None:
        """Let `n` answers in. Raises ApiError: 429 when the queue is full, 503 when the server stops."""
        self._check(n)
        self.inside += n

    def _check(self, n: int) -> None:
        if self.stopping:
            raise not_ready("the server is stopping")
        most = self.slots + self.max_queue
        if n > most:
            raise invalid(f"{n} answers at once are asked for, and the queue holds {most}", "n")
        if self.inside + n > most:
            wait = self._mean_s * (self.waiting + n) / self.slots
            seconds = max(1, min(math.ceil(wait), _LONGEST_WAIT_S))
            raise ApiError(
                429,
                f"the queue is full: {count(self.running, 'answer')} running, {self.waiting:,} waiting. "
                f"Try again in {seconds} s.",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(seconds)},
            )

    def leave(self, n: int = 1, *, seconds: float = 0.0) -> None:
        """`n` answers have ended; one took `seconds` of a slot's time."""
        self.inside -= n
        if seconds > 0:
            self._mean_s += 0.1 * (seconds - self._mean_s)
        if not self.inside:
            self.on_empty()
