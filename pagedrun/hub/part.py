"""A file that is coming: what has come of it survives a kill, and goes on next time.

FOLDER/lock    held by whoever fetches
FOLDER/part    the bytes so far
FOLDER/id      which content they belong to: its checksum, or what the server calls this version, and the address
FOLDER/total   how many bytes it will have, where that is known

FOLDER is `.pull/` and the file's place in the models folder, so that two pulls of one place meet; for what is only
fetched to be converted, in the cache folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pagedrun.errors import DiskFullError, DownloadError, PagedrunError
from pagedrun.hub import folders
from pagedrun.paths import cache_dir, models_dir
from pagedrun.units import size

OnBytes = Callable[[int], None]

_BLOCK = 1 << 20
_POLL_S = 0.2


def root_of(final: Path) -> tuple[Path, str]:
    """The folder of ours that `final` will be in, models or cache, and the variable that moves it."""
    if final.is_relative_to(models_dir()):
        return models_dir(), "PAGEDRUN_MODELS"
    return cache_dir(), "PAGEDRUN_CACHE"


def folder_of(final: Path) -> Path:
    """Where the unfinished part of the file that will be at `final` lies."""
    root, _ = root_of(final)
    return root / ".pull" / final.relative_to(root)


class Part:
    """The bytes so far, with their running checksum. Only for who holds the lock: see `opened`."""

    def __init__(self, folder: Path, identity: str, total: int | None) -> None:
        self.path = folder / "part"
        self._id = folder / "id"
        self._total = folder / "total"
        self._n_bytes = total
        self.identity = identity
        self.size = 0
        self.digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def take_up(self, on_bytes: OnBytes) -> None:
        """Go on with what an earlier run left, if it is of the same content; it is hashed once."""
        try:
            same = bool(self.identity) and self._id.read_text(encoding="utf-8") == self.identity
        except (OSError, UnicodeDecodeError):
            same = False
        if not same or not self.path.exists():
            self.restart()
            return
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                self.digest.update(block)
                self.size += len(block)
                on_bytes(self.size)

    def restart(self) -> None:
        """Forget what has come."""
        self.close()
        self.size = 0
        self.digest = hashlib.sha256()
        with self.path.open("wb"):
            pass
        self._id.write_text(self.identity, encoding="utf-8")
        self._total.write_text(str(self._n_bytes or ""), encoding="ascii")

    def append(self, block: bytes) -> None:
        """Add what has come."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=_BLOCK)
        self._file.write(block)
        self.digest.update(block)
        self.size += len(block)

    def close(self) -> None:
        """Bring everything to the file. Raises OSError when the disk is full."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def head(self, n_bytes: int) -> bytes:
        """Its first bytes."""
        if self._file is not None:
            self._file.flush()
        with self.path.open("rb") as file:
            return file.read(n_bytes)

    def become(self, final: Path) -> None:
        """Give it its name."""
        self.close()
        final.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(final)


@contextmanager
def opened(final: Path, identity: str, total: int | None, on_wait: OnBytes) -> Iterator[Part]:
    """The part of `final`, under its lock. While another has it, `on_wait` hears how many bytes that one has.

    total: the bytes it will have, where that is known.
    """
    folder = folder_of(final)
    descriptor = _locked(folder, on_wait)
    part = Part(folder, identity, total)
    try:
        yield part
    finally:
        with suppress(OSError):  # a full disk has been told already, by whoever wrote
            part.close()
        _clear(folder)
        os.close(descriptor)


def discard(final: Path) -> int:
    """Remove the unfinished part of `final`; returns the bytes freed, 0 when there is none or it is being fetched."""
    folder = folder_of(final)
    if not folder.is_dir():
        return 0
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed = _size(folder / "part")
        (folder / "part").unlink(missing_ok=True)
        _clear(folder)
        return freed
    except BlockingIOError:
        return 0
    finally:
        os.close(descriptor)


def bytes_of(final: Path) -> int:
    """How many bytes of `final` an unfinished part has."""
    return _size(folder_of(final) / "part")


def total_of(final: Path) -> int | None:
    """How many bytes `final` will have, as far as an unfinished part knows."""
    text = folders.text_of(folder_of(final) / "total")
    return int(text) if text.isdecimal() else None


def address_of(final: Path) -> str | None:
    """Where an unfinished part comes from, if only its address tells that."""
    _, _, address = folders.text_of(folder_of(final) / "id").rpartition(" ")
    return address or None


def disk_error(error: OSError, final: Path) -> PagedrunError:
    """What it means that the part, or `final`, could not be written."""
    from pagedrun.runtime import space

    _, variable = root_of(final)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"the disk is full: {size(space.free(final.parent))} are free in {final.parent}",
            hint=f"free some space, or set {variable} to a folder on a larger disk; what has come is kept",
        )
    return DownloadError(
        f"cannot write {error.filename or final}: {error.strerror or error}",
        hint=f"make it writable for you, or set {variable} to another folder",
    )


def _locked(folder: Path, on_wait: OnBytes) -> int:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # whoever finished has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(descriptor, folder / "lock"):
                return descriptor
        except BlockingIOError:
            on_wait(_size(folder / "part"))
            time.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the lock file is still the one at its path: who finishes removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _clear(folder: Path) -> None:
    """Remove what is of no use without a part, and the folders that are empty then."""
    if _size(folder / "part"):
        return
    for name in ("part", "id", "total", "lock"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for empty in (folder, *folder.parents):
        if empty in (models_dir(), cache_dir()):
            return
        try:
            empty.rmdir()
        except OSError:
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
