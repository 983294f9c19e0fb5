"""The system calls that session files are made with, in one object: tests put a failing one in its place."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.005
PRIVATE = 0o600  # what people said is theirs


class Disk:
    """A file system. Every method raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor of a regular file; a pipe or a device is refused, and not waited for."""
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return fd

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        """All of it."""
        done = 0
        while done < len(data):
            n = os.pwrite(fd, data[done:], offset + done)
            if not n:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += n

    def read(self, fd: int, out: memoryview, offset: int) -> int:
        """Fill `out`; fewer bytes where the file ends."""
        done = 0
        while done < len(out):
            n = os.preadv(fd, [out[done:]], offset + done)
            if not n:
                break
            done += n
        return done

    def sync(self, fd: int) -> None:
        """Return when the file's bytes and size are on the device."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Make the file `size` bytes long."""
        os.ftruncate(fd, size)

    def replace(self, old: Path, new: Path) -> None:
        """Give a file another name, over whatever has it."""
        old.replace(new)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the device."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def size_of(fd: int) -> int:
    """Bytes of an open file."""
    return os.fstat(fd).st_size


def locked(fd: int, kind: int) -> bool:
    """Take a lock of fcntl.LOCK_SH or LOCK_EX that lasts as long as the descriptor; False when others have it, or where
    there are no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def shared(fd: int, wait_s: float) -> bool:
    """Take a shared lock, which a writer may hold up for so long; False when it did, or where there are no locks."""
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return False


def idle(path: Path) -> bool:
    """Whether nobody has a lock on the file at this moment."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return locked(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)
    return False


def forget(fd: int) -> None:
    """The page cache need not keep the file: it is read around it (O_DIRECT)."""
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
