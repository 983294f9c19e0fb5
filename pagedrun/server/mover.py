"""Loads models for those that wait, and gives memory back: what is used no more, or has to make room for another.

Models are loaded one at a time, in the order in which they were asked for. One that finds no room has those unloaded
that nobody uses, the one used longest ago first. Where all are in use, that one gets no new requests until it has gone,
and the requests for it wait behind the model that makes it go: so everybody gets their turn.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pagedrun.errors import NotEnoughMemoryError, PagedrunError
from pagedrun.server.errors import ApiError, not_ready, of_ours
from pagedrun.server.metrics import Metrics
from pagedrun.server.served import Served
from pagedrun.server.serving import Loaded

log = logging.getLogger("pagedrun.server")

T = TypeVar("T")


class Mover:
    """For the event loop, but `close`. models: all of them, a list that may grow. keep_s: how long one stays without
    requests; None: for ever. say: gets a line for each that comes or goes.
    """

    def __init__(
        self,
        models: Sequence[Served],
        metrics: Metrics,
        *,
        keep_s: float | None,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self.keep_s = keep_s
        self._say = say
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-load")
        self._line = asyncio.Lock()  # first come, first served
        self._moving = asyncio.Lock()  # while it is looked what fits, nothing comes or goes
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._late: Loaded | None = None  # what was loaded when the loop had ended
        self._stopping = False

    @property
    def loaded(self) -> list[Served]:
        """Those that have memory, and are not about to give it back at once."""
        return [one for one in self._models if one.serving is not None and one.state in ("loaded", "leaving")]

    def adopt(self, served: Served, serving: Loaded) -> None:
        """A model is loaded."""
        serving.metrics = self._metrics.of(serving.name)
        serving.gate.on_empty = lambda: self.let_go(served)
        served.serving = serving
        served.used, served.used_at = self._clock(), time.time()
        served.slots = serving.gate.slots
        served.turn("loaded")
        if self._stopping:
            serving.stop()

    def start(self) -> None:
        """The loop runs: from now on what nobody uses may go."""
        for one in self.loaded:
            self.let_go(one)

    async def wait_for(self, served: Served) -> Loaded:
        """The model, for one request, when it is loaded. Raises ApiError."""
        future: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        served.waiting.append(future)
        if served.state == "unloaded":
            served.turn("waiting")
            self._spawn(self._bring(served))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(served, future.result())
            future.cancel()
            self._changed.set()  # perhaps nobody wants it any more
            raise

    def give_back(self, served: Served, serving: Loaded) -> None:
        """A request needs it no more."""
        serving.users -= 1
        if served.serving is serving:
            self.let_go(served)

    def let_go(self, served: Served) -> None:
        """If nobody uses a model now, its time begins to run."""
        serving = served.serving
        if serving is None or serving.busy:
            return
        served.used, served.used_at = self._clock(), time.time()
        self._changed.set()
        self._watch()

    async def unload_unused(self) -> None:
        """Unload what nobody has used for so long."""
        for one in self.loaded:
            if self._clock() >= self._due(one):
                await self.unload(one, "idle")
        self._watch()

    def expect(self, served: Served, seconds: float) -> None:
        """A request may come so soon that it is no time to unload the model."""
        served.expected = self._clock() + seconds

    def stays_s(self, served: Served) -> float:
        """How long it stays after its last request, if none comes."""
        if self.keep_s is None or served.source is None:
            return math.inf
        return max(self.keep_s, served.expected - served.used)

    async def unload(self, served: Served, why: str) -> bool:
        """Save its conversations and give its memory back; not while it is in use. Whether it was done."""
        async with self._moving:
            serving = served.serving
            if serving is None or serving.busy or served.source is None or self._stopping:
                return False
            if why == "idle" and self._clock() < self._due(served):  # it was used while something else came
                return False
            served.turn("unloading")
            try:
                await self._run(serving.close)
            finally:
                served.ended(serving.service.stats)
                served.serving = None
                served.turn("unloaded")
                self._metrics.unloads.labels(why).inc()
        self._say(f"{served.name} is unloaded: {_WHY[why]}")
        self._changed.set()
        if served.n_waiting:
            served.turn("waiting")
            self._spawn(self._bring(served))
        return True

    def stop(self) -> None:
        """Load nothing more. Who waits is told."""
        self._stopping = True
        for one in self._models:
            one.fail(not_ready("the server is stopping"))
        self._changed.set()

    def close(self) -> None:
        """Save what is to be saved, and free all models, when the loop has ended."""
        self._stopping = True
        self._thread.shutdown(wait=True)
        for serving in [one.serving for one in self._models if one.serving] + ([self._late] if self._late else []):
            serving.close()

    # inside

    async def _bring(self, served: Served) -> None:
        """Load it, if somebody still waits for it when it is its turn."""
        try:
            async with self._line:
                if await self._room_for(served):
                    await self._load(served)
        except (ApiError, PagedrunError) as e:
            if not self._stopping:
                self._say(_failed(served, e.message))
            served.fail(_told(served, e))
        except Exception as e:
            log.exception("loading %s failed", served.name)
            served.fail(ApiError(500, f"{served.name} cannot be loaded: {e}", code="internal_error"))
        finally:
            if served.serving is None:
                served.turn("unloaded")
                if served.n_waiting and not self._stopping:  # came when the others had just left
                    served.turn("waiting")
                    self._spawn(self._bring(served))

    async def _room_for(self, served: Served) -> bool:
        """Wait until there is room; False when nobody waits any more."""
        try:
            while served.n_waiting and not self._stopping:
                self._changed.clear()
                if await self._fits(served) or not any(one.source for one in self.loaded):
                    return True
                await self._make_room()
            return False
        finally:
            for one in self._models:
                if one.state == "leaving":  # another went, or nobody had to
                    one.turn("loaded")
                    one.hand_over()

    async def _fits(self, served: Served) -> bool:
        async with self._moving:
            beside, source = self._beside(), served.source
            assert source is not None
            return not beside or await self._run(lambda: source.fits(beside))

    def _beside(self) -> list[Loaded]:
        return [one.serving for one in self._models if one.serving is not None]

    async def _make_room(self) -> None:
        """Unload one that is not used, or let one come to its end and wait until something has changed."""
        loaded = [one for one in self.loaded if one.source is not None]
        unused = [one for one in loaded if one.serving is not None and not one.serving.busy]
        if unused:
            await self.unload(min(unused, key=lambda one: one.used), "room")
            return
        if loaded and not any(one.state == "leaving" for one in loaded):
            min(loaded, key=lambda one: one.used).turn("leaving")
        await self._changed.wait()

    async def _load(self, served: Served) -> None:
        async with self._moving:
            served.turn("loading")
            self._say(f"loading {served.name}")
            began, beside, source = self._clock(), self._beside(), served.source
            assert source is not None

            def load() -> Loaded:
                self._late = source.load(beside, lambda: self._stopping)
                return self._late

            serving = await self._run(load)
            self._late = None
        served.last_load_s = self._clock() - began
        self._metrics.loads.labels(served.name).observe(served.last_load_s)
        self.adopt(served, serving)
        self._say(f"{served.name} is loaded")
        served.hand_over()
        self.let_go(served)

    def _watch(self) -> None:
        """Look again when the next may be unused for long enough."""
        unused = [self._due(one) for one in self.loaded if one.serving is not None and not one.serving.busy]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min(unused, default=math.inf)
        if due == math.inf or self._stopping:
            return

        def look() -> None:
            self._timer = None
            self._spawn(self.unload_unused())

        self._timer = asyncio.get_running_loop().call_later(max(due - self._clock(), 0.0), look)

    def _due(self, served: Served) -> float:
        return served.used + self.stays_s(served)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_WHY = {"idle": "nobody used it", "room": "another needs the memory", "asked": "as asked"}


def _failed(served: Served, why: str) -> str:
    return why if "cannot be loaded" in why else f"{served.name} cannot be loaded: {why}"


def _told(served: Served, error: ApiError | PagedrunError) -> ApiError:
    """Why a model could not be loaded, for the clients that waited."""
    if isinstance(error, ApiError):
        return error
    told = of_ours(error)
    told.message = _failed(served, told.message)
    if isinstance(error, NotEnoughMemoryError):  # others may leave some
        return ApiError(503, told.message, code="not_enough_memory", headers={"Retry-After": "30"})
    return told
