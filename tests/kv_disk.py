"""A spill file whose disk is full, fails or forgets, when a test wants it to."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path

from pagedrun.kv import DiskSpace
from pagedrun.kv.disk import SpillFile


class BadFile(SpillFile):
    """fail_writes, fail_reads: numbers of those that fail, from 1 on. troubles: how many did."""

    def __init__(self, n_slots: int, slot_bytes: int, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(DiskSpace(Path(tempfile.gettempdir()), n_slots * slot_bytes), slot_bytes, clock=clock)
        self.fail_writes: set[int] = set()
        self.fail_reads: set[int] = set()
        self.n_writes = self.n_reads = self.troubles = 0

    def _write(self, slot: int, data: memoryview) -> None:
        self.n_writes += 1
        if self.n_writes in self.fail_writes:
            self.troubles += 1
            super()._write(slot, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(slot, data)

    def _read(self, slot: int) -> bytes:
        self.n_reads += 1
        data = super()._read(slot)
        if self.n_reads not in self.fail_reads:
            return data
        self.troubles += 1
        if self.n_reads % 3 == 0:
            raise OSError(errno.EIO, "Input/output error")
        return data[:-1] if self.n_reads % 3 == 1 else bytes([data[0] ^ 1]) + data[1:]
