"""Figures about the KV memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pagedrun.kv.pool import FramePool

if TYPE_CHECKING:
    from pagedrun.kv.manager import PageManager


@dataclass(frozen=True, slots=True)
class TierStats:
    """Frames of one tier: as many as the budget has room for, that exist, that pages own.

    n_bytes: of those that exist. limit_bytes: of all that may. refused: what the store said when it last could not make
    one; empty when it never did.
    """

    budget: int
    created: int
    used: int
    n_bytes: int
    limit_bytes: int
    refused: str


@dataclass(frozen=True, slots=True)
class KvStats:
    """The state of the KV memory, and what happened in it since the start.

    tokens: stored ones, those that conversations share counted once. utilisation: what they are of the tokens that the
    pages they lie in could hold; 1 when there are no pages. clean_victims left the device without a copy,
    dirty_victims with one. buffer_bytes: what the context takes on the device beside pages, out of the same budget.
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

    @property
    def evictions(self) -> int:
        """Pages that left the device."""
        return self.clean_victims + self.dirty_victims


def collect(manager: PageManager) -> KvStats:
    """Count everything."""
    residency, table = manager.residency, manager.table
    stored = _stored_bytes(manager)
    capacity = len(table) * manager.geometry.page_bytes
    snapshots = list(manager.snapshots)
    return KvStats(
        device=_tier(residency.device, manager.geometry.frame_bytes),
        host=_tier(residency.host, manager.geometry.frame_bytes),
        conversations=len(manager.conversations),
        pages=len(table),
        shared_pages=int((table.refs[: table.top] > 1).sum()),
        tokens=round(stored / manager.geometry.row_bytes),
        utilisation=stored / capacity if capacity else 1.0,
        snapshots=len(snapshots),
        snapshot_bytes=sum(s.nbytes for s in snapshots),
        clean_victims=residency.clean_victims,
        dirty_victims=residency.dirty_victims,
        write_backs=residency.write_backs,
    )


def _tier(pool: FramePool, frame_bytes: int) -> TierStats:
    return TierStats(
        pool.most, pool.created, pool.used, pool.created * frame_bytes, pool.most * frame_bytes, pool.refused
    )


def _stored_bytes(manager: PageManager) -> int:
    """Bytes of rows in one stripe. Of conversations that share a page, the one counts that has most of it."""
    size, row = manager.geometry.page_bytes, manager.geometry.row_bytes
    stored = np.zeros(manager.table.top, np.int64)
    for c in manager.conversations.values():
        here = np.clip(c.length * row - np.arange(c.n_pages) * size, 0, size)
        stored[c.pages] = np.maximum(stored[c.pages], here)
    return int(stored.sum())
