"""What the windows of the slots show, and what they should.

    wanted   changed at once by every decision
    there    what the store was told; the difference becomes operations when a step is about to run

Deciding back and forth between two steps costs nothing, and when the store fails in the middle, what is left of the
difference is found again the next time.

A cell is one page of one slot's window: slot * n_pages + page. It shows a frame of the device or, read only, one of
the host: directly, or through a stage that no other cell uses.
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
    """The windows of all slots, `n_pages` each. Frames and stages in flat arrays, by cell.

    first_host: frames from this number on are of the host. n_cold: how many cells are to show one of these.
    left: stages that cells are not to use any more, for `Stages` to collect.
    """

    def __init__(self, n_slots: int, n_pages: int, first_host: int) -> None:
        self.n_pages = n_pages
        self.first_host = first_host
        self.n_cold = 0
        self.left: list[int] = []
        self.stage = np.full(n_slots * n_pages, NONE, np.int64)
        self._there_stage = self.stage.copy()
        self.frame = np.full(n_slots * n_pages, NONE, np.int64)
        self.writable = np.zeros(n_slots * n_pages, bool)
        self._there: FrameIds = self.frame.copy()
        self._there_writable = self.writable.copy()
        self._cold_there = False  # whether the store may show any frame of the host
        self._touched: list[npt.NDArray[np.int64]] = []

    @property
    def there(self) -> FrameIds:
        """What the store was told that the cells show."""
        return self._there

    def shows(self, frames: FrameIds) -> Mask:
        """Which frames of the host the store may still show."""
        if not self._cold_there:
            return np.zeros(len(frames), bool)
        if self._touched and (self._there == _UNKNOWN).any():
            return np.ones(len(frames), bool)
        return np.isin(frames, self._there)

    def stage_there(self, slot: int, page: int) -> int:
        """The stage that the store was told a page is read through, or NONE."""
        return int(self._there_stage[slot * self.n_pages + page])

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

    def show_cold(self, slot: int, pages: npt.NDArray[np.int64], frames: FrameIds, stages: FrameIds) -> None:
        """The slot's window is to show frames of the host at these pages, through stages or (NONE) directly."""
        self._want(slot * self.n_pages + pages, frames, False, stages)

    def hide_cold(self, slot: int) -> None:
        """The slot's window is to show frames of the device only."""
        frames, _ = self.of(slot)
        self._want(slot * self.n_pages + np.flatnonzero(frames >= self.first_host), NONE, False)

    def replace(
        self, pages: npt.NDArray[np.int64], frames: FrameIds, others: FrameIds | int = NONE, writable: bool = False
    ) -> None:
        """Windows that show frames[i] at page pages[i], the only page at which any can, are to show others[i]."""
        table = self.frame.reshape(-1, self.n_pages)
        slots, which = np.nonzero(table[:, pages] == frames)
        others = others if isinstance(others, int) else others[which]
        self._want(slots * self.n_pages + pages[which], others, writable)

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
        stage_was, stage = self._there_stage[cells], self.stage[cells]
        other = (was != want) | (stage_was != stage)
        shown = other & (want != NONE)
        same = ~other & (want != NONE) & (self._there_writable[cells] != self.writable[cells])
        held = (was >= 0) & (pending(np.maximum(was, 0)) | np.isin(was, want[shown | same]))
        held |= (stage_was != NONE) & np.isin(stage_was, stage[shown])
        gone = other & ((want == NONE) | held | (was == _UNKNOWN))
        first = np.concatenate([cells[gone], cells[same]])
        unmapped = np.arange(len(first)) < gone.sum()
        before = Change(first, self._ops(first, unmapped))
        return before, Change(cells[shown], self._ops(cells[shown], np.zeros(shown.sum(), bool)))

    def told(self, change: Change, done: int, *, failed: bool) -> None:
        """The first `done` operations of a change were carried out, and when `failed`, the next one was not."""
        cells, unmapped = change.cells[:done], change.ops[:done, 0] == Op.UNMAP
        self._cold_there |= self.n_cold > 0
        self._there[cells] = np.where(unmapped, NONE, self.frame[cells])
        self._there_writable[cells] = ~unmapped & self.writable[cells]
        self._there_stage[cells] = np.where(unmapped, NONE, self.stage[cells])
        if failed:
            self._there[change.cells[done]] = _UNKNOWN  # and whatever stage it used is not free yet

    def settled(self) -> None:
        """All changes were carried out."""
        self._touched.clear()
        self._cold_there = self.n_cold > 0

    def _want(
        self,
        cells: npt.NDArray[np.int64],
        frames: FrameIds | int,
        writable: Mask | bool,
        stages: FrameIds | int = NONE,
    ) -> None:
        stages_were = self.stage[cells]
        changed = (self.frame[cells] != frames) | (self.writable[cells] != writable) | (stages_were != stages)
        if changed.any():
            self.n_cold -= int((self.frame[cells] >= self.first_host).sum())
            self.left += stages_were[(stages_were != NONE) & (stages_were != stages)].tolist()
            self.frame[cells] = frames
            self.writable[cells] = writable
            self.stage[cells] = stages
            self.n_cold += int((self.frame[cells] >= self.first_host).sum())
            self._touched.append(cells[changed])

    def _ops(self, cells: npt.NDArray[np.int64], unmapped: Mask) -> Ops:
        shown = np.where(self.writable[cells], Op.MAP, Op.MAP_SHARED)
        slots, pages = np.divmod(cells, self.n_pages)
        ops = rows(np.where(unmapped, Op.UNMAP, shown), slots, pages, np.where(unmapped, 0, self.frame[cells]))
        staged = ~unmapped & (self.stage[cells] != NONE)
        if staged.any():
            ops[staged] = rows(Op.MAP_STAGED, cells[staged], self.frame[cells[staged]], self.stage[cells[staged]])
        return ops
