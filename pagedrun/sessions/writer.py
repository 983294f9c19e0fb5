"""Saving one conversation into its file.

    anew     NAME.kv does not exist, or has another conversation:  .NAME.kv.RANDOM.new is written, and renamed over it
    append   it has an earlier state of this one (`Mark`):         what is new goes to free places of the file, then one
                                                                   write of 4 KiB makes it the state (see `format`)

Killed at any moment, both leave the old state or the new one. What is synced, and why:

    append   data before the superblock: else a power cut could leave a superblock whose pages never came
             the superblock: the save is done only when it would outlive a power cut
    anew     the file before its name, and the folder after it, for the same two reasons

Appending needs the file's exclusive lock. Whoever does not get it, because somebody reads or saves the session, writes
anew: so two writers never share a file, and the last one that completes has the name. A file of which more than half
would be holes is written anew as well.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun.sessions.disk import Disk, forget, locked, size_of
from pagedrun.sessions.format import Head, Mark
from pagedrun.sessions.plan import Contents, Plan
from pagedrun.sessions.reader import Session, aligned, read_index
from pagedrun.sessions.trouble import DamagedSessionError, SessionError, not_saved

#: Called with the bytes by which files are about to grow, and what makes them grow or gives one its name. Raises
#: SessionError.
Room = Callable[[int, Callable[[], None]], None]

ASIDE = ".new"  # how the names of files end that are being written


def save(
    path: Path,
    contents: Contents,
    *,
    since: Mark | None = None,
    room: Room = lambda n_bytes, grow: grow(),
    disk: Disk | None = None,
    clock: Callable[[], float] = time.time,
) -> Mark:
    """Save a conversation. since: what `path` may have of it already.

    Raises SessionError, and what `contents.page` raises; the file is then as it was.
    """
    disk = disk or Disk()
    job = _Job(path, contents, room, disk, int(clock()))
    try:
        mark = job.append(since) if since else None
        return mark or job.anew()
    except OSError as e:
        raise not_saved(path, e) from e


def copied(session: Session, *, name: str) -> Contents:
    """All of another file. Its `page` and `snapshot` raise DamagedSessionError for what is not as it was written."""
    buffer = aligned(1, session.meta.identity.frame_bytes)
    damaged = DamagedSessionError(
        f"{session.path.name} is damaged", hint="it can still be used as far as it is whole, but not copied"
    )

    def page(number: int) -> npt.NDArray[np.uint8]:
        if not session.read_pages(number, buffer):
            raise damaged
        one: npt.NDArray[np.uint8] = buffer[0]
        return one

    def snapshot(position: int) -> bytearray:
        data = session.read_snapshot(position)
        if data is None:
            raise damaged
        return data

    meta = session.meta
    return Contents(
        identity=meta.identity,
        tokens=session.tokens,
        page=page,
        snapshots=meta.snapshots,
        snapshot=snapshot,
        name=name,
        model=meta.model,
        note=meta.note,
        usage=meta.usage,
        created=meta.created,
    )


class _Job:
    """One save."""

    def __init__(self, path: Path, contents: Contents, room: Room, disk: Disk, now: int) -> None:
        self.path = path
        self.contents = contents
        self.room = room
        self.disk = disk
        self.now = now

    def anew(self) -> Mark:
        """All of it, beside what is there, and then over it."""
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:12]}{ASIDE}")
        plan = Plan(self.contents, self.now)
        fd = -1

        def create() -> None:
            nonlocal fd
            fd = self.disk.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            locked(fd, fcntl.LOCK_EX)  # it says that its writer is alive
            self.disk.truncate(fd, plan.end)

        try:
            self.room(plan.end, create)
            head = plan.write(self.disk, fd, 0)
            self.disk.write(fd, memoryview(head.pack()), head.at)
            self.disk.sync(fd)
            self.room(0, lambda: self.disk.replace(aside, self.path))  # nobody counts it under both names, or neither
            forget(fd)
        except BaseException:
            if fd >= 0:
                with suppress(OSError):
                    aside.unlink()
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        self.disk.sync_folder(self.path.parent)
        return Mark(head.digest, plan.meta.n_tokens)

    def append(self, since: Mark) -> Mark | None:
        """None where the file has to be written anew."""
        try:
            fd = self.disk.open(self.path, os.O_RDWR)
        except OSError:
            return None
        try:
            return self._append(fd, since)
        finally:
            os.close(fd)

    def _append(self, fd: int, since: Mark) -> Mark | None:
        if not locked(fd, fcntl.LOCK_EX):
            return None
        try:
            old, newest = read_index(fd, self.path, self.disk)
        except (SessionError, OSError):
            return None
        if old.head.digest != since.state or old.meta.identity != self.contents.identity:
            return None
        before = size_of(fd)
        common = _common(old.tokens, np.asarray(self.contents.tokens))
        plan = Plan(self.contents, self.now, old, min(since.n_tokens, common))
        if 2 * plan.n_bytes < max(plan.end, before):
            return None
        generation = newest + 1 + (newest + 1 - old.head.generation + 1) % 2  # into the other place than the old one's
        try:
            grow = max(plan.end - before, 0)
            self.room(grow, lambda: self.disk.truncate(fd, max(plan.end, before)))
            head = plan.write(self.disk, fd, generation)
            self.disk.sync(fd)
        except BaseException:
            self._undo(fd, before)
            raise
        try:
            self.disk.write(fd, memoryview(head.pack()), head.at)
            self.disk.sync(fd)
        except BaseException:
            self._undo(fd, before, head)
            raise
        if plan.end < before:
            with suppress(OSError):
                self.disk.truncate(fd, plan.end)
        forget(fd)
        return Mark(head.digest, plan.meta.n_tokens) if _is_at(fd, self.path) else None

    def _undo(self, fd: int, size: int, head: Head | None = None) -> None:
        """As far as the system lets us; what remains otherwise is a new state that is whole, or bytes of no state."""
        with suppress(OSError):
            if head is not None:
                self.disk.write(fd, memoryview(bytes(len(head.pack()))), head.at)
            self.disk.truncate(fd, size)


def _common(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """How many tokens are the same from the first on."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _is_at(fd: int, path: Path) -> bool:
    """Whether the file still has that name: it may have been replaced or removed while it was written."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False
