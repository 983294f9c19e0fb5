"""Bytes of a folder: who has to go so that something fits. See `folder`."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pagedrun.sessions.disk import idle
from pagedrun.sessions.trouble import NoRoomError
from pagedrun.units import size

log = logging.getLogger(__name__)


class DiskBudget:
    """Of the files in ROOT/KIND, `limit` bytes at most. Everything that changes sizes there is to hold `locked`."""

    def __init__(self, root: Path, kind: str, limit: int) -> None:
        self.limit = limit
        self._root = root
        self._folder = root / kind

    @property
    def used(self) -> int:
        """Bytes of all files, with those that are being written."""
        return sum(map(size_at, files_of(self._folder)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes sizes. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def make_room(self, n_bytes: int, keep: Path) -> None:
        """Remove files until `n_bytes` more fit; `keep` goes last. Raises NoRoomError, and then nothing was removed."""
        leaving, lack = self._leaving(n_bytes, keep)
        if lack > 0:
            raise NoRoomError(
                f"{keep.name} takes {size(n_bytes)} more, for which cache_disk ({size(self.limit)}) has no room",
                hint="raise cache_disk",
            )
        for path in leaving:
            log.info("%s leaves the disk", path.name)
            path.unlink(missing_ok=True)

    def excess(self) -> list[Path]:
        """The files that are beyond the budget, which may have been lowered."""
        return self._leaving(0, None)[0]

    def _leaving(self, n_bytes: int, keep: Path | None) -> tuple[list[Path], int]:
        """Files that have to go, the least recently used first, and the bytes that are lacking even so."""
        lack = self.used + n_bytes - self.limit
        leaving: list[Path] = []
        if lack <= 0 or n_bytes > self.limit:
            return leaving, lack
        # What is hidden and idle was left by a process that died.
        order = sorted(files_of(self._folder), key=lambda p: (p == keep, p.name[0] != ".", used_at(p), p.name))
        for path in order:
            if lack > 0 and idle(path):
                lack -= size_at(path)
                leaving.append(path)
        return leaving, lack


def files_of(folder: Path) -> list[Path]:
    """The regular files in a folder, by name; none where there is no folder."""
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return []


def size_at(path: Path) -> int:
    """Bytes of a file; 0 when it has gone."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def used_at(path: Path) -> int:
    """When a file was last used, in ns since 1970; 0 when it has gone."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
