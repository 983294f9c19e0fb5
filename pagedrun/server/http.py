"""One request, from its body to the end of its answer, whatever API it belongs to.

read ──> load the model ──> prepare (beside the loop) ──> submit ──> the first piece ──> a response, or its events

A client that leaves ends it at any of these, and what the engine computes for it, within one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pagedrun.errors import GrammarError, PagedrunError
from pagedrun.server.answers import Answers, Piece, Task
from pagedrun.server.body import Gone, read_json
from pagedrun.server.errors import ApiError, of_ours
from pagedrun.server.fields import validated
from pagedrun.server.guard import body_for, event_for
from pagedrun.server.models import Models
from pagedrun.server.replies import Presenter
from pagedrun.server.serving import Serving, of_kind

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


#: What makes a request's task, on the preparing thread, and what presents its answers.
Begun = tuple[Callable[[], Task], Presenter]


async def asked_of(models: Models, request: Request, kind: type[M], refused: Mapping[str, str] | None = None) -> M:
    """What a request asks for; refused: see `validated`. Raises ApiError, and Gone when the client left."""
    return validated(kind, await body_of(models, request), refused)


async def body_of(models: Models, request: Request) -> dict[str, Any]:
    """What was sent. Raises ApiError, and Gone when the client left."""
    return await read_json(request, models.settings.max_body, models.prepare)


class Answering(Response):
    """The response to a request for text of the model of that name.

    begin: is called when it is loaded. form: the field that says what form the answer has, if one does.
    """

    def __init__(
        self,
        models: Models,
        name: str | None,
        begin: Callable[[Serving], Begun],
        *,
        stream: bool,
        form: str | None = None,
    ) -> None:
        super().__init__()
        self._models = models
        self._name = name
        self._begin = begin
        self._stream = stream
        self._form = form
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; errors too."""
        with suppress(Gone):
            await unless_gone(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        presenter: Presenter | None = None
        try:
            serving = await self._loaded(send)
            serving.gate.check()
            prepare, presenter = self._begin(serving)
            task = await serving.aside(prepare)
            async with Answers(serving, task) as answers:
                if not self._stream:
                    while not answers.ended:
                        await answers.more(self._keep_alive_s)
                    await JSONResponse(presenter.whole(answers))(scope, receive, send)
                    return
                # What goes wrong at once is an error like any other; after a while the client has to hear something.
                pieces = await answers.more(self._keep_alive_s)
                await self._start(send)
                async for data in self._events(answers, presenter, pieces):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ApiError, PagedrunError) as e:
            error = (e if isinstance(e, ApiError) else of_ours(e)).asked_at(scope["path"])
            if isinstance(e, GrammarError):
                error.param = self._form
            if not self._started:
                body = presenter.error_body(error) if presenter else body_for(scope["path"], error)
                await JSONResponse(body, error.status, error.headers)(scope, receive, send)
                return
            last = presenter.failed(error) if presenter else event_for(scope["path"], error)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _loaded(self, send: Send) -> Serving:
        """The model. A stream says that it lives while it waits for it."""

        async def sign() -> None:
            if self._stream:
                await self._start(send)
                await send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})

        return of_kind(await self._models.serving_meanwhile(self._name, sign), Serving)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    @property
    def _keep_alive_s(self) -> float:
        return self._models.settings.keep_alive_s

    async def _events(self, answers: Answers, presenter: Presenter, pieces: list[Piece]) -> AsyncIterator[bytes]:
        if not pieces:
            yield _KEEP_ALIVE
        begun = False
        while True:
            events: list[bytes] = []
            if pieces and not begun:
                begun = True
                events += presenter.started(answers)
            for piece in pieces:
                events += presenter.piece(answers, piece)
            if answers.ended:
                events += presenter.ended(answers)
            if events:
                yield b"".join(events)
            if answers.ended:
                return
            pieces = await self._more(answers)
            if not pieces:
                yield _KEEP_ALIVE

    async def _more(self, answers: Answers) -> list[Piece]:
        """The next pieces; none when a sign of life is due."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._keep_alive_s
        pieces: list[Piece] = []
        while not pieces and (left := until - loop.time()) > 0:
            pieces = await answers.more(left)  # text that a parser holds back makes no piece
        return pieces


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises Gone then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for future in (working, watching):
            future.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def gone(request: Request, error: Exception) -> Response:
    """The response that nobody reads."""
    return Response(status_code=499)
