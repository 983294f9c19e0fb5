"""Where pages are: moving them between the tiers, and finding room.

device  --demote: copy, if it has none--> host        a clean page just leaves
        <--promote: copy; the host's stays--
        --write back: copy, and it stays--> host      so that it is clean when its turn comes

What is below the device is `pagedrun.kv.lower`.
"""

from __future__ import annotations

import numpy as np

from pagedrun.kv.ids import NONE, FrameIds, Mask, PageIds
from pagedrun.kv.lower import Lower
from pagedrun.kv.policy import Policy
from pagedrun.kv.pool import FramePool
from pagedrun.kv.table import PageTable
from pagedrun.kv.transfers import Transfers
from pagedrun.kv.windows import Windows


class Residency:
    """Pages in frames of the device, and below it. Decides what leaves the device when room is needed.

    clean_victims, dirty_victims: pages that left the device without and with a copy. write_backs: pages copied early.
    wasted: pages that were brought to the device ahead of time and left it without having been used. behind: a page may
    have left a conversation of which others are still there.
    """

    def __init__(self, device: FramePool, lower: Lower, parts: tuple[PageTable, Transfers, Windows, Policy]) -> None:
        self.device, self.host = device, lower.pool
        self.lower = lower
        self.clean_victims = 0
        self.dirty_victims = 0
        self.write_backs = 0
        self.wasted = 0
        self.behind = False
        self._table, self._transfers, self._windows, self.policy = parts

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
        """A new page with the contents of another, which has a frame, in this one of the device."""
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
        self._give_back(table.device[pages])
        self.lower.drop_all(pages)
        self.wasted += int(table.ahead[pages].sum())
        table.remove(pages)

    # moves

    def promote(self, pages: PageIds) -> bool:
        """Bring pages (each once) to the device. False, and nothing is moved, when frames are short, or when pages
        cannot be read from the disk.
        """
        table = self._table
        missing = pages[table.device[pages] == NONE]
        if not missing.size:
            return True
        table.pins[pages] += 1  # those that are there must not make room for the others
        frames = self.obtain(len(missing))
        done = frames is not None and self._fetch(missing, frames)
        table.pins[pages] -= 1
        if frames is None or not done:
            return False
        self.arrive(missing, frames)
        return True

    def arrive(self, missing: PageIds, frames: FrameIds) -> None:
        """Bring pages that are on the host alone to these frames; those that were fetched from the disk are there."""
        table = self._table
        copied = table.host[missing] != NONE
        from_, to, pages = table.host[missing[copied]], frames[copied], missing[copied]
        self.device.hand_out(to)
        self._transfers.copy(to, from_, pages)
        table.device[missing] = frames
        if self._windows.n_cold:
            self._windows.replace(table.index[pages], from_, to)
        self.lower.drop_all(missing[~table.sealed[missing]])
        self.policy.admit(missing)

    def demote(self, pages: PageIds, *, to_host: bool = False) -> int:
        """Take those of the pages (ascending) off the device that are there and have no pins, as far as there is room
        for them; answers how many went. to_host: they need a frame of the host even if they are on disk.
        """
        table = self._table
        pages = pages[(table.device[pages] != NONE) & (table.pins[pages] == 0)]
        unsaved = pages[(table.host[pages] == NONE) if to_host else ~self._saved(pages)]
        n = self.lower.secure(len(unsaved))
        copied, rest = unsaved[:n], unsaved[n:]
        left = rest if to_host else rest[self.lower.keep(rest) :]
        pages = np.setdiff1d(pages, left, assume_unique=True)
        self._leave(pages, copied)
        return len(pages)

    def chill(self, pages: PageIds) -> None:
        """Take pages with pins off the device: there is room (`Lower.savable`). No window shows them any more."""
        self._leave(pages, pages[self._table.host[pages] == NONE], but=pages)
        self.await_host(pages)

    def await_host(self, pages: PageIds) -> None:
        """These pages are read from the host: no step before they are there."""
        self._transfers.hold(pages, self._table.host[pages])

    def within_reach(self) -> int:
        """How many frames of the device `obtain` can answer now."""
        table = self._table
        return self.device.obtainable + int((table.resident() & ~table.pinned()).sum()) - self.stuck

    @property
    def stuck(self) -> int:
        """How many pages without pins cannot leave the device, for want of room below it."""
        table = self._table
        idle = np.flatnonzero(table.resident() & ~table.pinned())
        unsaved = len(idle) - int(self._saved(idle).sum())
        return unsaved - self.lower.room(unsaved)

    def vacate(self, n: int) -> bool:
        """See that `n` frames of the device are free, for which pages without pins may have to leave."""
        return self.device.available >= n or self._evict(n - self.device.available)

    def write_back(self, most: int) -> int:
        """Copy up to `most` full pages to the host, so that they can leave without; answers how many."""
        n = self.lower.write_back(most)
        self.write_backs += n
        return n

    def sealed(self, pages: PageIds) -> None:
        """These pages are full now."""
        self._table.sealed[pages] = True
        self.lower.may_save = True

    def unseal(self, page: int) -> None:
        """This page is going to be written to again."""
        pages = np.array([page])
        self._table.sealed[page] = False
        self._transfers.hold(pages, self._table.device[pages])
        self.lower.drop_all(pages)

    def clean(self, pages: PageIds) -> Mask:
        """Which of the pages on the device have their contents elsewhere too, arrived."""
        hosts = self._table.host[pages]
        clean: Mask = (hosts != NONE) & ~self._transfers.arriving(np.maximum(hosts, 0))
        clean |= self._table.disk[pages] != NONE
        return clean

    def settle(self) -> None:
        """See which frames are free again, now that copies have arrived."""
        self.device.settle(self._transfers.busy)
        self.host.settle(self.lower.busy)

    # inside

    def _evict(self, n: int) -> bool:
        """Send `n` pages without pins off the device. False, and nothing is moved, when there are not so many, or not
        enough room for them.
        """
        table = self._table
        candidates = np.flatnonzero(table.resident() & ~table.pinned())
        if len(candidates) < n:
            return False
        victims = self.policy.victims(n, candidates, self.clean(candidates))
        unsaved = victims[~self._saved(victims)]
        lack = len(unsaved) - self.lower.room(len(unsaved))
        if lack > 0:
            others = np.setdiff1d(candidates[self._saved(candidates)], victims, assume_unique=True)
            if len(others) < lack:
                return False
            unsaved, left = unsaved[: len(unsaved) - lack], unsaved[len(unsaved) - lack :]
            victims = np.setdiff1d(victims, left, assume_unique=True)
            victims = np.append(victims, self.policy.victims(lack, others, self.clean(others)))
        room = self.lower.secure(len(unsaved))
        if self.lower.keep(unsaved[room:]) < len(unsaved) - room:  # the disk did not take one
            self.lower.forget(unsaved)
            return False
        self._leave(victims, unsaved[:room])
        return True

    def _leave(self, pages: PageIds, unsaved: PageIds, but: PageIds | None = None) -> None:
        """Take pages off the device, those that are `unsaved` by a copy to the host, where there is room for them."""
        if not pages.size:
            return
        table = self._table
        self.behind = True
        self.lower.save(unsaved, but)
        self.dirty_victims += len(unsaved)
        self.clean_victims += len(pages) - len(unsaved)
        self._windows.replace(table.index[pages], table.device[pages])
        self._give_back(table.device[pages])
        table.device[pages] = NONE
        self.wasted += int(table.ahead[pages].sum())
        table.ahead[pages] = False

    def _fetch(self, missing: PageIds, frames: FrameIds) -> bool:
        """Bring those of the pages that are on disk alone to their frames; if that fails, all frames are free again."""
        low = self.lower.on_disk_only(missing)
        if not low.any():
            return True
        if self.lower.fetch(missing[low], frames[low], self.device.hand_out(frames[low])):
            return True
        self._give_back(frames)
        return False

    def _saved(self, pages: PageIds) -> Mask:
        """Which pages have a place below the device."""
        saved: Mask = (self._table.host[pages] != NONE) | (self._table.disk[pages] != NONE)
        return saved

    def _give_back(self, frames: FrameIds) -> None:
        frames = frames[frames != NONE]
        if frames.size:
            self.device.give_back(frames, self._transfers.busy(frames))
