"""Disk space: asked for before the work, and recognised when it runs out in the middle."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagedrun.errors import DiskFullError
from pagedrun.units import size

_HINT = "free some space, or set PAGEDRUN_CACHE to a folder on a larger disk"
_MESSAGES = ("No space left on device", "Disk quota exceeded")


def free(path: Path) -> int:
    """Free bytes on the disk that `path` is on, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require(path: Path, n_bytes: int, purpose: str) -> None:
    """Raise DiskFullError unless `n_bytes` are free for `purpose` where `path` is."""
    available = free(path)
    if available < n_bytes:
        raise DiskFullError(
            f"{purpose} needs about {size(n_bytes)} in {path}, where {size(available)} are free", hint=_HINT
        )


@contextmanager
def watched(path: Path, purpose: str) -> Iterator[None]:
    """Turn "no space left" in this block into DiskFullError."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ran_out(path, purpose) from e


def ran_out(path: Path, purpose: str) -> DiskFullError:
    """The error for a disk that filled up during `purpose`."""
    return DiskFullError(f"the disk filled up while {purpose}: {size(free(path))} are free in {path}", hint=_HINT)


def is_out_of_space(output: str) -> bool:
    """Whether a program's output says that the disk is full."""
    return any(message in output for message in _MESSAGES)
