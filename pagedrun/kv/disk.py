"""The spill file: pages for which the host has no room, in slots of a frame's size each.

    | slot 0 | slot 1 | slot 2 | ...     one file without a name: when the process ends, however it does, it is gone

A slot's checksum is kept in memory. Trouble is a value: a page that cannot be written is refused, and one that cannot
be read as it was written is None. Nobody is ever given other bytes than were put in.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagedrun.errors import UsageError
from pagedrun.kv.ids import NONE

log = logging.getLogger(__name__)

RETRY_S = 60.0  # for so long nothing is written after a disk was full or failed


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Where idle pages may go. path: a folder; limit: bytes of the file; 0: there is none."""

    path: Path
    limit: int


class SpillFile:
    """Slots of `slot_bytes`. refused: what the system said when a page could last not be written; empty: never.

    Raises UsageError where there can be no file. clock: seconds.
    """

    def __init__(
        self, space: DiskSpace | None, slot_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slot_bytes = slot_bytes
        self.n_slots = 0 if space is None else space.limit // slot_bytes
        self.refused = ""
        self._said = ""  # of that, since a page was last written
        self._clock = clock
        self._again = -np.inf  # when writing is tried again
        self._sums = np.zeros(self.n_slots, np.uint32)
        self._free: list[int] = []
        self._next = 0  # no slot from here on was used
        if space is not None and self.n_slots:
            try:
                space.path.mkdir(parents=True, exist_ok=True)
                self._file, name = tempfile.mkstemp(prefix="pagedrun-", dir=space.path)
                Path(name).unlink()
            except OSError as e:
                hint = "choose a folder that can be written to, or set disk_space to 0"
                raise UsageError(f"there can be no spill file in {space.path}: {e.strerror}", hint=hint) from e
            weakref.finalize(self, os.close, self._file)

    @property
    def used(self) -> int:
        """How many slots hold a page."""
        return self._next - len(self._free)

    @property
    def willing(self) -> bool:
        """Whether writing can be tried; not for a while after the disk was full or failed."""
        return self._clock() >= self._again

    @property
    def free_slots(self) -> list[int]:
        """Numbers of the slots that were used and are not any more."""
        return list(self._free)

    def write(self, data: npt.NDArray[np.uint8]) -> int:
        """Keep a page, shape (slot_bytes,), contiguous; answers its slot, or NONE when that was refused."""
        if not self.willing or self.used == self.n_slots:
            return NONE
        if not self._free:
            self._free.append(self._next)
            self._next += 1
        slot, contents = self._free.pop(), data.data
        try:
            self._write(slot, contents)
        except OSError as e:
            self._refuse(e.strerror or str(e))
            self._free.insert(0, slot)  # it may be this place that is bad: the others come first
            return NONE
        self._sums[slot] = zlib.crc32(contents)
        self._said = ""
        return slot

    def read(self, slot: int) -> npt.NDArray[np.uint8] | None:
        """What was put into a slot, shape (slot_bytes,); None, with a line in the log, when it is not that any more."""
        try:
            data = self._read(slot)
        except OSError as e:
            log.warning("a page cannot be read from the disk: %s", e.strerror or e)
            return None
        if len(data) < self.slot_bytes or zlib.crc32(data) != self._sums[slot]:
            log.warning("a page was not read from the disk as it was written (%d bytes)", len(data))
            return None
        return np.frombuffer(data, np.uint8)

    def free(self, slots: npt.NDArray[np.int64]) -> None:
        """These pages are not needed any more."""
        self._free += slots.tolist()

    def _refuse(self, said: str) -> None:
        if said != self._said:
            log.warning("the spill file takes no more (disk_space), and idle pages stay in RAM: %s", said)
        self.refused = self._said = said
        self._again = self._clock() + RETRY_S

    def _write(self, slot: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            n = os.pwrite(self._file, data[done:], slot * self.slot_bytes + done)
            if not n:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += n

    def _read(self, slot: int) -> bytes:
        data = b""
        while len(data) < self.slot_bytes:
            more = os.pread(self._file, self.slot_bytes - len(data), slot * self.slot_bytes + len(data))
            if not more:
                break
            data = data + more if data else more
        return data
