"""From the engine's thread into the event loop.

engine thread    step | put put put tell | compute ...
event loop                                 take: reads, writes JSON, sends, while the engine needs no interpreter
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pagedrun.request import Event

Tagged = tuple[int, Event]


class Wakes:
    """Bridges with something for the event loop. It is woken once for all of them, when the engine begins to compute.

    Woken earlier it would take the interpreter from the engine between two steps. For the engine's thread.
    """

    def __init__(self) -> None:
        self._due: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []

    def add(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Have `wake` called in the loop."""
        self._due.append((loop, wake))

    def tell(self) -> None:
        """Wake whom there is something for."""
        if self._due:
            due, self._due = self._due, []
            with suppress(RuntimeError):  # the loop has ended
                due[0][0].call_soon_threadsafe(_call_all, [wake for _, wake in due])


def _call_all(wakes: list[Callable[[], None]]) -> None:
    for wake in wakes:
        wake()


class Bridge:
    """Events of one request's choices, put by the engine thread and taken in the event loop.

    on_event is called in the loop for each event, also when nobody takes them any more. However many events come
    between two turns of the loop, they wake it once.
    """

    def __init__(self, on_event: Callable[[int, Event], None], wakes: Wakes) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakes = wakes
        self._on_event = on_event
        self._sent: deque[Tagged] = deque()
        self._arrived: list[Tagged] = []
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False

    def put(self, index: int, event: Event) -> None:
        """For the engine thread. Never blocks."""
        self._sent.append((index, event))
        if not self._woken:
            self._woken = True
            self._wakes.add(self._loop, self._wake)

    async def take(self, timeout_s: float | None) -> list[Tagged]:
        """What came since the last time; empty when nothing did for so long."""
        if not self._arrived:
            self._waiter = waiter = self._loop.create_future()
            timer = None if timeout_s is None else self._loop.call_later(timeout_s, _release, waiter)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        taken, self._arrived = self._arrived, []
        return taken

    def _wake(self) -> None:
        self._woken = False  # first: what is put from now on wakes the loop again
        while self._sent:
            tagged = self._sent.popleft()
            self._on_event(*tagged)
            self._arrived.append(tagged)
        _release(self._waiter)


def _release(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
