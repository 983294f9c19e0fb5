"""The tiers below the device: pages in frames of the host, and below it in the spill file.

    device  --save: copy--> host  --sink--> disk
                                  <--lift--

A page may be in all three at the same time; then it leaves each but the last without a copy.
"""

from __future__ import annotations

import numpy as np

from pagedrun.kv.ids import NONE, PageIds
from pagedrun.kv.sinking import Sinking

SINK = 4  # pages that go to the disk together, so that this is rare


class Lower(Sinking):
    """Room on the host, for which copies go and pages sink. may_save: there may be full pages without a copy."""

    may_save = False

    def room(self, n: int) -> int:
        """How many of `n` pages of the device can be saved. Copies of pages that cannot leave now do not count."""
        self.pool.grow(n - self.pool.available)
        if n <= self.pool.available:
            return n
        below = int((self._table.disk[self._idle()] != NONE).sum()) + self._slots() if self.file.n_slots else 0
        return min(n, self.pool.available + len(self._pinned_copies()) + below)

    def secure(self, n: int) -> int:
        """See that `n` pages can be copied to the host, for which others sink; answers how many can.

        `keep` is for the rest.
        """
        self.pool.grow(n - self.pool.available)
        if n <= self.pool.available:
            return n
        copies = len(self._pinned_copies())
        self._sink_for(n - self.pool.available - copies)
        return min(n, self.pool.available + copies)

    def savable(self, pages: PageIds) -> int:
        """How many of the pages with pins, from the first on, can be on the host alone, for which others sink."""
        unsaved = self._table.host[pages] == NONE
        n = int(unsaved.sum())
        self.pool.grow(n - self.pool.available)
        copies = len(self._pinned_copies())
        self._sink_for(n - self.pool.available - (copies - int((~unsaved).sum())))
        room = self.pool.available + copies - np.cumsum(~unsaved)
        return int((np.cumsum(unsaved) <= room).cumprod().sum())

    def capacity(self, pages: PageIds) -> int:
        """How many of these pages the host can hold, with all others gone that can go."""
        table = self._table
        copies = np.setdiff1d(np.flatnonzero(table.resident() & table.copied()), pages, assume_unique=True)
        idle = np.setdiff1d(self._idle(), pages, assume_unique=True) if self.file.n_slots else self._idle()[:0]
        clean = int((table.disk[idle] != NONE).sum())
        sinking = clean + min(len(idle) - clean, self._slots())
        return self.pool.obtainable + int((table.host[pages] != NONE).sum()) + len(copies) + sinking

    def save(self, pages: PageIds, but: PageIds | None = None) -> None:
        """Copy pages to the host. There is room, if need be that of copies other than those of pages `but`."""
        if not pages.size:
            return
        short = len(pages) - self.pool.available
        if short > 0:
            copies = self._pinned_copies()
            copies = copies if but is None else np.setdiff1d(copies, but, assume_unique=True)
            self.drop_copies(copies[:short])
        frames = self.pool.take(len(pages))
        assert frames is not None, "room was promised"
        self.pool.hand_out(frames)
        self._transfers.copy(frames, self._table.device[pages])
        self._table.host[pages] = frames

    def write_back(self, most: int) -> int:
        """Copy up to `most` full pages to the host, those first that may have to leave soon; answers how many.

        A step is waiting: only frames are used that are there, or that the store has made ahead.
        """
        if most:
            self.pool.order()
        most = min(most, self.pool.ready) if self.may_save else 0
        if not most:
            return 0
        table = self._table
        dirty = np.flatnonzero(table.sealed[: table.top] & table.resident() & ~table.copied())
        dirty = dirty[np.argsort(table.pins[dirty] > 0, kind="stable")]
        self.pool.grow(min(most, len(dirty)) - self.pool.available)
        pages = dirty[: min(most, self.pool.available)]
        # Where the store cannot make frames it is not asked at every step, but when there are more full pages.
        self.may_save = len(dirty) > len(pages) >= most
        self.save(pages)
        return len(pages)

    def drop_copies(self, pages: PageIds) -> None:
        """Free the frames of the host of pages that are on the device."""
        self.give_back(self._table.host[pages])
        self._table.host[pages] = NONE
        self.may_save = True

    def drop_all(self, pages: PageIds) -> None:
        """Pages are on the device only, from now on, or gone."""
        self.drop_copies(pages)
        self.forget(pages)

    def spare(self, n: int) -> int:
        """Make up to `n` frames of the host free, at the cost of copies of pages that are on the device, or by sinking.

        They are idle, so that the pool can destroy them. Answers how many are.
        """
        short = n - len(self.pool.idle_frames)
        if short > 0:
            table = self._table
            copied = np.flatnonzero(table.resident() & table.copied())
            copied = copied[~self.busy(table.host[copied])]
            self.drop_copies(copied[np.argsort(table.pins[copied] == 0, kind="stable")][:short])
            self._sink_for(n - len(self.pool.idle_frames))
        return min(n, len(self.pool.idle_frames))

    def lift(self, pages: PageIds, *, wait: bool = True) -> bool:
        """Bring those of the pages that have no frame to the host. False where there is no room, or some are lost.

        wait: for copies that use the room; without it, as many come as there is room for now.
        """
        pages = pages[self.on_disk_only(pages)]
        self.pool.grow(len(pages) - self.pool.available)
        n = self.spare(len(pages))
        if n < len(pages) and wait:
            n = self.spare(len(pages)) if self.drain() else 0
        if n < len(pages) and wait:
            return False
        return self._lift(pages[:n])

    # inside

    def _lift(self, pages: PageIds) -> bool:
        frames = self.pool.take(len(pages))
        assert frames is not None, "they are free"
        if not self.fetch(pages, frames, self.pool.hand_out(frames)):
            self.give_back(frames)
            return False
        self._table.host[pages] = frames
        self.forget(pages[~self._table.sealed[pages]])
        self._policy.admit(pages)  # or they would sink before they were used
        return True

    def _sink_for(self, short: int) -> None:
        if short > 0:
            self.sink(max(short, SINK))

    def _pinned_copies(self) -> PageIds:
        table = self._table
        return np.flatnonzero(table.resident() & table.pinned() & table.copied())
