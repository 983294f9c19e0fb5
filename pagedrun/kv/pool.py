"""The frames of one tier: which exist, which are free. It makes them as they are needed, inside a budget.

    absent --create--> free --take--> owned by a page --give back--> free
              ^          |                                |            ^
              +-destroy--+                                +-> retiring-+   while a copy still uses it

Making a frame is slow (10 microseconds on the device, a millisecond for 2 MiB of pinned host memory), so that frames
which were used once are kept and handed out again. Those of the host can be ordered: the store makes them in the
background, and creating them costs little then. They are paid for when they are ordered.

    budget   | frames | ordered, of which some are there | left |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pagedrun.kv.budget import Budget
from pagedrun.kv.ids import FrameIds, Mask, Tier
from pagedrun.kv.store import FrameError, FrameStore, Op, Ops, rows


class FramePool:
    """Frames with numbers from `first` on, each of `frame_bytes`, at most as many as the budget's limit has room for.

    reserve: bytes that are left in the budget for others. ahead: how many frames `order` has the store make before they
    are needed; ordered: how many of them were paid for and not created yet. refused: what the store said when it last
    could not make a frame; empty when it never did; failing: it could not the last time it was asked.
    """

    def __init__(
        self,
        store: FrameStore,
        tier: Tier,
        budget: Budget,
        frame_bytes: int,
        *,
        first: int = 0,
        reserve: int = 0,
        ahead: int = 0,
    ) -> None:
        self.tier = tier
        self.budget = budget
        self.first = first
        self.reserve = reserve
        self.most = max(budget.limit - reserve, 0) // frame_bytes
        self.ahead = ahead
        self.created = 0
        self.ordered = 0
        self.refused = ""
        self.failing = False
        self._store = store
        self._frame_bytes = frame_bytes
        self._next = first
        self._absent: list[int] = []  # numbers below _next that no frame has
        self._free: list[int] = []
        self._retiring: list[int] = []
        self._fresh = np.zeros(self.most, bool)  # by number - first: never handed out, so still zeros

    @property
    def used(self) -> int:
        """How many frames pages own."""
        return self.created - self.available

    @property
    def available(self) -> int:
        """How many frames exist and are owned by nobody, those included that a copy still uses."""
        return len(self._free) + len(self._retiring)

    @property
    def obtainable(self) -> int:
        """How many frames `take` could answer, if the store can make what the budget allows."""
        return self.available + self.ordered + self._orderable

    @property
    def ready(self) -> int:
        """How many frames `take` could answer without the store's making any."""
        return self.available + (min(self.ordered, self._store.stocked()) if self.ordered else 0)

    @property
    def idle_frames(self) -> list[int]:
        """Numbers of the frames that can be handed out or destroyed at once."""
        return list(self._free)

    @property
    def retiring_frames(self) -> list[int]:
        """Numbers of the frames that a copy may still use."""
        return list(self._retiring)

    def take(self, n: int) -> FrameIds | None:
        """`n` frames, or None when there are not so many. Frames that a copy still uses come last."""
        self.grow(n - self.available)
        if n > self.available:
            return None
        rest = max(n - len(self._free), 0)
        taken = self._free[len(self._free) - (n - rest) :] + self._retiring[:rest]
        del self._free[len(self._free) - (n - rest) :], self._retiring[:rest]
        return np.array(taken, np.int64)

    def hand_out(self, frames: FrameIds) -> Mask:
        """Say that frames are going to be written to; answers which of them are zeros: those never handed out."""
        fresh = self._fresh[frames - self.first]
        self._fresh[frames - self.first] = False
        return fresh

    def give_back(self, frames: FrameIds, busy: Mask) -> None:
        """Return frames that nobody owns any more. `busy`: which of them a copy still uses."""
        if busy.any():
            self._retiring += frames[busy].tolist()
            frames = frames[~busy]
        self._free += frames.tolist()

    def settle(self, busy: Callable[[FrameIds], Mask]) -> None:
        """Look which of the retiring frames no copy uses any more."""
        if self._retiring:
            frames, self._retiring = np.array(self._retiring, np.int64), []
            self.give_back(frames, busy(frames))

    def grow(self, n: int) -> int:
        """Make up to `n` frames, as the budget and the store allow; answers how many."""
        n = min(n, self.obtainable - self.available)
        if n <= 0:
            return 0
        again = self._absent[len(self._absent) - min(n, len(self._absent)) :]
        numbers = [*again, *range(self._next, self._next + n - len(again))]
        done = self._apply(rows(Op.CREATE, numbers, int(self.tier)))
        self.failing = done < n
        made = numbers[:done]
        self._absent = self._absent[: len(self._absent) - len(again)] + again[done:]
        self._next += max(done - len(again), 0)
        paid = min(done, self.ordered)
        self.ordered -= paid
        self.budget.take((done - paid) * self._frame_bytes)
        self.created += done
        if done < n and self.ordered:
            self._store.stock(self.ordered)  # the store does not know how many it still owes
        self._fresh[np.array(made, np.int64) - self.first] = True
        self._free += made
        return done

    def order(self) -> None:
        """Have the store make frames ahead, up to `ahead` or as many as the budget allows."""
        n = min(self.ahead - self.ordered, self._orderable)
        if n > 0:
            self.budget.take(n * self._frame_bytes)
            self.ordered += n
            self._store.stock(self.ordered)

    def cancel(self, n: int) -> int:
        """Order up to `n` frames fewer, and take their price back; answers how many."""
        n = min(n, self.ordered)
        if n > 0:
            self.ordered -= n
            self._store.stock(self.ordered)
            self.budget.give_back(n * self._frame_bytes)
        return max(n, 0)

    def shrink(self, n: int) -> int:
        """Destroy up to `n` free frames, which must not be mapped; answers how many."""
        numbers = self._free[: max(n, 0)]
        if not numbers:
            return 0
        done = self._apply(rows(Op.DESTROY, numbers))
        del self._free[:done]
        self._absent += numbers[:done]
        self.budget.give_back(done * self._frame_bytes)
        self.created -= done
        return done

    @property
    def _orderable(self) -> int:
        left = max(self.budget.left - self.reserve, 0)
        return max(min(left // self._frame_bytes, self.most - self.created - self.ordered), 0)

    def _apply(self, ops: Ops) -> int:
        """How many were done. That memory runs out is no error here: fewer frames are."""
        try:
            self._store.apply(ops)
        except FrameError as e:
            self.refused = e.message
            return e.done
        return len(ops)
