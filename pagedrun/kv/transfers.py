"""Copies between frames, which go on by themselves: what waits to be handed over, and what has not arrived yet.

    copy, zero -> batch | batch | batch      waiting; a batch begins where a copy needs one before it to have arrived
                    5       6       7        epochs, in order
    in flight:  (3, fence) (4, fence)        passed: 2

A frame remembers the epoch in which it was last read and last written: while that is above `passed`, it is busy. All
that orders copies is comparing these numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagedrun.kv.ids import FrameIds, Mask, PageIds
from pagedrun.kv.store import FrameError, FrameStore, Op, Ops, rows
from pagedrun.kv.windows import Change, Windows

_NO_OPS = np.zeros((0, 4), np.int64)
_NO_CHANGE = Change(np.zeros(0, np.int64), _NO_OPS)


@dataclass(slots=True, eq=False)
class _Batch:
    """Operations that are handed over together, once epoch `after` has passed."""

    epoch: int
    after: int = 0
    ops: list[Ops] = field(default_factory=list)


class Transfers:
    """The copies of a store with frames numbered below `n_frames`."""

    def __init__(self, store: FrameStore, n_frames: int) -> None:
        self.passed = 0
        self._store = store
        self._read = np.zeros(n_frames, np.int64)
        self._written = np.zeros(n_frames, np.int64)
        self._handed_over = 0  # the last epoch whose copies the store was given
        self._waiting: list[_Batch] = []
        self._in_flight: deque[tuple[int, int]] = deque()  # epoch, fence
        self._needed: list[tuple[int, PageIds]] = []  # what may be used in a step once an epoch has passed

    def busy(self, frames: FrameIds) -> Mask:
        """Which frames are read or written by a copy that has not arrived."""
        return self._last(frames) > self.passed

    def arriving(self, frames: FrameIds) -> Mask:
        """Which frames are written by a copy that has not arrived."""
        return self._written[frames] > self.passed

    def copy(self, to: FrameIds, from_: FrameIds, pages: PageIds | None = None) -> None:
        """Copy frames. `pages`: which may not be used in a step before it has arrived."""
        if to.size:
            epoch = self._join(max(self._last(to).max(), self._written[from_].max()), rows(Op.COPY, to, from_))
            self._read[from_] = epoch
            self._written[to] = epoch
            self._need(epoch, pages)

    def zero(self, frames: FrameIds, pages: PageIds) -> None:
        """Clear frames. `pages`: which may not be used in a step before that is done."""
        if frames.size:
            epoch = self._join(self._last(frames).max(), rows(Op.ZERO, frames))
            self._written[frames] = epoch
            self._need(epoch, pages)

    def created(self, frames: FrameIds, pages: PageIds) -> None:
        """These frames were just made, and the store may still be clearing them."""
        if frames.size:
            epoch = self._join(0, _NO_OPS)
            self._written[frames] = epoch
            self._need(epoch, pages)

    def hold(self, pages: PageIds, frames: FrameIds) -> None:
        """These pages may not be used in a step before the copies that use these frames have arrived."""
        self._need(int(self._last(frames).max()), pages)

    def submit(self, windows: Windows) -> None:
        """Hand over what waits, and what the windows are to show.

        Raises FrameError when the store fails: what was not carried out waits on, for the next time.
        """
        if not self._waiting and not windows.changed:
            return
        before = after = _NO_CHANGE
        if windows.changed:
            before, after = windows.changes(lambda frames: self._last(frames) > self._handed_over)
            self._let_go(windows.there[np.concatenate([before.cells, after.cells])])
        batches = list(self._waiting) or [_Batch(self._handed_over)]
        for batch in batches:
            last = batch is batches[-1]
            self._hand_over(batch, windows, before, after if last else _NO_CHANGE)
            before = _NO_CHANGE
            self._waiting = self._waiting[1:]
        windows.settled()

    def settle(self, pins: npt.NDArray[np.int64]) -> None:
        """Wait for the copies that a step needs: those of pages with pins. Raises FrameError."""
        if self._needed:
            self.wait(max((epoch for epoch, pages in self._needed if (pins[pages] > 0).any()), default=0))

    def drain(self) -> None:
        """Wait for all copies that were handed over. Raises FrameError."""
        self.wait(self._handed_over)

    def poll(self) -> None:
        """See how far the copies are. Does not wait."""
        while self._in_flight and self._store.passed(self._in_flight[0][1]):
            self._pass(self._in_flight.popleft()[0])

    def wait(self, epoch: int) -> None:
        """Return when an epoch has passed. Raises FrameError."""
        while self.passed < epoch:
            reached, fence = next(entry for entry in self._in_flight if entry[0] >= epoch)
            self._store.wait(fence)
            while self._in_flight and self._in_flight[0][0] <= reached:
                self._in_flight.popleft()
            self._pass(reached)

    def _pass(self, epoch: int) -> None:
        self.passed = epoch
        self._needed = [entry for entry in self._needed if entry[0] > epoch]

    def _last(self, frames: FrameIds) -> FrameIds:
        return np.maximum(self._read[frames], self._written[frames])

    def _need(self, epoch: int, pages: PageIds | None) -> None:
        if pages is not None and epoch > self.passed:
            self._needed.append((epoch, pages))

    def _join(self, conflict: int, ops: Ops) -> int:
        """Queue operations that need epoch `conflict` to have passed; answers the epoch they are in."""
        if not self._waiting:
            self._waiting.append(_Batch(self._handed_over + 1))
        batch = self._waiting[-1]
        if conflict == batch.epoch:
            batch = _Batch(batch.epoch + 1)
            self._waiting.append(batch)
        if conflict > self.passed:
            batch.after = max(batch.after, int(conflict))
        batch.ops.append(ops)
        return batch.epoch

    def _let_go(self, frames: FrameIds) -> None:
        """Wait for what is in flight to or from frames that a page shows and is not to show any more."""
        last = int(self._last(frames[frames >= 0]).max(initial=0))
        self.wait(min(last, self._handed_over))  # one that waits now may have been used before as well

    def _hand_over(self, batch: _Batch, windows: Windows, before: Change, after: Change) -> None:
        self.wait(batch.after)
        copies = np.concatenate([_NO_OPS, *batch.ops])
        ops = np.concatenate([before.ops, copies, after.ops])
        try:
            if len(ops):
                self._store.apply(ops)
        except FrameError as e:
            n_before, n_copies = len(before.ops), len(copies)
            windows.told(before, min(e.done, n_before), failed=e.done < n_before)
            batch.ops = [copies[max(e.done - n_before, 0) :]]
            if e.done >= n_before + n_copies:
                windows.told(after, e.done - n_before - n_copies, failed=True)
            # No fence stands for a part of a batch: let it arrive now.
            self._store.wait(self._store.fence())
            raise
        windows.told(before, len(before.ops), failed=False)
        windows.told(after, len(after.ops), failed=False)
        if batch.epoch > self._handed_over:
            self._handed_over = batch.epoch
            self._in_flight.append((batch.epoch, self._store.fence()))
