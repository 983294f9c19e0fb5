"""One request, from its body to the end of its answer, whatever API it belongs to.

read ──> prepare (beside the loop) ──> submit ──> the first piece ──> a response, or a stream of events

A client that leaves ends it at any of these, and what the engine computes for it, within one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pagedrun.errors import PagedrunError
from pagedrun.server.answers import Answers, Piece, Task
from pagedrun.server.body import Gone
from pagedrun.server.errors import ApiError, of_ours
from pagedrun.server.replies import Presenter
from pagedrun.server.serving import Serving

T = TypeVar("T")

_KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answering(Response):
    """The response to a request for text. prepare: makes the task, on the preparing thread."""

    def __init__(self, serving: Serving, prepare: Callable[[], Task], presenter: Presenter, *, stream: bool) -> None:
        super().__init__()
        self._serving = serving
        self._prepare = prepare
        self._presenter = presenter
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; errors too."""
        with suppress(Gone):
            await unless_gone(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, presenter = self._serving, self._presenter
        started = False
        try:
            serving.gate.check()
            task = await asyncio.get_running_loop().run_in_executor(serving.prepare, self._prepare)
            async with Answers(serving, task) as answers:
                if not self._stream:
                    while not answers.ended:
                        await answers.more(serving.settings.keep_alive_s)
                    await JSONResponse(presenter.whole(answers))(scope, receive, send)
                    return
                # What goes wrong at once is an error like any other; after a while the client has to hear something.
                pieces = await answers.more(serving.settings.keep_alive_s)
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                async for data in self._events(answers, pieces):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ApiError, PagedrunError) as e:
            error = e if isinstance(e, ApiError) else of_ours(e)
            if not started:
                response = JSONResponse(presenter.error_body(error), error.status, error.headers)
                await response(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": presenter.failed(error), "more_body": False})

    async def _events(self, answers: Answers, pieces: list[Piece]) -> AsyncIterator[bytes]:
        presenter = self._presenter
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
        until = loop.time() + self._serving.settings.keep_alive_s
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
