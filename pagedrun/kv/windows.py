"""What the windows of the slots show, and what they should.

    wanted   changed at once by every decision
    there    what the store was told; the difference becomes operations when a step is about to run

Deciding back and forth between two steps costs nothing, and when the store fails in the middle, what is left of the
difference is found again the next time.

A cell is one page of one slot's window: slot * n_pages + page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagedrun.kv.ids import NONE, FrameIds, Mask
from pagedrun.kv.store import Op, Ops, rows

_UNKNOWN = -2  # an operation on this cell failed: it is cleared before anything else


@dataclass(frozen=True, slots=True)
class Change:
    """Operations on cells, one each."""

    cells: npt.NDArray[np.int64]
    ops: Ops


class Windows:
    """The windows of all slots, `n_pages` each. Frames in two flat arrays, by cell."""

    def __init__(self, n_slots: int, n_pages: int) -> None:
        self.n_pages = n_pages
        self.frame = np.full(n_slots * n_pages, NONE, np.int64)
        self.writable = np.zeros(n_slots * n_pages, bool)
        self._there: FrameIds = self.frame.copy()
        self._there_writable = self.writable.copy()
        self._touched: list[npt.NDArray[np.int64]] = []

    @property
    def there(self) -> FrameIds:
        """What the store was told that the cells show."""
        return self._there

    @property
    def changed(self) -> bool:
        """Whether the store may have to be told something."""
        return bool(self._touched)

    def of(self, slot: int) -> tuple[FrameIds, Mask]:
        """Views of a slot's window: frames, and which of them are writable."""
        row = slice(slot * self.n_pages, (slot + 1) * self.n_pages)
        return self.frame[row], self.writable[row]

    def show(self, slot: int, first: int, frames: FrameIds, writable: Mask | bool) -> None:
        """From page `first` on the slot's window is to show these frames."""
        begin = slot * self.n_pages + first
        self._want(np.arange(begin, begin + len(frames)), frames, writable)

    def hide(self, slot: int, first: int = 0) -> None:
        """From page `first` on the slot's window is to show nothing."""
        frames, _ = self.of(slot)
        shown = np.flatnonzero(frames[first:] != NONE) + first
        self._want(slot * self.n_pages + shown, NONE, False)

    def hide_frames(self, pages: npt.NDArray[np.int64], frames: FrameIds) -> None:
        """No window is to show frames[i] at page pages[i] any more: the only page at which any can."""
        table = self.frame.reshape(-1, self.n_pages)
        slots, which = np.nonzero(table[:, pages] == frames)
        self._want(slots * self.n_pages + pages[which], NONE, False)

    def protect(self, slot: int, end: int) -> None:
        """The pages before `end` of a slot's window are to be read only."""
        _, writable = self.of(slot)
        cells = slot * self.n_pages + np.flatnonzero(writable[:end])
        self._want(cells, self.frame[cells], False)

    def changes(self, pending: Callable[[FrameIds], Mask]) -> tuple[Change, Change]:
        """What to tell the store, before and after the copies of the same step.

        `pending`: which frames these copies use. A page that shows one of them and is to show another lets it go
        before, and so does one whose frame is to be shown elsewhere.
        """
        cells = np.unique(np.concatenate(self._touched))
        was, want = self._there[cells], self.frame[cells]
        other = was != want
        shown = other & (want != NONE)
        same = ~other & (want != NONE) & (self._there_writable[cells] != self.writable[cells])
        held = (was >= 0) & (pending(np.maximum(was, 0)) | np.isin(was, want[shown | same]))
        gone = other & ((want == NONE) | held | (was == _UNKNOWN))
        first = np.concatenate([cells[gone], cells[same]])
        unmapped = np.arange(len(first)) < gone.sum()
        before = Change(first, self._ops(first, unmapped))
        return before, Change(cells[shown], self._ops(cells[shown], np.zeros(shown.sum(), bool)))

    def told(self, change: Change, done: int, *, failed: bool) -> None:
        """The first `done` operations of a change were carried out, and when `failed`, the next one was not."""
        cells, unmapped = change.cells[:done], change.ops[:done, 0] == Op.UNMAP
        self._there[cells] = np.where(unmapped, NONE, self.frame[cells])
        self._there_writable[cells] = ~unmapped & self.writable[cells]
        if failed:
            self._there[change.cells[done]] = _UNKNOWN

    def settled(self) -> None:
        """All changes were carried out."""
        self._touched.clear()

    def _want(self, cells: npt.NDArray[np.int64], frames: FrameIds | int, writable: Mask | bool) -> None:
        changed = (self.frame[cells] != frames) | (self.writable[cells] != writable)
        if changed.any():
            self.frame[cells] = frames
            self.writable[cells] = writable
            self._touched.append(cells[changed])

    def _ops(self, cells: npt.NDArray[np.int64], unmapped: Mask) -> Ops:
        shown = np.where(self.writable[cells], Op.MAP, Op.MAP_SHARED)
        slots, pages = np.divmod(cells, self.n_pages)
        return rows(np.where(unmapped, Op.UNMAP, shown), slots, pages, np.where(unmapped, 0, self.frame[cells]))
