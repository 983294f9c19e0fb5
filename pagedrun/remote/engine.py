"""What a server has under a name."""

from __future__ import annotations

from dataclasses import dataclass

from pagedrun import __version__, wire
from pagedrun.config import EngineConfig
from pagedrun.errors import EngineError
from pagedrun.model import ModelInfo
from pagedrun.remote.address import Address, get, unreadable
from pagedrun.sessions import Identity
from pagedrun.step import RunnerLimits

_LOAD_S = 3600.0  # of a model that the server has to load first


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEngine:
    """A model of a server, loaded. name: what it is called there. keeps: whether it saves conversations."""

    name: str
    model: ModelInfo
    limits: RunnerLimits
    context_hint: str
    config: EngineConfig
    identity: Identity | None
    keeps: bool
    keep_alive_s: float


def connect(address: Address, name: str) -> RemoteEngine:
    """The model of that name; the server loads it if need be. Raises KeyNeededError, EngineError."""
    get(address, "/health")  # one that is stuck is not waited for
    found = get(address, "/v1/pagedrun/engine", read_s=_LOAD_S, model=name)
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
        )
    except (ValueError, KeyError, TypeError) as e:
        raise unreadable(address) from e
