"""Tokens in, the engine's own events out, as `pagedrun.wire` writes them: a line for each, empty ones meanwhile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pagedrun import __version__, wire
from pagedrun.errors import EngineError, PagedrunError, ReloadedError
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest
from pagedrun.server.answers import Answers, Task
from pagedrun.server.body import Gone
from pagedrun.server.errors import ApiError, invalid, of_ours, unsupported
from pagedrun.server.fields import Strict
from pagedrun.server.http import unless_gone
from pagedrun.server.models import Models
from pagedrun.server.serving import Serving, of_kind

#: llama.cpp's kinds of grammar triggers that are texts or tokens. Others are patterns, and who may write these can have
#: them take any time and stack.
_PLAIN = (0, 1)
_MOST = 1024  # strings in a list
_INT32 = 2**31
#: In which a client of the server's own user goes on: begins a session, is answered, saves it.
SOON_S = 1.0


class GenerateRequest(BaseModel):
    """An answer to generate. id: chosen by the client, to cancel it. loaded: what `engine` said last, if it said so."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str = Field(pattern="^[0-9a-f]{32}$")
    model: str | None = Field(None, max_length=512)
    loaded: str | None = Field(None, max_length=64)
    request: GenerationRequest

    def check(self, *, owner: bool) -> None:
        """Raise ApiError for what could hold up or stop the server. owner: its own user asks."""
        request, grammar, reasoning = self.request, self.request.grammar, self.request.reasoning
        if len(request.stop) > _MOST or len(request.preserved_tokens) > _MOST:
            raise invalid(f"more than {_MOST} strings", "request")
        if reasoning is not None and not -1 <= (reasoning.budget_tokens or 0) < _INT32:
            raise invalid("'budget_tokens' is out of range", "request.reasoning.budget_tokens")
        for trigger in grammar.triggers if grammar is not None else ():
            if not owner and trigger.type not in _PLAIN:
                raise unsupported("request.grammar.triggers", "may have patterns from this server's own user only")
            if not -1 <= trigger.token < _INT32:
                raise invalid("a trigger's 'token' is out of range", "request.grammar.triggers")


class CancelRequest(Strict):
    """An answer that nobody needs any more."""

    id: str = Field(max_length=32)


class Direct(Answers):
    """One answer, whose events leave as they come."""

    def __init__(self, serving: Serving, request: GenerationRequest) -> None:
        super().__init__(serving, Task(requests=(request,)))
        self._unwanted = False

    def stop(self) -> None:
        """The client wants no more of it, but the end."""
        self._unwanted = True
        self.cancel()

    async def lines(self, timeout_s: float) -> AsyncIterator[bytes]:
        """The events; an empty line when there was none for so long. Raises PagedrunError when the server stops."""
        while not self.ended:
            events = await self._bridge.take(timeout_s)
            if not events:
                self._check_alive()
            yield b"".join(_line(self._told(event)) for _, event in events) or b"\n"

    def _told(self, event: Event) -> dict[str, Any]:
        if not isinstance(event, Finished):
            return wire.delta_to_json(event)
        self.choices[0].finished = event
        if event.reason is FinishReason.CANCELLED and not self._unwanted:
            return {"error": wire.error_to_json(EngineError("the server is stopping"))}
        service = self._serving.service
        kept = None if service.keeper is None else asdict(service.keeper.stats)
        return wire.ended_to_json(wire.Ended(event, service.stats.kv, kept))

    def _check_alive(self) -> None:
        if not self._serving.service.alive:
            raise EngineError("the engine has stopped")


class Generating(Response):
    """The response. under: answers by the ids that clients gave them. saves: whether the client may have a session."""

    def __init__(self, models: Models, asked: GenerateRequest, under: dict[str, Direct], *, saves: bool) -> None:
        super().__init__()
        self._models, self._asked, self._under = models, asked, under
        self._saves = saves
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; errors too."""
        with suppress(Gone):
            await unless_gone(receive, self._answer(scope, receive, send))
        if self._saves:
            self._models.expect_more(SOON_S)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            serving = await self._loaded(send)
            if self._asked.loaded not in (None, engine(serving)["loaded"]):
                raise ReloadedError(f"'{serving.name}' is loaded otherwise than before")
            answer = Direct(serving, self._asked.request)
            async with answer:
                self._under[self._asked.id] = answer
                await self._send(send, b"\n")  # it is known from now on
                async for data in answer.lines(self._models.settings.keep_alive_s):
                    await self._send(send, data)
            await self._send(send, b"", last=True)
        except (ApiError, PagedrunError) as e:
            if self._started:
                await self._send(send, _line({"error": wire.error_to_json(_of_api(e))}), last=True)
            else:
                await refusal(e)(scope, receive, send)
        finally:
            self._under.pop(self._asked.id, None)

    async def _loaded(self, send: Send) -> Serving:
        """The model; empty lines while it is being loaded."""
        sign = partial(self._send, send, b"\n")
        return of_kind(await self._models.serving_meanwhile(self._asked.model, sign), Serving)

    async def _send(self, send: Send, data: bytes, *, last: bool = False) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": data, "more_body": not last})


def _of_api(error: ApiError | PagedrunError) -> PagedrunError:
    return EngineError(f"the server says: {error.message}") if isinstance(error, ApiError) else error


def refusal(error: ApiError | PagedrunError) -> Response:
    """An error in the API's shape, with our own beside it, for clients that raise it again."""
    told = error if isinstance(error, ApiError) else of_ours(error)
    ours = {} if isinstance(error, ApiError) else {"pagedrun": wire.error_to_json(error)}
    return JSONResponse({**told.body, **ours}, told.status, told.headers)


def cancel(asked: CancelRequest, under: dict[str, Direct]) -> dict[str, Any]:
    """Whether there is such an answer."""
    if (answer := under.get(asked.id)) is not None:
        answer.stop()
    return {"found": answer is not None}


def engine(serving: Serving) -> dict[str, Any]:
    """The model and how it is loaded, for clients that have its file as well.

    `loaded` stands for all the rest, and for this server, as another one has another secret.
    """
    service = serving.service
    info = asdict(service.model)
    found = {
        "wire": wire.VERSION,
        "version": __version__,
        "name": serving.name,
        "model": {**info, "path": service.model.path.name, "sampling": dict(service.model.sampling)},
        "limits": asdict(service.limits),
        "context_hint": service.context_hint,
        "config": asdict(serving.config),
        "identity": None if service.identity is None else service.identity.to_json(),
        "keeps": service.keeper is not None,
        "keep_alive_s": serving.settings.keep_alive_s,
    }
    return {**found, "loaded": _digest(found, serving.settings.secret)}


def _digest(data: Any, key: str) -> str:
    return hashlib.blake2b(_line(data), key=key.encode(), digest_size=8).hexdigest()


def _line(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


_HEADERS = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
