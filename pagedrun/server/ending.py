"""The end of a server's models: what conversations have computed is saved, in the time that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pagedrun.server.serving import Loaded, Serving
from pagedrun.units import count

_QUIET_S = 1.0  # a save that takes no longer needs no word
_LOOK_S = 0.05


class Ending:
    """Closes what has conversations. told: gets a line for people. For the event loop."""

    def __init__(self, loaded: Sequence[Loaded], saving_s: float, told: Callable[[str], None]) -> None:
        self._all = [one for one in loaded if isinstance(one, Serving)]
        self._services = [one.service for one in self._all]
        self._saving_s = saving_s
        self._told = told
        self._skipped = False

    @property
    def unsaved(self) -> int:
        """Conversations that are to be saved."""
        return sum(service.unsaved for service in self._services)

    def skip(self) -> None:
        """Save no more."""
        self._skipped = True
        for service in self._services:
            service.end(0)

    async def wait(self) -> None:
        """Until all are closed. Their models are freed then."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for one in self._all:
            one.prepare.shutdown(cancel_futures=True)  # nobody reads the vocabulary any more
            one.service.end(self._saving_s)
        quiet, left = True, 0
        while any(service.alive for service in self._services):
            await asyncio.sleep(_LOOK_S)
            if self._skipped or loop.time() - began >= self._saving_s:
                continue
            left = self.unsaved
            if quiet and left and loop.time() - began >= _QUIET_S:
                quiet = False
                self._told(f"saving {count(left, 'conversation')} (Ctrl-C skips it)")
        if left and (self._skipped or loop.time() - began >= self._saving_s):
            self._told(f"{count(left, 'conversation')} may not be saved: what they computed is computed again")
