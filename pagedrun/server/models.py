"""The models of a server: which one a request means, and that it stays loaded while the request has it.

serving = await models.serving(asked.model)      the request's until its response has ended (`Models.request`)
models.peek(name)                                for who only looks
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from pagedrun.server.errors import ApiError, not_ready
from pagedrun.server.metrics import Metrics, Reading
from pagedrun.server.mover import Mover
from pagedrun.server.responses_store import Responses
from pagedrun.server.served import Served, Source
from pagedrun.server.serving import Kind, Loaded, ServeSettings

_held: ContextVar[list[tuple[Served, Loaded]] | None] = ContextVar("held", default=None)
_LOAD_S = 10.0  # until one was loaded


class Installed(Protocol):
    """Models that may be asked for although nobody named them at the start."""

    def kinds(self) -> Mapping[str, Kind]:
        """What they are called, and what each is for."""

    def source(self, name: str) -> Source | None:
        """The one of that name, if there is one. Fetches nothing."""


class Models:
    """All that a server answers with; for the event loop, but `close`.

    loaded: models that are; sources: those that are loaded when somebody asks for them. A source with the name of a
    loaded one is where that comes from when it was unloaded. installed: further ones that may be asked for. keep_s: how
    long one stays without requests; None: for ever. say: gets a line for each that comes or goes. prepare: a thread for
    large bodies.
    """

    def __init__(
        self,
        settings: ServeSettings,
        loaded: Sequence[Loaded] = (),
        sources: Sequence[Source] = (),
        *,
        installed: Installed | None = None,
        keep_s: float | None = None,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.started = time.time()
        self.all = [Served(source, source.settings) for source in sources]
        self.installed = installed
        self.metrics = Metrics(self.readings)
        self.mover = Mover(self.all, self.metrics, keep_s=keep_s, say=say, clock=clock)
        self.prepare = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-bodies")
        self.responses = Responses(settings.responses)
        self.stopping = False
        for serving in loaded:
            served = next((one for one in self.all if one.name == serving.name), None)
            if served is None:
                served = Served(None, serving.settings)
                self.all.append(served)
            self.mover.adopt(served, serving)

    @property
    def loaded(self) -> Sequence[Loaded]:
        """Those that are loaded."""
        return [one.serving for one in self.mover.loaded if one.serving is not None]

    async def serving(self, name: str | None) -> Loaded:
        """The model of that name; None: the first. It is loaded if it is not, which takes a while.

        Raises ApiError: 404 for one that is not served, 429 when too many wait for it, 503 when the server stops or it
        does not fit, 500 when it cannot be loaded.
        """
        if self.stopping:
            raise not_ready("the server is stopping")
        served = await self.find(name)
        serving = served.take()
        if serving is None:
            self._check_queue(served)
            serving = await self.mover.wait_for(served)
        held = _held.get()
        if held is None:  # nobody says when it ends
            self.mover.give_back(served, serving)
        else:
            held.append((served, serving))
        return serving

    async def serving_meanwhile(self, name: str | None, sign: Callable[[], Awaitable[None]]) -> Loaded:
        """The same; `sign` tells the client that the server lives, as long as it takes."""
        loading = asyncio.ensure_future(self.serving(name))
        try:
            while not (await asyncio.wait([loading], timeout=self.settings.keep_alive_s))[0]:
                await sign()
        finally:
            loading.cancel()
        return loading.result()

    async def find(self, name: str | None) -> Served:
        """The model that a name means, loaded or not; None: the first. Raises ApiError."""
        found = self._known(name)
        if found is None and self.installed is not None and name is not None:
            source = await asyncio.get_running_loop().run_in_executor(self.prepare, self.installed.source, name)
            found = self._known(name)  # meanwhile
            if found is None and source is not None:
                found = next((one for one in self.all if one.source is source), None)  # under another name
                found = found or self._known(source.settings.names[0])
                if found is None:
                    found = Served(source, source.settings)
                    self.all.append(found)
        if found is None:
            raise self._unknown(name or "")
        return found

    def peek(self, name: str | None) -> Loaded:
        """A loaded model, for who only looks; None: the first that is loaded. Raises ApiError."""
        if name is None:
            if self.loaded:
                return self.loaded[0]
            name = self.all[0].name
        found = self._known(name)
        if found is None:
            raise self._unknown(name)
        if found.serving is None:
            raise ApiError(404, f"'{found.name}' is not loaded", param="model", code="model_not_loaded")
        return found.serving

    @contextmanager
    def request(self) -> Iterator[None]:
        """What is asked for inside belongs to this request, and is given back when it ends."""
        held: list[tuple[Served, Loaded]] = []
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
            for served, serving in held:
                self.mover.give_back(served, serving)

    def expect_more(self, seconds: float) -> None:
        """Another request may follow so soon after this one that its model should still be there."""
        for served, _ in _held.get() or ():
            self.mover.expect(served, seconds)

    @property
    def answering(self) -> bool:
        """Whether answers are under way."""
        return any(serving.open_answers for serving in self.loaded)

    def start(self) -> None:
        """The loop runs."""
        self.mover.start()

    def stop(self) -> None:
        """Take no more requests; what runs may go on until `cancel_all`."""
        self.stopping = True
        self.mover.stop()
        for serving in self.loaded:
            serving.stop()

    def cancel_all(self) -> None:
        """End what runs; clients are told."""
        for serving in self.loaded:
            serving.cancel_all()

    def close(self) -> None:
        """Save what is to be saved, and free all of them. After the last request."""
        self.stopping = True
        self.prepare.shutdown(cancel_futures=True)
        self.responses.close()
        self.mover.close()

    def _known(self, name: str | None) -> Served | None:
        return next((one for one in self.all if name is None or name in one.settings.names), None)

    def _unknown(self, name: str) -> ApiError:
        known = [one.name for one in self.all]
        these = ", ".join(f"'{one}'" for one in known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
        message = f"The model '{name[:200]}' does not exist; this server has {these}."
        return ApiError(404, message, param="model", code="model_not_found")

    def _check_queue(self, served: Served) -> None:
        waiting = served.n_waiting
        if waiting >= served.slots + self.settings.max_queue:
            seconds = max(1, round(served.last_load_s or _LOAD_S))
            raise ApiError(
                429,
                f"{waiting} requests wait until {served.name} is loaded, and the queue is full. "
                f"Try again in {seconds} s.",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(seconds)},
            )

    def readings(self) -> list[Reading]:
        """What each of them is doing."""
        return [
            Reading(
                one.name,
                one.serving is not None,
                one.serving.gate.running if one.serving else 0,
                (one.serving.gate.waiting if one.serving else 0) + one.n_waiting,
                one.stats,
            )
            for one in self.all
        ]
