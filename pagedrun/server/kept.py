"""Named sessions of `chat` and `complete` through a server: its own user's, in files that both of them can reach.

Who has a session, and what is said in it, is the client's affair.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import Field
from starlette.responses import JSONResponse, Response

from pagedrun.durable.named import stored
from pagedrun.errors import PagedrunError, SessionError
from pagedrun.server.direct import refusal
from pagedrun.server.errors import ApiError
from pagedrun.server.fields import Strict
from pagedrun.server.serving import Serving
from pagedrun.server.tokens import check_tokens

if TYPE_CHECKING:
    from pagedrun.durable import Keeper


class UseRequest(Strict):
    """A session that was saved before."""

    name: str = Field(min_length=1, max_length=200)
    model: str | None = Field(None, max_length=512)


class SaveRequest(UseRequest):
    """What a session is from now on. tokens: of its last prompt and answer; note: what was said."""

    tokens: list[int]
    note: str


async def use(serving: Serving, asked: UseRequest) -> Response:
    """Raises ApiError."""
    service, keeper = serving.service, _keeper(serving)
    try:
        found = await serving.aside(lambda: stored(keeper.folder, asked.name, keeper.identity))
    except PagedrunError as e:
        return refusal(e)
    service.call(lambda: keeper.register(("named", asked.name), *found))
    return JSONResponse({"tokens": len(found[0])})


async def save(serving: Serving, asked: SaveRequest) -> Response:
    """Answers when it is saved, or cannot be. Raises ApiError."""
    service, keeper = serving.service, _keeper(serving)
    check_tokens(serving, asked.tokens, "tokens")
    loop = asyncio.get_running_loop()
    done: asyncio.Future[PagedrunError | None] = loop.create_future()

    def tell(error: PagedrunError | None) -> None:
        if not done.done():  # the client may have left
            done.set_result(error)

    def told(error: PagedrunError | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, error)

    def work() -> None:
        try:
            keeper.save(asked.name, asked.tokens, asked.note, told)
        except BaseException:  # the engine's thread says which
            told(SessionError(f"{asked.name} was not saved: the server failed"))
            raise

    if not service.alive:
        return refusal(SessionError(f"{asked.name} was not saved: the engine has stopped"))
    service.call(work)
    error = await done
    return JSONResponse({"saved": True}) if error is None else refusal(error)


def _keeper(serving: Serving) -> Keeper:
    if (keeper := serving.service.keeper) is None:
        raise ApiError(404, "this model has no pages that could be kept", code="no_keeper")
    return keeper
