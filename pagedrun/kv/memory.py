"""The memory of a page manager: what it is made of, and how pages move in it without anybody's asking for tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

import numpy as np

from pagedrun.kv.budget import Account, Budget
from pagedrun.kv.disk import DiskSpace, SpillFile
from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.ids import NONE, ConversationId, PageIds, Tier
from pagedrun.kv.lower import Lower
from pagedrun.kv.policy import policy_named
from pagedrun.kv.pool import FramePool
from pagedrun.kv.prefetch import Prefetch
from pagedrun.kv.residency import Residency
from pagedrun.kv.settings import SpillSettings
from pagedrun.kv.snapshots import SnapshotStore
from pagedrun.kv.spill import Spill
from pagedrun.kv.stages import Stages
from pagedrun.kv.store import FrameStore
from pagedrun.kv.table import Conversation, PageTable
from pagedrun.kv.transfers import Transfers
from pagedrun.kv.windows import Windows

log = logging.getLogger(__name__)

AHEAD = 64 << 20  # bytes of frames of the host that are made before they are needed
FOLLOWED = 16  # conversations whose rest is brought back to frames that are free


class PageMemory:
    """Frames, stages, pages, windows and snapshots of one store, and its spill file. See PageManager."""

    def __init__(
        self,
        geometry: PageGeometry,
        store: FrameStore,
        *,
        gpu_memory: Budget,
        swap_space: Budget,
        policy: str = "clock",
        spill: SpillSettings | None = None,
        disk: DiskSpace | None = None,
    ) -> None:
        size, spill = geometry.frame_bytes, spill or SpillSettings()
        #: Paid from swap_space: what finds conversations by their tokens, and pages on their way to the disk or back.
        self.index, self.staging = Account(swap_space, self._spare_for_index), Account(swap_space)
        device = FramePool(store, Tier.DEVICE, gpu_memory, size, reserve=spill.reserve(geometry))
        host = FramePool(store, Tier.HOST, swap_space, size, first=device.most, ahead=max(AHEAD // size, 1))
        n_frames = device.most + host.most
        file = SpillFile(disk, size)
        self.staging.resize(size if file.n_slots else 0)
        n_pages = n_frames + file.n_slots  # every page has a place at least
        self.geometry = geometry
        self.table = table = PageTable(n_pages)
        self.conversations: dict[ConversationId, Conversation] = {}  # those let go last are last
        self.active: set[ConversationId] = set()  # those that do not rest
        self.transfers = Transfers(store, n_frames)
        self.windows = Windows(geometry.n_slots, geometry.n_pages, device.most)
        parts = (table, self.transfers, self.windows, policy_named(policy, n_pages))
        self.lower = Lower(host, file, parts, store, self._carry_out)
        self.residency = Residency(device, self.lower, parts)
        self.snapshots = SnapshotStore(swap_space, self._spare_host)
        self.stages = Stages(geometry, store, device, self.windows, first=n_frames)
        spilled = (table, self.residency, self.windows, self.stages)
        self.spilling = Spill(geometry, spill, spilled, self._carry_out, self._spare_snapshots)
        self.prefetching = Prefetch(table, self.residency, self.transfers, spill.prefetch, keep_free=spill.batch)
        self.shown: list[Conversation | None] = [None] * geometry.n_slots
        self._opened = 0
        self._full_budget = gpu_memory.limit
        self.staging.make_room = self._spare_for_index

    def pages(self, conversation: ConversationId) -> PageIds:
        """A conversation's pages, in order."""
        pages: PageIds = self.conversations[conversation].pages.copy()
        return pages

    def promote(self, pages: PageIds) -> bool:
        """Bring pages to the device ahead of time; False when frames are short, or when some are lost on the disk."""
        done = self.residency.promote(np.unique(pages))
        self._cut_lost()
        return done

    def demote(self, pages: PageIds) -> int:
        """Take pages off the device, but those that a slot is bound to, as far as there is room; answers how many."""
        return self.residency.demote(np.unique(pages))

    def sink(self, n: int) -> int:
        """Move idle pages from the host to the disk until there is room for `n` more on the host; answers how many.

        It takes a while: to be called when nobody waits.
        """
        return self.lower.sink(n - self.lower.pool.obtainable)

    def truncate(self, conversation: ConversationId, n_tokens: int) -> None:
        """Keep the first tokens only. Room beyond them is given back too."""
        c = self.conversations[conversation]
        if not 0 <= n_tokens <= c.length:
            raise ValueError(f"conversation {c.id} has {c.length} tokens, which cannot be cut to {n_tokens}")
        c.length = n_tokens
        self._drop(c, self.geometry.pages_for(n_tokens))
        self.snapshots.truncate(conversation, n_tokens)

    def flush(self) -> None:
        """Hand all decisions to the store, in one array where no copy has to wait for another, and wait for what the
        next step needs. Raises FrameError.
        """
        self.transfers.submit(self.windows)
        self.transfers.settle(self.table.pins)
        self.poll()
        self.spilling.tidy()

    def write_back(self, max_pages: int) -> int:
        """Copy full pages to the host while a step computes, so that they can leave without a copy; answers how many.

        No frame is made for it: those count that the host has, or has made in the background, which is asked for here.
        To be called after `flush`, once the device is nearly full. Raises FrameError.
        """
        n = self.residency.write_back(max_pages)
        if n:
            self.transfers.submit(self.windows)
        return n

    @property
    def nearly_full(self) -> bool:
        """Whether pages may have to leave the device soon: of eight frames that it can have, one is left at most.

        Before that, copies for the day when they do would only pin memory of the host.
        """
        device = self.residency.device
        return device.obtainable * 8 <= device.most

    def poll(self) -> None:
        """See which copies have arrived. Does not wait."""
        self.transfers.poll()
        self.residency.settle()

    def trim(self) -> int:
        """Give the memory of free frames back to the system; answers how many bytes. Raises FrameError.

        None are ordered any more.
        """
        self.flush()  # no window shows them then
        self.stages.shrink(0)
        self.residency.host.cancel(self.residency.host.ordered)
        n = sum(pool.shrink(len(pool.idle_frames)) for pool in (self.residency.device, self.residency.host))
        return n * self.geometry.frame_bytes

    def shrink(self, n_bytes: int) -> int:
        """Give memory of the device back to the system: pages leave it, idle ones first. Raises FrameError.

        The budget is lowered by as much. Answers how many bytes were given back: more or less than asked for, as frames
        go, as there is room on the host, and as there was anything to give.
        """
        device, size = self.residency.device, self.geometry.frame_bytes
        before = device.budget.used
        goal = max(before - n_bytes - device.reserve, 0)  # the first stage is to be paid for then, too
        try:
            self._carry_out()
            self.stages.shrink(0)
            for step in (lambda n: None, self._demote_idle, self._spill_bound):
                lack = -(-(device.budget.used - goal) // size)
                if lack > 0:
                    step(lack)
                    self._carry_out()
                    lack = -(-(device.budget.used - goal) // size)
                    device.shrink(min(lack, len(device.idle_frames)))
        finally:
            device.budget.limit = max(device.budget.limit - n_bytes, device.budget.used)
        return before - device.budget.used

    def grow(self, n_bytes: int) -> int:
        """Take back what `shrink` gave, as far as it gave something; answers by how many bytes the budget grew."""
        budget = self.residency.device.budget
        n_bytes = min(n_bytes, self._full_budget - budget.limit)
        budget.limit += n_bytes
        return n_bytes

    def recall(self) -> int:
        """Bring some cold pages of bound conversations back to the device, if there is room; answers how many.

        To be called before a step's `flush`.
        """
        if not self.windows.n_cold:
            return 0
        return self.spilling.recall([c for c in self.shown if c is not None and c.bound])

    def prefetch(self, pages: PageIds) -> int:
        """Bring some of these pages to the device ahead of time, the first ones first; answers how many.

        Nobody who needs a frame loses it: only idle pages may have to leave, and none while bound ones are cold.
        """
        most = self.spilling.settings.per_step
        n = self.prefetching.bring(pages, most, may_evict=not self.windows.n_cold)
        self._cut_lost()
        return n

    def expect(self, conversations: Sequence[ConversationId]) -> int:
        """Prefetch for those that are going to be bound, in this order: none loses a page to a later one."""
        pages = [self.conversations[c].pages for c in conversations if not self.conversations[c].bound]
        if not pages:
            return 0
        every = np.concatenate(pages)
        if not (self.table.device[every] == NONE).any():
            return 0
        return self.prefetch(every[np.sort(np.unique(every, return_index=True)[1])])

    def follow(self) -> int:
        """Bring the rest of conversations that were let go and are partly on the device, those let go last first, to
        frames that are free; answers how many pages. To be called before a step's `flush`.
        """
        if self.windows.n_cold or not self.prefetching.may_follow:
            return 0
        idle = (c.pages for c in reversed(self.conversations.values()) if not c.bound and c.n_pages)
        n = self.prefetching.follow(list(islice(idle, FOLLOWED)), self.spilling.settings.per_step)
        self._cut_lost()
        return n

    def on_disk(self, conversation: ConversationId) -> int:
        """How many of a conversation's pages are on disk alone."""
        if not self.lower.file.n_slots:
            return 0
        return int(self.lower.on_disk_only(self.conversations[conversation].pages).sum())

    @property
    def swap_bytes(self) -> int:
        """What swap_space may take."""
        return self.residency.host.budget.limit

    @property
    def any_bound(self) -> bool:
        """Whether a slot is bound."""
        return any(c is not None and c.bound for c in self.shown)

    # inside

    def _drop(self, c: Conversation, n_pages: int) -> None:
        """Take all but the first pages from a conversation."""
        gone = c.cut(n_pages)
        if c.bound:
            self.table.pins[gone] -= 1
        if c.slot is not None:
            self.windows.hide(c.slot, n_pages)
        self.table.refs[gone] -= 1
        self.residency.release(gone[self.table.refs[gone] == 0])

    def _cut_lost(self) -> None:
        """Conversations end before a page that could not be read from the disk; the rest is to be computed again."""
        lost, self.lower.lost = self.lower.lost, []
        for c in self.conversations.values() if lost else ():
            at = np.flatnonzero(np.isin(c.pages, lost))
            if at.size:
                end = int(at[0]) * self.geometry.page_bytes // self.geometry.row_bytes
                log.warning("%d of %d tokens have to be computed again", c.length - min(end, c.length), c.length)
                self.truncate(c.id, min(end, c.length))

    def _carry_out(self) -> None:
        """Flush, and wait until the frames that pages left can be destroyed. Raises FrameError."""
        self.flush()
        self.transfers.drain()
        self.poll()

    def _demote_idle(self, n: int) -> None:
        residency, table = self.residency, self.table
        idle = np.flatnonzero(table.resident() & ~table.pinned())
        if n > 0 and idle.size:
            residency.demote(np.sort(residency.policy.victims(min(n, len(idle)), idle, residency.clean(idle))))

    def _spill_bound(self, n: int) -> None:
        for c in self.shown:
            short = n - self.residency.device.available  # frames, which are to be destroyed
            if c is not None and c.bound and short > 0:
                self.spilling.give_up(c, short)

    def _spare_host(self, n_bytes: int) -> None:
        """Give swap space back, if there is any that no page needs."""
        host = self.residency.host
        n = -(-n_bytes // self.geometry.frame_bytes)
        n -= host.cancel(n)
        host.shrink(self.lower.spare(n))

    def _spare_for_index(self, n_bytes: int) -> None:
        """Give swap space to what finds conversations, if no page needs it, nor anybody's newest snapshot."""
        self._spare_host(n_bytes)
        self.snapshots.spare(n_bytes)

    def _spare_snapshots(self, n_bytes: int) -> None:
        """Have so much swap space for frames of the host, ordered ones included, as far as snapshots can go."""
        self.snapshots.spare(n_bytes - self.residency.host.ordered * self.geometry.frame_bytes)
