"""What a server has of a loaded model: its names, limits, and who is being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pagedrun.config import EngineConfig
from pagedrun.server.bell import Bell
from pagedrun.server.errors import ApiError
from pagedrun.server.gate import Gate
from pagedrun.server.metrics import Metrics, ModelMetrics
from pagedrun.service import Service
from pagedrun.units import count

if TYPE_CHECKING:
    from pagedrun.engine import EngineStats
    from pagedrun.memory import Holds
    from pagedrun.model import ModelInfo
    from pagedrun.plan import Plan
    from pagedrun.step import RunnerLimits, Vocab

#: What a model is for.
Kind = Literal["text", "embedding"]

T = TypeVar("T")
L = TypeVar("L", bound="Loaded")


class Open(Protocol):
    """Answers under way."""

    def cancel(self) -> None:
        """End what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How to serve; names, think and sampling_for are a model's, all else is the server's.

    names: what clients may call the model; the first is what it is called in answers. max_queue: answers that may wait
    for one of those that run. max_body: bytes of a request. keep_alive_s: the longest silence of a stream; grace_s: how
    long running answers may go on when the server stops. keys: who knows one may ask; none: everybody. cors: origins
    whose pages may ask, "*" for all. hosts: names by which it may be called; none: any. system: for chats that have no
    system message. think: None leaves it to the template. sampling_for: recommended settings, by whether it thinks.
    responses: a folder for what `previous_response_id` goes on from; None: in memory. saving_s: how long conversations
    may be saved at the end.
    secret: who knows it is the server's own user; "": nobody is.
    """

    names: tuple[str, ...]
    max_queue: int = 64
    max_body: int = 32 << 20
    keep_alive_s: float = 5.0
    grace_s: float = 30.0
    keys: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    system: str | None = None
    think: bool | None = None
    sampling_for: Callable[[bool | None], Mapping[str, Any]] | None = None
    responses: Path | None = None
    saving_s: float = 30.0
    secret: str = ""


class AnyService(Protocol):
    """A loaded model, whatever it is for."""

    @property
    def model(self) -> ModelInfo:
        """Its facts."""

    @property
    def plan(self) -> Plan | None:
        """What was to go where; None where llama.cpp decided."""

    @property
    def holds(self) -> Holds:
        """What memory it has, or may take."""

    @property
    def limits(self) -> RunnerLimits:
        """How many requests are computed together, and tokens of each."""

    @property
    def vocab(self) -> Vocab:
        """Its vocabulary."""

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""

    @property
    def stats(self) -> EngineStats:
        """Running totals."""

    def close(self) -> None:
        """Free it."""


@dataclass(eq=False)
class Loaded:
    """One loaded model. prepare: a thread for templates and tokens, which would hold up the event loop.

    It is one thread because a template may be used by one at a time. users: requests that have it, whether or not the
    engine works for them. kind: what it is for. otherwise: what one of its kind says to who asks for something else.
    """

    kind: ClassVar[Kind]
    otherwise: ClassVar[str]

    service: AnyService
    settings: ServeSettings
    config: EngineConfig = field(default_factory=EngineConfig)
    started: float = field(default_factory=time.time)
    open_answers: set[Open] = field(default_factory=set)
    users: int = 0

    def __post_init__(self) -> None:
        self.gate = Gate(self.service.limits.max_num_seqs, self.settings.max_queue)
        self.metrics: ModelMetrics = Metrics().of(self.name)
        self.prepare = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-prepare")

    @cached_property
    def name(self) -> str:
        """What the model is called in answers."""
        return self.settings.names[0]

    @property
    def busy(self) -> bool:
        """Whether somebody would miss it."""
        return self.users > 0 or self.gate.inside > 0

    @property
    def facts(self) -> dict[str, Any]:
        """What there is to know of a model of its kind."""
        return {}

    @property
    def summary(self) -> str:
        """How much it takes at once, in a few words."""
        limits = self.service.limits
        return f"context {count(limits.max_seq_len, 'token')} · {count(limits.max_num_seqs, 'answer')} at once"

    async def aside(self, work: Callable[[], T]) -> T:
        """Do something slow on the preparing thread. Raises what it does."""
        return await asyncio.get_running_loop().run_in_executor(self.prepare, work)

    def stop(self) -> None:
        """Take no more requests; what runs may go on until `cancel_all`."""
        self.gate.stopping = True

    def cancel_all(self) -> None:
        """End what runs; clients are told."""
        for answers in list(self.open_answers):
            answers.cancel()

    def close(self) -> None:
        """Save what is to be saved and free the model, after the last request. Takes a while."""
        self.prepare.shutdown(cancel_futures=True)  # first: nobody reads the vocabulary any more then
        self.service.close()


@dataclass(eq=False)
class Serving(Loaded):
    """A model that generates text."""

    kind = "text"
    otherwise = "generates text: it makes no embeddings. Name one for embeddings in 'model'."

    service: Service

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bell = Bell()
        self._sizes: dict[int, int] = {}

    def close(self) -> None:
        """See `Loaded`."""
        super().close()
        self.bell.close()

    @property
    def facts(self) -> dict[str, Any]:
        """How it chats."""
        templates = self.service.templates
        return {"supports_thinking": templates.supports_thinking, "chat_template": templates.source}

    def piece_size(self, token: int) -> int:
        """Bytes of a token's text."""
        if token not in self._sizes:
            self._sizes[token] = len(self.service.vocab.piece(token, special=True))
        return self._sizes[token]


def of_kind(served: Loaded, kind: type[L]) -> L:
    """The model, for who needs one of that kind. Raises ApiError for another."""
    if isinstance(served, kind):
        return served
    message = f"the model '{served.name}' {served.otherwise}"
    raise ApiError(400, message, param="model", code="model_not_supported")
