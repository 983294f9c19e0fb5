"""What a server has under a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from pagedrun import __version__, wire
from pagedrun.config import EngineConfig
from pagedrun.errors import EngineError
from pagedrun.model import ModelInfo
from pagedrun.remote.address import CONNECT_S, Address, checked, get, unreadable
from pagedrun.sessions import Identity
from pagedrun.step import RunnerLimits

_PATH = "/v1/pagedrun/engine"
_LOAD_S = 3600.0  # of a model that the server has to load first


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEngine:
    """A model of a server, loaded. name: what it is called there. keeps: whether it saves conversations.

    loaded: stands for all of it.
    """

    name: str
    model: ModelInfo
    limits: RunnerLimits
    context_hint: str
    config: EngineConfig
    identity: Identity | None
    keeps: bool
    keep_alive_s: float
    loaded: str


def connect(address: Address, name: str) -> RemoteEngine:
    """The model of that name; the server loads it if need be. Raises KeyNeededError, EngineError."""
    get(address, "/health")  # one that is stuck is not waited for
    return _parsed(address, get(address, _PATH, read_s=_LOAD_S, model=name))


async def connect_again(client: httpx.AsyncClient, address: Address, name: str) -> RemoteEngine:
    """The same through a client's connections. Raises httpx.HTTPError too."""
    checked(address, await client.get("/health", timeout=CONNECT_S))
    return _parsed(address, checked(address, await client.get(_PATH, params={"model": name}, timeout=_LOAD_S)))


def _parsed(address: Address, found: Any) -> RemoteEngine:
    try:
        if (found["wire"], found["version"]) != (wire.VERSION, __version__):
            raise EngineError(f"{address.url} is a server of another version of pagedrun ({found['version']})")
        identity = found["identity"]
        return RemoteEngine(
            name=str(found["name"]),
            model=wire.restored(ModelInfo, found["model"]),
            limits=wire.restored(RunnerLimits, found["limits"]),
            context_hint=str(found["context_hint"]),
            config=wire.restored(EngineConfig, found["config"]),
            identity=None if identity is None else Identity.from_json(identity),
            keeps=bool(found["keeps"]),
            keep_alive_s=float(found["keep_alive_s"]),
            loaded=str(found["loaded"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise unreadable(address) from e
