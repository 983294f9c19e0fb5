"""Reading a session file: what of it is as it was written, and nothing else.

    | page 0 | page 1 | page 2 damaged | page 3 |      usable_tokens: those that lie in pages 0 and 1, all of their row
       read     read     computed again, not served

Pages are checked when they are read, so opening is cheap and `usable_tokens` shrinks when a damaged one turns up.
Snapshots behind it are of no use. What cannot be read from the disk counts as damaged.

A reader has a shared lock, so that nobody writes to places that its state has and newer ones do not. While a save is
under way it waits for the new state, but not for long: then it goes on with the old one and without a lock. That save
leaves this state alone, and what a further one takes of it is found by its checksum.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from pagedrun.sessions.disk import Disk, shared, size_of
from pagedrun.sessions.format import DATA, VERSION, Index, Mark, Meta, Tokens, unpack_head, unpack_index
from pagedrun.sessions.identity import Identity
from pagedrun.sessions.places import ALIGN, padded
from pagedrun.sessions.trouble import (
    DamagedSessionError,
    OtherIdentityError,
    OtherVersionError,
    SessionError,
    not_read,
)

log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

LARGEST = 32 << 20  # bytes of one read
WAIT_S = 5.0  # for a save to end
_REFUSED = (errno.EINVAL, errno.EFAULT, errno.EOPNOTSUPP)  # what direct reads are refused with


def aligned(*shape: int) -> Bytes:
    """An array of zeros that begins at a multiple of 4 KiB, as direct reads need it."""
    n = int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, max(n, 1)), np.uint8, n).reshape(shape)


def read_index(fd: int, path: Path, disk: Disk, level: int = logging.WARNING) -> tuple[Index, int]:
    """The state that an open file is in, and the newest generation that any of its superblocks speaks of.

    Raises SessionError; OSError where it cannot be read at all.
    """
    n_bytes = size_of(fd)
    blocks = bytearray(DATA)
    disk.read(fd, memoryview(blocks), 0)
    found = [(at, unpack_head(bytes(blocks[at : at + ALIGN]))) for at in (0, ALIGN)]
    heads = sorted((h for at, h in found if h is not None and h.at == at), key=lambda h: -h.generation)
    reason = "it has no header as pagedrun writes one"
    for head in heads:
        if head.version != VERSION:
            raise OtherVersionError(
                f"{path.name} is of version {head.version} of the format, and this pagedrun reads {VERSION}",
                hint="use the pagedrun that saved it",
            )
        try:
            if head.offset + head.n_bytes > n_bytes:
                raise ValueError(f"it is truncated to {n_bytes:,} bytes")
            data = bytearray(head.n_bytes)
            disk.read(fd, memoryview(data), head.offset)
            return unpack_index(head, bytes(data)), heads[0].generation
        except (ValueError, OSError) as e:
            reason = str(e) if isinstance(e, ValueError) else f"its index cannot be read: {e.strerror}"
            log.log(level, "%s, generation %d: %s", path.name, head.generation, reason)
    raise DamagedSessionError(f"{path.name} cannot be used: {reason}", hint="remove it, or restore a copy")


def describe(path: Path, *, disk: Disk | None = None) -> Meta:
    """What a file says of itself. Raises SessionError."""
    with Session(path, disk=disk, direct=False, lock=False) as session:
        return session.meta


@dataclass(frozen=True, slots=True)
class Checked:
    """What reading all of a file found: usable tokens of all, and how many pages and snapshots are damaged."""

    usable_tokens: int
    n_tokens: int
    bad_pages: int
    bad_snapshots: int

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.bad_pages and not self.bad_snapshots


class Session:
    """An open file, in the state that it had when it was opened. Close it when the conversation has been loaded.

    identity: what has to agree; None: nothing has to (to list and copy files). direct: whether to read around the page
    cache where that can be. level: at which the log is told of damage. Raises SessionError.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity | None = None,
        *,
        disk: Disk | None = None,
        direct: bool = True,
        lock: bool = True,
        level: int = logging.WARNING,
    ) -> None:
        self.path = path
        self._level = level
        self._disk = disk or Disk()
        try:
            self._fd = self._disk.open(path, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._fd)
            try:
                if lock:
                    shared(self._fd, WAIT_S)
                self.index, _ = read_index(self._fd, path, self._disk, level)
                if identity is not None and (differences := self.meta.identity.differences(identity)):
                    raise OtherIdentityError(path, differences)
            except BaseException:
                self.close()
                raise
        except OSError as e:
            raise not_read(path, e) from e
        self._size = size_of(self._fd)
        self._bounce = np.zeros(0, np.uint8)
        self._direct = direct and self._set_direct(True)
        self.good_pages = self.meta.n_pages  # those before the first that was found to be damaged
        self._bad_snapshots: set[int] = set()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go, and with it the lock."""
        self._close()

    @property
    def meta(self) -> Meta:
        """What the file says of itself."""
        return self.index.meta

    @property
    def tokens(self) -> Tokens:
        """The token ids of the conversation, all of them: those that are not usable can be computed again."""
        return self.index.tokens

    @property
    def usable_tokens(self) -> int:
        """How many tokens from the first on have their pages, as far as pages were read."""
        return min(self.meta.n_tokens, self.meta.identity.tokens_in(self.good_pages))

    @property
    def mark(self) -> Mark:
        """For a conversation that took the usable tokens from here: its next save writes again what is damaged."""
        return self.index.mark.cut(min([self.usable_tokens, *(p - 1 for p in self._bad_snapshots)]))

    @property
    def usable_snapshots(self) -> tuple[int, ...]:
        """Tokens after which there is a recurrent state, in the usable part; those found damaged are left out."""
        positions = (position for position, _ in self.meta.snapshots)
        return tuple(p for p in positions if p <= self.usable_tokens and p not in self._bad_snapshots)

    def read_pages(self, first: int, out: Bytes) -> int:
        """Read pages from `first` on into `out`, shape (n, frame_bytes), contiguous; answers how many are good.

        What lies in `out` behind those means nothing. An array from `aligned` is read into without a copy, and several
        threads may do so at once.
        """
        n = max(min(len(out), self.good_pages - first), 0)
        rows = self.index.pages[first : first + n]
        for begin, end in self._runs(rows["offset"].astype(np.int64)):
            came = self._read(int(rows["offset"][begin]), out[begin:end])
            for i in range(begin, end):
                if i - begin >= came or zlib.crc32(out[i].data) != rows["sum"][i]:
                    log.log(self._level, "%s: page %d is damaged; it is computed again", self.path.name, first + i)
                    self.good_pages = min(self.good_pages, first + i)
                    return i
        return n

    def read_snapshot(self, position: int) -> bytearray | None:
        """The recurrent state after so many tokens; None where it is damaged, or behind a damaged page."""
        if position not in self.usable_snapshots:
            return None
        at = [p for p, _ in self.meta.snapshots].index(position)
        row, n_bytes = self.index.snapshots[at], self.meta.snapshots[at][1]
        offset = int(row["offset"])
        data = bytearray(n_bytes if offset + n_bytes <= self._size else 0)
        came = len(data) == n_bytes and self._read(offset, np.frombuffer(data, np.uint8).reshape(1, -1))
        if came and zlib.crc32(data) == row["sum"]:
            return data
        log.log(self._level, "%s: the state after %d tokens is damaged", self.path.name, position)
        self._bad_snapshots.add(position)
        return None

    def check(self) -> Checked:
        """Read all of it."""
        n_pages, frame = self.meta.n_pages, self.meta.identity.frame_bytes
        buffer = aligned(max(min(LARGEST // padded(frame), n_pages), 1), frame)
        self.good_pages = first_bad = n_pages
        for position in self.usable_snapshots:
            self.read_snapshot(position)
        bad = at = 0
        while at < n_pages:
            self.good_pages, wanted = n_pages, min(len(buffer), n_pages - at)
            good = self.read_pages(at, buffer[:wanted])
            if good < wanted:
                first_bad, bad, good = min(first_bad, at + good), bad + 1, good + 1
            at += good
        self.good_pages = first_bad
        return Checked(self.usable_tokens, self.meta.n_tokens, bad, len(self._bad_snapshots))

    def _runs(self, offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Ranges of pages that are neighbours in the file, each no larger than one read."""
        slot = padded(self.meta.identity.frame_bytes)
        most = max(LARGEST // slot, 1)
        begin = 0
        for i in range(1, len(offsets) + 1):
            if i == len(offsets) or offsets[i] != offsets[i - 1] + slot or i - begin == most:
                yield begin, i
                begin = i

    def _read(self, offset: int, out: Bytes) -> int:
        """Read neighbours of out.shape[1] bytes each; answers how many came."""
        n, n_bytes = out.shape
        slot = padded(n_bytes)
        try:
            if n_bytes == slot and out.ctypes.data % ALIGN == 0:
                return self._fill(offset, out.reshape(-1)) // slot
            if self._bounce.size < n * slot:
                self._bounce = aligned(n * slot)
            there = self._bounce[: n * slot]
            came = int(self._fill(offset, there) + slot - n_bytes) // slot
            out[:came] = there.reshape(n, slot)[:came, :n_bytes]
            return came
        except OSError as e:
            log.warning("%s cannot be read at %d: %s", self.path.name, offset, e.strerror or e)
            return 0

    def _fill(self, offset: int, out: Bytes) -> int:
        try:
            return self._disk.read(self._fd, out.data, offset)
        except OSError as e:
            if not self._direct or e.errno not in _REFUSED:
                raise
        self._direct = self._set_direct(False)
        return self._disk.read(self._fd, out.data, offset)

    def _set_direct(self, on: bool) -> bool:
        """Read around the page cache from now on, or through it; answers whether it is around it."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return on


__all__ = ["Checked", "Session", "SessionError", "aligned", "describe", "read_index"]
