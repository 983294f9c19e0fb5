"""Pages to the disk and from it.

    device  --keep: read, write--> disk      when more pages leave than the host can hold
            <--fetch: read, write--
    host    --sink: read, write--> disk      idle pages, when the host is short

The file is read and written at once and not in the background, a few pages at a time: when pages have to leave, ahead
of their turn, and when a conversation that is on disk is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from pagedrun.kv.disk import SpillFile
from pagedrun.kv.ids import NONE, FrameIds, Mask, PageIds
from pagedrun.kv.policy import Policy
from pagedrun.kv.pool import FramePool
from pagedrun.kv.store import FrameError, FrameStore
from pagedrun.kv.table import PageTable
from pagedrun.kv.transfers import Transfers
from pagedrun.kv.windows import Windows

log = logging.getLogger(__name__)


class Sinking:
    """Pages that go to the spill file, and come from there.

    pool: of the host. carry_out: hands over and waits for all copies. sunk, fetched: pages written to and read from the
    disk. lost: pages that could not be read, for the manager to drop; n_lost: so far.
    """

    def __init__(
        self,
        pool: FramePool,
        file: SpillFile,
        parts: tuple[PageTable, Transfers, Windows, Policy],
        store: FrameStore,
        carry_out: Callable[[], None],
    ) -> None:
        self.pool = pool
        self.file = file
        self.sunk = 0
        self.fetched = 0
        self.n_lost = 0
        self.lost: list[int] = []
        self._table, self._transfers, self._windows, self._policy = parts
        self._store = store
        self._carry_out = carry_out

    def sink(self, n: int) -> int:
        """Move up to `n` pages without pins from the host to the disk, by policy; answers how many went."""
        table, idle = self._table, self._idle() if self.file.n_slots else np.zeros(0, np.int64)
        clean = idle[table.disk[idle] != NONE]
        n = min(n, len(clean) + min(len(idle) - len(clean), self._slots()))
        if n <= 0:
            return 0
        victims = self._policy.victims(n, idle, table.disk[idle] != NONE)
        unsaved = victims[table.disk[victims] == NONE]
        lack = len(unsaved) - self._make_slots(len(unsaved))
        if lack > 0:
            others = np.setdiff1d(clean, victims, assume_unique=True)
            victims = np.setdiff1d(victims, unsaved[len(unsaved) - lack :], assume_unique=True)
            victims = np.append(victims, self._policy.victims(lack, others, others >= 0))
        if not self._quiet(table.host[victims]):
            return 0
        gone = np.array([page for page in victims.tolist() if self._write(page)], np.int64)  # the clean ones at least
        self.give_back(table.host[gone])
        table.host[gone] = NONE
        return len(gone)

    def keep(self, pages: PageIds) -> int:
        """Write pages of the device to the disk, the first ones first; answers how many are there then."""
        if not pages.size or not self.file.n_slots:
            return 0
        self._make_slots(len(pages))
        if not self._quiet(self._table.device[pages]):
            return 0
        return next((i for i, page in enumerate(pages.tolist()) if not self._write(page)), len(pages))

    def fetch(self, pages: PageIds, frames: FrameIds, fresh: Mask) -> bool:
        """Read pages from the disk into frames that nobody owns; False where the store failed, or some are lost.

        fresh: frames that were just made, and that the store may be clearing.
        """
        self._transfers.created(frames[fresh], pages[fresh])
        if not self._quiet(frames):
            return False
        lost = len(self.lost)
        for page, frame in zip(pages.tolist(), frames.tolist(), strict=True):
            data = self.file.read(int(self._table.disk[page]))
            if data is None:
                self.lost.append(page)
                self.n_lost += 1
                continue
            try:
                self._store.write(frame, data)
            except FrameError as e:
                log.warning("a page could not be brought from the disk: %s", e)
                return False
            self.fetched += 1
        return len(self.lost) == lost

    def forget(self, pages: PageIds) -> None:
        """Free the slots of pages that have another place, or are gone."""
        slots = self._table.disk[pages]
        if (stored := slots != NONE).any():
            self.file.free(slots[stored])
            self._table.disk[pages] = NONE

    def on_disk_only(self, pages: PageIds) -> Mask:
        """Which pages have no frame at all."""
        table = self._table
        low: Mask = (table.device[pages] == NONE) & (table.host[pages] == NONE)
        return low

    def give_back(self, frames: FrameIds) -> None:
        """Free frames of the host."""
        frames = frames[frames != NONE]
        if frames.size:
            self.pool.give_back(frames, self.busy(frames))

    def busy(self, frames: FrameIds) -> Mask:
        """Frames of the host that a copy uses, or that the store still shows, cannot be destroyed."""
        return self._transfers.busy(frames) | self._windows.shows(frames)

    def drain(self) -> bool:
        """Hand over all copies and wait for them; False where the store failed."""
        try:
            self._carry_out()
        except FrameError as e:
            log.warning("pages could not be moved: %s", e)
            return False
        return True

    # inside

    def _idle(self) -> PageIds:
        table = self._table
        return np.flatnonzero(table.copied() & ~table.resident() & ~table.pinned())

    def _slots(self) -> int:
        """How many pages the file can take, with copies gone that are not needed now."""
        return self.file.n_slots - self.file.used + len(self._spare_slots()) if self.file.willing else 0

    def _make_slots(self, n: int) -> int:
        """See that the file can take `n` pages; answers how many of them it can."""
        if not self.file.willing:
            return 0
        short = n - (self.file.n_slots - self.file.used)
        if short > 0:
            self.forget(self._spare_slots()[:short])
        return min(n, self.file.n_slots - self.file.used)

    def _spare_slots(self) -> PageIds:
        """Pages on disk that have another place, and keep it for now."""
        table = self._table
        stored = (table.disk[: table.top] != NONE) & table.pinned()
        return np.flatnonzero(stored & (table.resident() | table.copied()))

    def _write(self, page: int) -> bool:
        table = self._table
        if table.disk[page] == NONE:
            frame = table.host[page] if table.host[page] != NONE else table.device[page]
            try:
                table.disk[page] = self.file.write(self._store.read(int(frame)))
            except FrameError as e:
                log.warning("a page could not be read for the disk: %s", e)
                return False
            self.sunk += int(table.disk[page] != NONE)
        return bool(table.disk[page] != NONE)

    def _quiet(self, frames: FrameIds) -> bool:
        """No copy uses these frames, and no step that runs; False where the store failed."""
        return not self.busy(frames).any() or self.drain()
