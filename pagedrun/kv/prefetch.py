"""Bringing pages to the device before anybody needs them.

    sequential    what comes next of a conversation that is bound: cold pages come back; the store copies ahead as well
    associative   what belongs together: pages of a conversation whose turn is coming, or of which a page was used
    hybrid        both

Only frames that nobody needs are used. A page that was brought ahead is a hit if it is there when its conversation is
bound, late if it is still on its way, wasted if it left before.
"""

from __future__ import annotations

import numpy as np

from pagedrun.kv.ids import NONE, PageIds
from pagedrun.kv.residency import Residency
from pagedrun.kv.table import PageTable
from pagedrun.kv.transfers import Transfers

PREFETCH_MODES = ("off", "sequential", "associative", "hybrid")


class Prefetch:
    """Counts what was brought ahead. n_pages, hits, late: pages so far. keep_free: frames that are left alone."""

    def __init__(
        self, table: PageTable, residency: Residency, transfers: Transfers, mode: str, *, keep_free: int
    ) -> None:
        self.n_pages = 0
        self.hits = 0
        self.late = 0
        self._on = mode in ("associative", "hybrid")
        self._table = table
        self._residency = residency
        self._transfers = transfers
        self._keep_free = keep_free

    def bring(self, pages: PageIds, most: int, *, may_evict: bool) -> int:
        """Bring up to `most` of the pages, the first ones first; answers how many.

        may_evict: idle pages may leave for them, but for those that were brought ahead themselves.
        """
        table, residency = self._table, self._residency
        missing = pages[table.device[pages] == NONE]
        if not self._on or not missing.size:
            return 0
        kept = np.append(pages, np.flatnonzero(table.ahead[: table.top]))
        kept = np.unique(kept)
        table.pins[kept] += 1
        # From the disk by way of the host: a step does not wait for the copy from there to the device.
        residency.lower.lift(missing[residency.lower.on_disk_only(missing)][:most], wait=False)
        low = np.flatnonzero(residency.lower.on_disk_only(missing))
        missing = missing[: low[0]] if low.size else missing
        reach = residency.within_reach() if may_evict else residency.device.obtainable
        missing = missing[: max(min(most, reach - self._keep_free), 0)]
        done = residency.promote(missing)
        table.pins[kept] -= 1
        if not done:
            return 0
        table.ahead[missing] = True
        self.n_pages += len(missing)
        return len(missing)

    @property
    def may_follow(self) -> bool:
        """Whether there can be anything for `follow` to do. Cheap, for every step."""
        residency = self._residency
        return self._on and residency.behind and residency.device.obtainable > self._keep_free

    def follow(self, idle: list[PageIds], most: int) -> int:
        """Bring the rest of conversations of which some pages are on the device, the first ones first, to free frames.

        Answers how many pages came.
        """
        residency, there = self._residency, self._table.device
        residency.behind = False
        n = 0
        for pages in idle:
            hot = there[pages] != NONE
            if hot.any() and not hot.all():
                residency.behind = True
                n += self.bring(pages, most - n, may_evict=False)
        return n

    def used(self, pages: PageIds) -> None:
        """These pages are being used now."""
        ahead = pages[self._table.ahead[pages]]
        if ahead.size:
            late = int(self._transfers.arriving(self._table.device[ahead]).sum())
            self.late += late
            self.hits += len(ahead) - late
            self._table.ahead[ahead] = False
