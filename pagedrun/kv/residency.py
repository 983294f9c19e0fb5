"""Where pages are: moving them between the tiers, and finding room.

device  --demote: copy, if it has none--> host        a clean page just leaves
        <--promote: copy; the host's stays--
        --write back: copy, and it stays--> host      so that it is clean when its turn comes
"""

from __future__ import annotations

import numpy as np

from pagedrun.kv.ids import NONE, FrameIds, Mask, PageIds
from pagedrun.kv.policy import Policy
from pagedrun.kv.pool import FramePool
from pagedrun.kv.table import PageTable
from pagedrun.kv.transfers import Transfers
from pagedrun.kv.windows import Windows


class Residency:
    """Pages in frames of two tiers. Decides what leaves the device when room is needed.

    clean_victims, dirty_victims: pages that left the device without and with a copy. write_backs: pages copied early.
    wasted: pages that were brought to the device ahead of time and left it without having been used.
    """

    def __init__(
        self,
        table: PageTable,
        pools: tuple[FramePool, FramePool],
        transfers: Transfers,
        windows: Windows,
        policy: Policy,
    ) -> None:
        self.device, self.host = pools
        self.policy = policy
        self.clean_victims = 0
        self.dirty_victims = 0
        self.write_backs = 0
        self.wasted = 0
        self._table = table
        self._transfers = transfers
        self._windows = windows
        self._may_write_back = False

    # room

    def obtain(self, n: int) -> FrameIds | None:
        """`n` frames of the device, for which pages without pins may have to leave; None when that is not enough."""
        frames = self.device.take(n)
        if frames is None and self._evict(n - self.device.available):
            frames = self.device.take(n)
        return frames

    def place(self, indices: PageIds, frames: FrameIds) -> PageIds:
        """New pages in these frames of the device, of zeros."""
        pages = self._table.add(indices)
        self._table.device[pages] = frames
        fresh = self.device.hand_out(frames)
        self._transfers.created(frames[fresh], pages[fresh])
        self._transfers.zero(frames[~fresh], pages[~fresh])
        self.policy.admit(pages)
        return pages

    def place_copy(self, page: int, frames: FrameIds) -> PageIds:
        """A new page with the contents of another, in this one frame of the device."""
        table = self._table
        source = table.device[page] if table.device[page] != NONE else table.host[page]
        copy = table.add(table.index[[page]])
        table.device[copy] = frames
        self.device.hand_out(frames)
        self._transfers.copy(frames, np.array([source]), np.append(copy, page))
        self.policy.admit(copy)
        return copy

    def release(self, pages: PageIds) -> None:
        """These pages are gone: their frames are free. No window shows them any more."""
        table = self._table
        self._give_back(self.device, table.device[pages])
        self._give_back(self.host, table.host[pages])
        self.wasted += int(table.ahead[pages].sum())
        table.remove(pages)

    # moves

    def promote(self, pages: PageIds) -> bool:
        """Bring pages (each once) to the device. False, and nothing is moved, when frames are short."""
        table = self._table
        missing = pages[table.device[pages] == NONE]
        if not missing.size:
            return True
        table.pins[pages] += 1  # those that are there must not make room for the others
        frames = self.obtain(len(missing))
        table.pins[pages] -= 1
        if frames is None:
            return False
        self.arrive(missing, frames)
        return True

    def arrive(self, missing: PageIds, frames: FrameIds) -> None:
        """Bring pages that are on the host alone to these frames."""
        table = self._table
        self.device.hand_out(frames)
        self._transfers.copy(frames, table.host[missing], missing)
        table.device[missing] = frames
        if self._windows.n_cold:
            self._windows.replace(table.index[missing], table.host[missing], frames)
        self.drop_copies(missing[~table.sealed[missing]])
        self.policy.admit(missing)

    def demote(self, pages: PageIds) -> int:
        """Move those of the pages (ascending) to the host that are on the device and have no pins, as far as there is
        room for them; answers how many went.
        """
        table = self._table
        pages = pages[(table.device[pages] != NONE) & (table.pins[pages] == 0)]
        unsaved = pages[table.host[pages] == NONE]
        left = unsaved[self._host_room(len(unsaved)) :]
        pages = np.setdiff1d(pages, left, assume_unique=True)
        self._leave(pages)
        return len(pages)

    def savable(self, pages: PageIds) -> int:
        """How many of the pages with pins, from the first on, can be on the host alone, with what the host has."""
        unsaved = self._table.host[pages] == NONE
        self.host.grow(int(unsaved.sum()) - self.host.available)
        room = self.host.available + len(self._pinned_copies()) - np.cumsum(~unsaved)
        return int((np.cumsum(unsaved) <= room).cumprod().sum())

    def chill(self, pages: PageIds) -> None:
        """Take pages with pins off the device: `savable` said that there is room. No window shows them any more."""
        self._leave(pages, but=pages)
        self.await_host(pages)

    def await_host(self, pages: PageIds) -> None:
        """These pages are read from the host: no step before they are there."""
        self._transfers.hold(pages, self._table.host[pages])

    def within_reach(self) -> int:
        """How many frames of the device `obtain` can answer now."""
        table = self._table
        idle = table.resident() & ~table.pinned()
        unsaved = int((idle & ~table.copied()).sum())
        return self.device.obtainable + int(idle.sum()) - unsaved + self._host_room(unsaved)

    def vacate(self, n: int) -> bool:
        """See that `n` frames of the device are free, for which pages without pins may have to leave."""
        return self.device.available >= n or self._evict(n - self.device.available)

    def write_back(self, most: int) -> int:
        """Copy up to `most` full pages to the host, those first that may have to leave soon; answers how many."""
        most = min(most, self.host.obtainable)
        if not most or not self._may_write_back:
            return 0
        table = self._table
        dirty = np.flatnonzero(table.sealed[: table.top] & table.resident() & ~table.copied())
        dirty = dirty[np.argsort(table.pins[dirty] > 0, kind="stable")]
        self.host.grow(min(most, len(dirty)) - self.host.available)
        pages = dirty[: min(most, self.host.available)]
        # Where the store cannot make frames it is not asked at every step, but when there are more full pages.
        self._may_write_back = len(dirty) > len(pages) >= most
        self._save(pages)
        self.write_backs += len(pages)
        return len(pages)

    def sealed(self, pages: PageIds) -> None:
        """These pages are full now."""
        self._table.sealed[pages] = True
        self._may_write_back = True

    def unseal(self, page: int) -> None:
        """This page is going to be written to again."""
        pages = np.array([page])
        self._table.sealed[page] = False
        self._transfers.hold(pages, self._table.device[pages])
        self.drop_copies(pages)

    def drop_copies(self, pages: PageIds) -> None:
        """Free the frames of the host of pages that are on the device."""
        self._give_back(self.host, self._table.host[pages])
        self._table.host[pages] = NONE
        self._may_write_back = True

    def spare_host(self, n: int) -> int:
        """Make up to `n` frames of the host free, at the cost of copies of pages that are on the device.

        They are idle, so that the pool can destroy them. Answers how many are.
        """
        short = n - len(self.host.idle_frames)
        if short > 0:
            table = self._table
            copied = np.flatnonzero(table.resident() & table.copied())
            copied = copied[~self._host_busy(table.host[copied])]
            self.drop_copies(copied[np.argsort(table.pins[copied] == 0, kind="stable")][:short])
        return min(n, len(self.host.idle_frames))

    def clean(self, pages: PageIds) -> Mask:
        """Which of the pages on the device have their contents on the host too, arrived."""
        hosts = self._table.host[pages]
        clean: Mask = (hosts != NONE) & ~self._transfers.arriving(np.maximum(hosts, 0))
        return clean

    def settle(self) -> None:
        """See which frames are free again, now that copies have arrived."""
        self.device.settle(self._transfers.busy)
        self.host.settle(self._host_busy)

    # inside

    def _evict(self, n: int) -> bool:
        """Send `n` pages without pins to the host. False, and nothing is moved, when there are not so many, or not
        enough room for them.
        """
        table = self._table
        candidates = np.flatnonzero(table.resident() & ~table.pinned())
        if len(candidates) < n:
            return False
        victims = self.policy.victims(n, candidates, self.clean(candidates))
        unsaved = victims[table.host[victims] == NONE]
        lack = len(unsaved) - self._host_room(len(unsaved))
        if lack > 0:
            others = np.setdiff1d(candidates[table.host[candidates] != NONE], victims, assume_unique=True)
            if len(others) < lack:
                return False
            victims = np.setdiff1d(victims, unsaved[len(unsaved) - lack :], assume_unique=True)
            victims = np.append(victims, self.policy.victims(lack, others, self.clean(others)))
        self._leave(victims)
        return True

    def _leave(self, pages: PageIds, but: PageIds | None = None) -> None:
        """Take pages off the device. There is room on the host for those that have no copy."""
        if not pages.size:
            return
        table = self._table
        unsaved = pages[table.host[pages] == NONE]
        self._save(unsaved, but)
        self.dirty_victims += len(unsaved)
        self.clean_victims += len(pages) - len(unsaved)
        self._windows.replace(table.index[pages], table.device[pages])
        self._give_back(self.device, table.device[pages])
        table.device[pages] = NONE
        self.wasted += int(table.ahead[pages].sum())
        table.ahead[pages] = False

    def _save(self, pages: PageIds, but: PageIds | None = None) -> None:
        """Copy pages to the host. There is room, if need be that of copies other than those of pages `but`."""
        if not pages.size:
            return
        table = self._table
        short = len(pages) - self.host.available
        if short > 0:
            copies = self._pinned_copies()
            copies = copies if but is None else np.setdiff1d(copies, but, assume_unique=True)
            self.drop_copies(copies[:short])
        frames = self.host.take(len(pages))
        assert frames is not None, "room was promised"
        self.host.hand_out(frames)
        self._transfers.copy(frames, table.device[pages])
        table.host[pages] = frames

    def _host_room(self, n: int) -> int:
        """How many of `n` pages can be copied to the host. Copies of pages that cannot leave now do not count."""
        self.host.grow(n - self.host.available)
        if n <= self.host.available:
            return n
        return min(n, self.host.available + len(self._pinned_copies()))

    def _pinned_copies(self) -> PageIds:
        table = self._table
        return np.flatnonzero(table.resident() & table.pinned() & table.copied())

    def _give_back(self, pool: FramePool, frames: FrameIds) -> None:
        frames = frames[frames != NONE]
        if frames.size:
            busy = self._host_busy if pool is self.host else self._transfers.busy
            pool.give_back(frames, busy(frames))

    def _host_busy(self, frames: FrameIds) -> Mask:
        """Frames of the host that a copy uses, or that the store still shows, cannot be destroyed."""
        return self._transfers.busy(frames) | self._windows.shows(frames)
