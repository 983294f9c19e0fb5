"""Sessions through a server: whatever becomes of it, what was said is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pagedrun import running
from pagedrun.durable import PagesGoneError
from pagedrun.errors import PagedrunError, SessionError
from pagedrun.remote.address import Address
from pagedrun.remote.keeper import RemoteKeeper
from pagedrun.server.direct import refusal
from pagedrun.server.errors import ApiError

URL = "http://127.0.0.1:7243"


def saved_by(answer: Callable[[httpx.Request], httpx.Response]) -> PagedrunError | None:
    """What a save through a server that answers so ends with."""
    told: list[PagedrunError | None] = []

    async def run() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url=URL, headers={running.OWNER: "old"}) as client:
            tasks = []
            loop = asyncio.get_running_loop()
            keeper = RemoteKeeper(
                Address(url=URL, secret="old"),
                "m",
                client,
                lambda work: tasks.append(loop.create_task(work)),  # type: ignore[arg-type,return-value]
            )
            keeper.save("a", [1, 2], "hi", told.append)
            await asyncio.gather(*tasks)

    asyncio.run(run())
    (error,) = told
    return error


def error_of(error: PagedrunError | ApiError) -> httpx.Response:
    found = refusal(error)
    return httpx.Response(found.status_code, content=bytes(found.body))


def test_it_is_saved() -> None:
    assert saved_by(lambda request: httpx.Response(200, json={"saved": True})) is None


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_a_server_that_does_not_save_leaves_the_text_to_us(status: int) -> None:
    error = saved_by(lambda request: error_of(ApiError(status, "the server is stopping")))
    assert isinstance(error, PagesGoneError)


def test_why_a_session_cannot_be_saved_is_said() -> None:
    error = saved_by(lambda request: error_of(SessionError("a was not saved: the disk is full")))
    assert isinstance(error, SessionError) and not isinstance(error, PagesGoneError)
    assert "the disk is full" in error.message


def test_another_server_at_the_same_address_is_asked_as_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    record = running.Record()
    record.write(URL, [])
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers[running.OWNER])
        own = asked[-1] == record.secret
        return httpx.Response(200, json={}) if own else error_of(ApiError(403, "for its own user"))

    try:
        assert saved_by(answer) is None
    finally:
        record.close()
    assert asked == ["old", record.secret]
    assert isinstance(saved_by(lambda request: error_of(ApiError(403, "for its own user"))), PagesGoneError)
