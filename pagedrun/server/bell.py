"""Waking an event loop from the engine's thread, which does not wait for it.

    engine thread ── ring: a queue ──> bell's thread ── call_soon_threadsafe: a system call ──> event loop

For a system call Python's lock is given up. Were it the engine that made it, the loop would have the lock until all
streams were served, and the model nothing to do. To put something into a queue gives up no lock: the bell's thread gets
it when the engine computes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

Work = Callable[[], None]
Due = tuple[asyncio.AbstractEventLoop, Work]


class Bell:
    """Has work done in event loops. Close it after whoever rings; what was rung for before is still heard."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[Due | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pagedrun-bell", daemon=True)
        self._thread.start()

    def ring(self, loop: asyncio.AbstractEventLoop, work: Work) -> None:
        """Have something done in a loop, soon; nothing, when it has ended. From any thread; never blocks."""
        self._due.put((loop, work))

    def close(self) -> None:
        """Wait until all is passed on."""
        self._due.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (due := self._due.get()) is not None:
            loop, work = due
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(work)
