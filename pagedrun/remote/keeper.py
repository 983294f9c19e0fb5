"""Named sessions through a server, whose engine saves and restores them: in files that this user has anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import httpx

from pagedrun import running
from pagedrun.durable import KeeperStats, PagesGoneError
from pagedrun.errors import PagedrunError, SessionError
from pagedrun.remote.address import Address, checked, post

if TYPE_CHECKING:
    from pagedrun.durable.stored import Key
    from pagedrun.durable.wishes import Told
    from pagedrun.sessions import Mark

_SAVE_S = 600.0
_FORBIDDEN = 403


class RemoteKeeper:
    """What a session needs of a `Keeper`. Who has the session is seen to by this process.

    automatic: without effect, as a server also keeps what others say.
    """

    def __init__(
        self,
        address: Address,
        model: str,
        client: httpx.AsyncClient,
        soon: Callable[[Coroutine[Any, Any, None]], Future[None]],
    ) -> None:
        self.automatic = True
        self.stats = KeeperStats()
        self._address, self._model, self._client, self._soon = address, model, client, soon
        self._order = asyncio.Lock()

    def learn(self, stats: Mapping[str, Any]) -> None:
        """The server's figures."""
        self.stats = KeeperStats(**stats)

    def register(self, key: Key, tokens: Sequence[int], snapshots: Sequence[int], mark: Mark) -> None:
        """The server reads the file itself. Raises PagedrunError."""
        post(self._address, "/v1/pagedrun/sessions/use", {"model": self._model, "name": key[1]}, read_s=_SAVE_S)

    def save(self, name: str, tokens: Sequence[int], note: str, told: Told) -> None:
        """Have it saved; one after the other, as they were asked for."""
        data = {"model": self._model, "name": name, "tokens": list(tokens), "note": note}
        self._soon(self._save(data, told))

    async def _save(self, data: Mapping[str, Any], told: Told) -> None:
        error: PagedrunError | None = None
        try:
            async with self._order:
                answer = await self._post(data)
                if answer.status_code == _FORBIDDEN and self._another_server():
                    answer = await self._post(data)
                checked(self._address, answer)
        except SessionError as e:
            error = e
        except PagedrunError as e:  # it stops, say, or somebody else's runs there now
            error = PagesGoneError(e.message)
        except httpx.HTTPError as e:
            error = PagesGoneError(f"the server does not answer: {e}")
        except asyncio.CancelledError:
            error = PagesGoneError("the connection was closed")
        told(error)

    async def _post(self, data: Mapping[str, Any]) -> httpx.Response:
        return await self._client.post("/v1/pagedrun/sessions/save", json=data, timeout=_SAVE_S)

    def _another_server(self) -> bool:
        """Whether another server of this user runs at this address now; from here on it is the one that is asked."""
        one = running.at(self._address.url)
        if one is None or one.secret == self._client.headers.get(running.OWNER):
            return False
        self._client.headers[running.OWNER] = one.secret
        return True
