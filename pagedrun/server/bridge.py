"""Events of one request, from the engine's thread into the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pagedrun.request import Event
from pagedrun.server.bell import Bell

Tagged = tuple[int, Event]


class Bridge:
    """Events of one request's choices, put by the engine thread and taken in the event loop.

    on_event is called in the loop for each event, also when nobody takes them any more. However many events come
    between two turns of the loop, they wake it once.
    """

    def __init__(self, bell: Bell, on_event: Callable[[int, Event], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell = bell
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
            self._bell.ring(self._loop, self._wake)

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
