"""One setup at a time: a file lock that lives as long as anybody who builds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagedrun.errors import SetupError


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Hold the lock file `path`; `on_wait` is called once when somebody else has it.

    Raises SetupError when its folder cannot be written to.

    Yields the descriptor. Give it to child processes (`pass_fds`): the lock is then held until the last of them
    has ended, so a compiler that outlives a killed setup is waited for, not joined in its folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise SetupError(f"{path.parent} cannot be used: {e.strerror}", hint="make it writable for you") from e
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
