"""Figures about the KV memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedrun.kv.ids import NONE
from pagedrun.kv.memory import PageMemory
from pagedrun.kv.pool import FramePool


@dataclass(frozen=True, slots=True)
class TierStats:
    """Frames of one tier: as many as the budget has room for, that exist, that pages own.

    n_bytes: of those that exist, and of those that are being made ahead. limit_bytes: of all that may. refused: what
    the store said when it last could not make one; empty when it never did.
    """

    budget: int
    created: int
    used: int
    n_bytes: int
    limit_bytes: int
    refused: str


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The spill file: slots that there may be, that hold a page; what these take, and what the file may.

    written, read: pages so far; lost: of those that were read, which could not be. refused: what the system said when a
    page could last not be written; empty when it never did.
    """

    budget: int = 0
    used: int = 0
    n_bytes: int = 0
    limit_bytes: int = 0
    written: int = 0
    read: int = 0
    lost: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SpillStats:
    """Pages of bound conversations that are read from the host. A page counts once for each window that shows it.

    staged, zero_copy: how they are read. stages: that exist, which take stage_bytes of the device's budget in all.
    spilled, recalled: pages that became cold, and hot again, since the start. mode: what was asked for; reason: why the
    last ones are read as they are; predicted_s: what a step takes with them by the cost model, 0 if nothing is known.
    """

    mode: str = "off"
    cold: int = 0
    staged: int = 0
    zero_copy: int = 0
    stages: int = 0
    stage_bytes: int = 0
    spilled: int = 0
    recalled: int = 0
    reason: str = ""
    predicted_s: float = 0.0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """Pages that were brought to the device before they were needed, since the start. See `pagedrun.kv.prefetch`."""

    mode: str = "off"
    pages: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SwapStats:
    """What swap_space pays for, in bytes: all that is kept of conversations in RAM.

    limit: what may be used; pages: frames of the host; ahead: such that are made before they are needed; snapshots;
    index: what finds conversations by their tokens; staging: pages on their way to the disk or back, those of saves and
    restores too.
    """

    limit: int = 0
    used: int = 0
    pages: int = 0
    ahead: int = 0
    snapshots: int = 0
    index: int = 0
    staging: int = 0


@dataclass(frozen=True, slots=True)
class KvStats:
    """The state of the KV memory, and what happened in it since the start.

    tokens: stored ones, those that conversations share counted once. utilisation: what they are of the tokens that the
    pages they lie in could hold; 1 when there are no pages. clean_victims left the device without a copy,
    dirty_victims with one. buffer_bytes: what the context takes on the device beside pages, out of the same budget.
    tokens_per_page: what a page holds, not always a whole number. resting: conversations that a prompt may go on from;
    index_bytes: what finding them takes in main memory. swap: all of main memory, by what takes it.
    """

    device: TierStats
    host: TierStats
    conversations: int
    pages: int
    shared_pages: int
    tokens: int
    utilisation: float
    snapshots: int
    snapshot_bytes: int
    clean_victims: int
    dirty_victims: int
    write_backs: int
    buffer_bytes: int = 0
    spill: SpillStats = SpillStats()
    prefetch: PrefetchStats = PrefetchStats()
    disk: DiskStats = DiskStats()
    tokens_per_page: float = 0.0
    resting: int = 0
    index_bytes: int = 0
    swap: SwapStats = SwapStats()

    @property
    def evictions(self) -> int:
        """Pages that left the device."""
        return self.clean_victims + self.dirty_victims


def collect(memory: PageMemory) -> KvStats:
    """Count everything."""
    residency, table = memory.residency, memory.table
    stored = _stored_bytes(memory)
    capacity = len(table) * memory.geometry.page_bytes
    snapshots = list(memory.snapshots)
    return KvStats(
        device=_tier(residency.device, memory.geometry.frame_bytes),
        host=_tier(residency.host, memory.geometry.frame_bytes),
        conversations=len(memory.conversations),
        pages=len(table),
        shared_pages=int((table.refs[: table.top] > 1).sum()),
        tokens=round(stored / memory.geometry.row_bytes),
        utilisation=stored / capacity if capacity else 1.0,
        snapshots=len(snapshots),
        snapshot_bytes=sum(s.nbytes for s in snapshots),
        clean_victims=residency.clean_victims,
        dirty_victims=residency.dirty_victims,
        write_backs=residency.write_backs,
        spill=spilled(memory),
        prefetch=_prefetch(memory),
        disk=_disk(memory),
        tokens_per_page=memory.geometry.tokens_per_page,
        swap=_swap(memory),
    )


def _swap(memory: PageMemory) -> SwapStats:
    host, size = memory.residency.host, memory.geometry.frame_bytes
    return SwapStats(
        limit=host.budget.limit,
        used=host.budget.used,
        pages=host.created * size,
        ahead=host.ordered * size,
        snapshots=memory.snapshots.nbytes,
        index=memory.index.paid,
        staging=memory.staging.paid,
    )


def spilled(memory: PageMemory) -> SpillStats:
    """Of the pages of running conversations that are not on the device."""
    spilling, stages, windows = memory.spilling, memory.stages, memory.windows
    staged = int((windows.stage != NONE).sum())
    return SpillStats(
        mode=spilling.settings.mode,
        cold=windows.n_cold,
        staged=staged,
        zero_copy=windows.n_cold - staged,
        stages=stages.created,
        stage_bytes=stages.created * stages.size,
        spilled=spilling.spilled,
        recalled=spilling.recalled,
        reason=spilling.mix.why if spilling.mix else "",
        predicted_s=spilling.mix.seconds if spilling.mix else 0.0,
        refused=stages.refused,
    )


def _prefetch(memory: PageMemory) -> PrefetchStats:
    ahead = memory.prefetching
    return PrefetchStats(
        mode=memory.spilling.settings.prefetch,
        pages=ahead.n_pages,
        hits=ahead.hits,
        late=ahead.late,
        wasted=memory.residency.wasted,
        n_bytes=ahead.n_pages * memory.geometry.frame_bytes,
    )


def _disk(memory: PageMemory) -> DiskStats:
    lower, file = memory.lower, memory.lower.file
    return DiskStats(
        budget=file.n_slots,
        used=file.used,
        n_bytes=file.used * file.slot_bytes,
        limit_bytes=file.n_slots * file.slot_bytes,
        written=lower.sunk,
        read=lower.fetched,
        lost=lower.n_lost,
        refused=file.refused,
    )


def _tier(pool: FramePool, frame_bytes: int) -> TierStats:
    n_bytes = (pool.created + pool.ordered) * frame_bytes
    return TierStats(pool.most, pool.created, pool.used, n_bytes, pool.most * frame_bytes, pool.refused)


def _stored_bytes(memory: PageMemory) -> int:
    """Bytes of rows in one stripe. Of conversations that share a page, the one counts that has most of it."""
    size, row, every = memory.geometry.page_bytes, memory.geometry.row_bytes, memory.conversations.values()
    if not every:
        return 0
    stored = np.zeros(memory.table.top, np.int64)
    pages = np.concatenate([c.pages for c in every])
    lengths = np.repeat([c.length for c in every], [c.n_pages for c in every])
    np.maximum.at(stored, pages, np.clip(lengths * row - memory.table.index[pages] * size, 0, size))
    return int(stored.sum())
