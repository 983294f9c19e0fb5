"""Requests to a server, and their events.

caller's thread --request--> event loop on a thread of its own --HTTP--> server
                <--events---

Each request says what this side knows of the model (`RemoteEngine.loaded`). A server that has it loaded otherwise by
now, another one at the same address say, refuses it; then that is learned, and the request made again. Where its queue
is full, it is asked again when it said that there may be room.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from pagedrun import running, wire
from pagedrun.errors import EngineError, ModelError, PagedrunError, ReloadedError
from pagedrun.remote.address import CONNECT_S, Address, checked, unreachable
from pagedrun.remote.asking import Asking
from pagedrun.remote.engine import RemoteEngine, connect_again
from pagedrun.remote.keeper import RemoteKeeper
from pagedrun.request import Finished, GenerationRequest, RequestId, TextDelta
from pagedrun.sampling import LLAMA_DEFAULTS
from pagedrun.service import Answerer, Stream
from pagedrun.step import RunnerLimits, Vocab

if TYPE_CHECKING:
    from pagedrun.chat import ChatTemplates
    from pagedrun.engine import Sink
    from pagedrun.kv import KvStats

log = logging.getLogger(__name__)

_SILENCES = 6  # as long as a server's streams may be silent, after which it is taken for dead
_SHORTEST_SILENCE_S = 30.0
_FULL = httpx.codes.TOO_MANY_REQUESTS
_CANCEL_S = 1.0  # for a server to end an answer and say so
_CLOSE_S = 3.0


class RemoteService(Answerer):
    """A model of a server. sampling_defaults: the registry's, as for a model in this process."""

    def __init__(
        self,
        address: Address,
        engine: RemoteEngine,
        vocab: Vocab,
        templates: ChatTemplates,
        *,
        sampling_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.where = address.url
        self.model = engine.model
        self.templates = templates
        self.identity = engine.identity
        self._address, self._engine, self._vocab = address, engine, vocab
        self._defaults = (sampling_defaults or {}, engine.model.sampling, LLAMA_DEFAULTS)
        self._ids = itertools.count()
        self._kv: KvStats | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pagedrun-client", daemon=True)
        self._thread.start()
        silence = max(_SILENCES * engine.keep_alive_s, _SHORTEST_SILENCE_S)
        self._client = httpx.AsyncClient(**address.options, timeout=httpx.Timeout(CONNECT_S, read=silence))
        self._keeper = RemoteKeeper(address, engine.name, self._client, self._soon) if engine.keeps else None

    @property
    def pid(self) -> int | None:
        """The server's."""
        return self._address.pid

    @property
    def limits(self) -> RunnerLimits:
        """As the server has them."""
        return self._engine.limits

    @property
    def context_hint(self) -> str:
        """As the server says it."""
        return self._engine.context_hint

    @property
    def vocab(self) -> Vocab:
        """Of the same file, here."""
        return self._vocab

    @property
    def kv(self) -> KvStats | None:
        """The server's pages when an answer last ended here."""
        return self._kv

    @property
    def keeper(self) -> RemoteKeeper | None:
        """The server's."""
        return self._keeper

    def refresh(self) -> None:
        """Ask the server again. Where it does not answer, the next request says so."""
        if not self._loop.is_closed():
            with suppress(PagedrunError, httpx.HTTPError):
                self._soon(self._learn()).result()

    def call(self, work: Callable[[], None]) -> None:
        """At once: what `keeper` does is done by the server, in this order."""
        work()

    def submit(self, request: GenerationRequest, sink: Sink | None = None) -> Stream:
        """See `Answerer`."""
        self._check(request)
        if self._loop.is_closed():
            raise EngineError("the connection to the server is closed")
        asking = Asking(replace(request, sampling=request.sampling.with_defaults(*self._defaults)))
        stream = Stream(RequestId(next(self._ids)), lambda: self._end(asking))
        asking.sink = sink or stream.put
        asking.future = self._soon(self._ask(asking))
        asking.future.add_done_callback(lambda _: asking.gone())
        return stream

    def close(self) -> None:
        """Leave: what runs for us the server ends within a step."""
        if self._loop.is_closed():
            return
        with suppress(Exception):
            self._soon(self._leave()).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _soon(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end(self, asking: Asking) -> None:
        if not asking.over and not self._loop.is_closed():
            self._soon(self._cancel(asking))

    async def _leave(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    async def _ask(self, asking: Asking) -> None:
        try:
            try:
                await self._in_turn(asking)
            except ReloadedError:
                await self._learn()
                self._check(asking.request)
                await self._in_turn(asking)
        except PagedrunError as e:
            asking.failed(e)
        except httpx.HTTPError as e:
            asking.failed(unreachable(self._address, e))
        except (ValueError, KeyError, TypeError) as e:
            asking.failed(EngineError(f"what the server at {self.where} says cannot be read: {e}"))

    async def _in_turn(self, asking: Asking) -> None:
        """Ask until there is room in the server's queue."""
        told = False
        while (seconds := await self._generate(asking)) is not None:
            if not told:
                told = True
                log.warning("the server at %s has a full queue: waiting for a place", self.where)
            await asyncio.sleep(seconds)

    async def _generate(self, asking: Asking) -> float | None:
        """An answer, if there is room for it; else after how many seconds to ask again."""
        engine, request = self._engine, wire.request_to_json(asking.request)
        body = {"id": asking.id, "model": engine.name, "loaded": engine.loaded, "request": request}
        began = False
        try:
            async with self._client.stream("POST", "/v1/pagedrun/generate", json=body) as answer:
                if answer.status_code == _FULL:
                    return _seconds(answer.headers.get("retry-after", ""))
                if answer.status_code != 200:
                    await answer.aread()
                    checked(self._address, answer)
                began = True
                asking.ended(await self._follow(answer, asking))
        except httpx.HTTPError as e:
            raise self._broken_off() if began else unreachable(self._address, e) from e
        return None

    async def _learn(self) -> None:
        """How the model is loaded now. Raises PagedrunError, ModelError where it is another one; httpx.HTTPError."""
        record = running.at(self._address.url)
        if record is not None and record.secret != self._address.secret:
            self._address = replace(self._address, secret=record.secret, pid=record.pid)
            self._client.headers[running.OWNER] = record.secret
        found = await connect_again(self._client, self._address, self._engine.name)
        was, now = self._engine.identity, found.identity
        if (was and was.model) != (now and now.model):
            hint = "leave, and start again"
            raise ModelError(f"the server at {self.where} has another file under the name {found.name} now", hint=hint)
        self._engine = found

    async def _follow(self, answer: httpx.Response, asking: Asking) -> Finished:
        async for line in answer.aiter_lines():
            event = wire.event_from_json(json.loads(line)) if line else None
            if isinstance(event, TextDelta):
                asking.said(event)
            elif event is not None:
                self._kv = event.kv
                if self._keeper is not None and event.kept is not None:
                    self._keeper.learn(event.kept)
                return event.finished
        raise self._broken_off()

    async def _cancel(self, asking: Asking) -> None:
        """Ask the server to end it, as it then says how far it came; leave where that takes long."""
        with suppress(httpx.HTTPError, asyncio.TimeoutError):
            await asyncio.wait_for(self._client.post("/v1/pagedrun/cancel", json={"id": asking.id}), _CANCEL_S)
            until = self._loop.time() + _CANCEL_S
            while not asking.over and self._loop.time() < until:
                await asyncio.sleep(0.005)
        asking.cancel()

    def _broken_off(self) -> EngineError:
        hint = "pagedrun ps lists the servers that run; --no-server loads the model here"
        return EngineError(f"the server at {self.where} ended in the middle of the answer", hint=hint)


def _seconds(retry_after: str) -> float:
    """Of the header; a proxy may send a date, or nothing."""
    return float(retry_after) if retry_after.isdecimal() else 1.0
