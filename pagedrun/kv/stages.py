"""Stages: memory of the device through which cold pages are read, paid from gpu_memory like frames.

    gpu_memory   | frame | frame | frame |stage|stage|reserve|        a stage takes a part of what a frame does

One stage's bytes are kept in reserve, out of the frames' reach: when there is no free frame any more, the first page
is read through a stage in the reserve, its frame is destroyed, and that pays for several more stages. So a page is
never without a place.
"""

from __future__ import annotations

import numpy as np

from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.ids import FrameIds, Tier
from pagedrun.kv.pool import FramePool
from pagedrun.kv.store import FrameStore
from pagedrun.kv.windows import Windows


class Stages:
    """The stages of one store, which windows use. Numbers from `first` on."""

    def __init__(
        self, geometry: PageGeometry, store: FrameStore, device: FramePool, windows: Windows, *, first: int
    ) -> None:
        self.size = geometry.stage_bytes
        self._frame_bytes = geometry.frame_bytes
        self._device = device
        self._windows = windows
        self._pool = FramePool(store, Tier.STAGE, device.budget, max(self.size, 1), first=first) if self.size else None

    @property
    def created(self) -> int:
        """How many stages exist."""
        return self._pool.created if self._pool else 0

    @property
    def free(self) -> int:
        """How many of them no window is to use."""
        self._collect()
        return self._pool.available if self._pool else 0

    @property
    def used(self) -> int:
        """How many pages of windows are read through one."""
        return self.created - self.free

    @property
    def refused(self) -> str:
        """What the store said when it last could not make one."""
        return self._pool.refused if self._pool else ""

    @property
    def idle_stages(self) -> list[int]:
        """Numbers of the free ones."""
        self._collect()
        return self._pool.idle_frames if self._pool else []

    def provide(self, n: int) -> int:
        """Make stages until `n` are free, as the budget allows; answers how many of the `n` are."""
        free = self.free
        if self._pool and free < n:
            self._pool.grow(n - free)
        return min(n, self.free)

    def frames_for(self, n: int) -> int:
        """How many frames have to be destroyed for `n` free stages, with the reserve whole after it."""
        lack = (n - self.free) * self.size + self._device.reserve - self._device.budget.left
        return max(-(-lack // self._frame_bytes), 0)

    def take(self, n: int) -> FrameIds:
        """`n` free stages, for windows to use."""
        self._collect()
        taken = self._pool.take(n) if self._pool else np.zeros(0, np.int64)
        assert taken is not None, "they were provided"
        return taken

    def shrink(self, keep: int) -> int:
        """Destroy free stages but for some, which no window of the store may use any more; answers how many."""
        return self._pool.shrink(self.free - keep) if self._pool else 0

    def _collect(self) -> None:
        if self._pool and self._windows.left:
            left, self._windows.left = np.array(self._windows.left, np.int64), []
            self._pool.give_back(left, np.zeros(len(left), bool))
