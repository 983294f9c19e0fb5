"""Where a server is, what it answers to a question, and how what it refuses is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

from pagedrun import wire
from pagedrun.errors import EngineError, PagedrunError
from pagedrun.running import OWNER

CONNECT_S = 3.0

_LOOPBACK = ("127.", "localhost", "[::1]")


class KeyNeededError(PagedrunError):
    """The server answers only who sends one of its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server. url: without /v1. key: "" for none. pid, secret: of the user's own servers on this machine."""

    url: str
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    pid: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of a client. Proxies are for other machines."""
        headers = {"authorization": f"Bearer {self.key}".encode() if self.key else b"", OWNER: self.secret.encode()}
        local = self.url.partition("://")[2].startswith(_LOOPBACK)
        return {
            "base_url": self.url,
            "headers": {name: value for name, value in headers.items() if value},
            "trust_env": not local,
        }


def get(address: Address, path: str, *, read_s: float = CONNECT_S, **query: str) -> Any:
    """What a server answers to a question. Raises KeyNeededError, EngineError."""
    return _asked(address, "GET", path, read_s, params=query)


def post(address: Address, path: str, data: Any, *, read_s: float = CONNECT_S) -> Any:
    """The same with a body. Raises also what the server says went wrong."""
    return _asked(address, "POST", path, read_s, json=data)


def _asked(address: Address, method: str, path: str, read_s: float, **more: Any) -> Any:
    try:
        with httpx.Client(**address.options, timeout=httpx.Timeout(CONNECT_S, read=read_s)) as client:
            answer = client.request(method, path, **more)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
        raise unreachable(address, e) from e
    return checked(address, answer)


def checked(address: Address, answer: httpx.Response) -> Any:
    """The JSON of a response. Raises PagedrunError for one that is an error, or nothing of ours."""
    try:
        found = answer.json()
        if answer.status_code == 200:
            return found
        error = found["error"]
        ours = found.get("pagedrun")
        told = (
            EngineError(f"the server at {address.url}: {error['message']}")
            if ours is None
            else wire.error_from_json(ours)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise unreadable(address) from e
    if answer.status_code == 401:
        raise _key_needed(address)
    raise told


def unreachable(address: Address, error: Exception) -> EngineError:
    """Nobody answers."""
    why = str(error) or type(error).__name__
    return EngineError(f"the server at {address.url} does not answer: {why}", hint="pagedrun ps lists those that run")


def unreadable(address: Address) -> EngineError:
    """Somebody else does."""
    return EngineError(f"{address.url} is no server of this version of pagedrun")


def _key_needed(address: Address) -> KeyNeededError:
    said = "does not know the key in PAGEDRUN_API_KEY" if address.key else "wants an API key"
    return KeyNeededError(f"the server at {address.url} {said}", hint="set PAGEDRUN_API_KEY to one of its keys")
