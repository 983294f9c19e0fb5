"""Pages that outlive their process: reading those of a conversation while it goes on, and taking some in.

hold      conversation | page 0 | page 1 | page 2 ...|       it may go on, be cut, or be forgotten
          held         | page 0 | page 1 |                   full pages, shared, so that nobody writes to them;
                                          the last one, if it is not full, is copied at once
adopt     | page 0 | page 1 | ...  come one after the other, to frames that nobody needs
"""

from __future__ import annotations

import logging
import math

import numpy as np
import numpy.typing as npt

from pagedrun.kv.ids import NONE, ConversationId, FrameIds, PageId
from pagedrun.kv.manager import PageManager
from pagedrun.kv.pool import FramePool
from pagedrun.kv.store import FrameError, FrameStore

log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]


class Held:
    """The first `n_tokens` tokens of a conversation, as they are now. Let it go with `release`.

    Raises LookupError where a page cannot be read.
    """

    def __init__(self, manager: PageManager, store: FrameStore, conversation: ConversationId, n_tokens: int) -> None:
        self._manager, self._store = manager, store
        geometry, c = manager.geometry, manager.conversations[conversation]
        full = geometry.full_pages(n_tokens)
        self.n_pages = geometry.pages_for(n_tokens)
        self._last = self._read(PageId(int(c.pages[full]))) if self.n_pages > full else None
        self._id: ConversationId | None = manager.open()
        manager.lay_down(self._id)
        held = manager.conversations[self._id]
        held.length, held.n_sealed = full * geometry.page_bytes // geometry.row_bytes, full
        held.extend(c.pages[:full])
        manager.table.refs[held.pages] += 1
        if c.slot is not None:
            manager.windows.protect(c.slot, full)

    @property
    def released(self) -> bool:
        """Whether it was let go."""
        return self._id is None

    def page(self, number: int) -> Bytes:
        """What is in a page, shape (frame_bytes,). Raises LookupError where it cannot be read any more."""
        if self._id is None:
            raise LookupError("the pages were let go")
        pages = self._manager.conversations[self._id].pages
        if number < len(pages):
            return self._read(PageId(int(pages[number])))
        if self._last is None or number + 1 < self.n_pages:
            raise LookupError(f"page {number} was lost")
        return self._last

    def release(self) -> None:
        """Others may write to the pages, and have their memory."""
        if self._id is not None:
            self._manager.free(self._id)
            self._id = None

    def _read(self, page: PageId) -> Bytes:
        table, manager = self._manager.table, self._manager
        frames = [int(f) for f in (table.host[page], table.device[page]) if f != NONE]
        try:
            if frames:
                arriving = manager.transfers.arriving(np.array(frames))
                if arriving.all() and not manager.lower.drain():
                    raise LookupError(f"page {page} does not arrive")
                return self._store.read(frames[int(arriving.argmin())])
            data = manager.lower.file.read(int(table.disk[page]))
        except FrameError as e:
            raise LookupError(e.message) from e
        if data is None:
            raise LookupError(f"page {page} was lost")
        return data


class Adopted:
    """A new conversation of `n_tokens` tokens, whose pages come from elsewhere. Until `end` it is the caller's.

    Where the device has no room for all of them, the first ones go to the host: from there they are read later on.
    """

    def __init__(self, manager: PageManager, store: FrameStore, n_tokens: int) -> None:
        self._manager, self._store = manager, store
        self._n_tokens = n_tokens
        self._below = self._cold(manager.geometry.pages_for(n_tokens))
        self.id: ConversationId | None = manager.open()
        manager.lay_down(self.id)

    @property
    def n_tokens(self) -> int:
        """How many tokens lie in the pages that came."""
        return 0 if self.id is None else self._manager.length(self.id)

    def put(self, data: Bytes) -> int:
        """Further pages, shape (n, frame_bytes); answers how many found room, for which no page of others leaves the
        device.
        """
        done = 0
        while self.id is not None and done < len(data):
            n = self._put(data[done:])
            if not n:
                break
            done += n
        return done

    def end(self) -> ConversationId | None:
        """It is complete, and belongs to others; None: there is nothing."""
        if not self.n_tokens:
            self.drop()
        conversation, self.id = self.id, None
        return conversation

    def drop(self) -> None:
        """It is not wanted any more."""
        if self.id is not None:
            self._manager.free(self.id)
            self.id = None

    def _put(self, data: Bytes) -> int:
        assert self.id is not None  # `put` has seen to it
        manager, residency, geometry = self._manager, self._manager.residency, self._manager.geometry
        below = max(self._below - manager.conversations[self.id].n_pages, 0)
        n, column = min(residency.device.obtainable, len(data)), manager.table.device
        frames = self._fill(residency.device, data[:n]) if n and not below else None
        if frames is None:
            n, column = self._room_below(min(below or len(data), len(data))), manager.table.host
            frames = self._fill(residency.host, data[:n]) if n else None
        if frames is None:
            self._below, below = 0, self._below
            return self._put(data) if below else 0
        c = manager.conversations[self.id]
        pages = manager.table.add(np.arange(c.n_pages, c.n_pages + len(frames)))
        column[pages] = frames
        residency.policy.admit(pages)
        c.extend(pages)
        c.length = min(c.n_pages * geometry.page_bytes // geometry.row_bytes, self._n_tokens)
        n_sealed = min(c.n_pages, geometry.full_pages(self._n_tokens))
        residency.sealed(c.pages[c.n_sealed : n_sealed])
        c.n_sealed = n_sealed
        return len(frames)

    def _cold(self, n_pages: int) -> int:
        """How many pages, from the first on, will be read from the host when it goes on, if it does not fit the device.

        Each of them takes a stage there, where there are any.
        """
        geometry, device = self._manager.geometry, self._manager.residency.device
        lack = n_pages - device.obtainable
        if lack <= 0 or not self._manager.can_spill:
            return 0
        stage = geometry.stage_bytes / geometry.frame_bytes if geometry.stages_pay else 0.0
        return min(math.ceil(lack / (1 - stage)), n_pages)

    def _room_below(self, n: int) -> int:
        lower = self._manager.lower
        lower.pool.grow(n - lower.pool.available)
        return lower.spare(n)

    def _fill(self, pool: FramePool, data: Bytes) -> FrameIds | None:
        """Frames of a tier with these contents; None where the store fails."""
        manager = self._manager
        frames = pool.take(len(data))
        while frames is None and len(data):  # the store made fewer than the budget allows
            data = data[: min(pool.available, len(data) - 1)]
            frames = pool.take(len(data)) if len(data) else None
        if frames is None:
            return None
        fresh = pool.hand_out(frames)
        manager.transfers.created(frames[fresh], np.zeros(0, np.int64))
        try:
            if (manager.lower.busy(frames)).any() and not manager.lower.drain():
                raise FrameError("frames are not free", 0)
            for frame, contents in zip(frames.tolist(), data, strict=True):
                self._store.write(frame, contents)
        except FrameError as e:
            log.warning("pages could not be brought back: %s", e)
            pool.give_back(frames, manager.lower.busy(frames))
            return None
        return frames
