"""Being told to end: what is half done is removed, as with Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that closes, leave the block through its cleaning up; exit code 128 + number.

    Not where they are ignored (nohup) or have a handler. For the main thread.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)  # cleaning up is not to be interrupted
        raise SystemExit(128 + number)

    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
