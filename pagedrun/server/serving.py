"""What a running server has: the model, its names, limits, and who is being answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedrun import __version__
from pagedrun.config import EngineConfig
from pagedrun.server.errors import ApiError
from pagedrun.server.gate import Gate
from pagedrun.server.metrics import Metrics
from pagedrun.server.responses_store import Responses
from pagedrun.service import Service

if TYPE_CHECKING:
    from pagedrun.server.answers import Answers

FINGERPRINT = f"pagedrun-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How to serve.

    names: what clients may call the model; the first is what it is called in answers. max_queue: answers that may wait
    for one of those that run. max_body: bytes of a request. keep_alive_s: the longest silence of a stream; grace_s: how
    long running answers may go on when the server stops. keys: who knows one may ask; none: everybody. cors: origins
    whose pages may ask, "*" for all. hosts: names by which it may be called; none: any. system: for chats that have no
    system message. think: None leaves it to the template. sampling_for: recommended settings, by whether it thinks.
    responses: a folder for what `previous_response_id` goes on from; None: in memory. saving_s: how long conversations
    may be saved at the end.
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


@dataclass(eq=False)
class Serving:
    """One server. prepare: a thread for templates, tokens and large bodies, which would hold up the event loop.

    It is one thread because a template may be used by one at a time.
    """

    service: Service
    settings: ServeSettings
    config: EngineConfig = field(default_factory=EngineConfig)
    started: float = field(default_factory=time.time)
    open_answers: set[Answers] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate = Gate(self.service.limits.max_num_seqs, self.settings.max_queue)
        self.metrics = Metrics(self)
        self.responses = Responses(self.settings.responses)
        self.prepare = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-prepare")
        self._sizes: dict[int, int] = {}

    @cached_property
    def name(self) -> str:
        """What the model is called in answers."""
        return self.settings.names[0]

    def check_model(self, name: str | None) -> None:
        """Raise ApiError for a model that is not served; no name is the one that is."""
        if name is not None and name not in self.settings.names:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist; this server has '{self.name}'.",
                param="model",
                code="model_not_found",
            )

    def piece_size(self, token: int) -> int:
        """Bytes of a token's text."""
        if token not in self._sizes:
            self._sizes[token] = len(self.service.vocab.piece(token, special=True))
        return self._sizes[token]

    def stop(self) -> None:
        """Take no more requests; what runs may go on until `cancel_all`."""
        self.gate.stopping = True

    def cancel_all(self) -> None:
        """End what runs; clients are told."""
        for answers in list(self.open_answers):
            answers.cancel()

    def close(self) -> None:
        """After the last request. The service is the caller's to close; nobody reads its vocabulary any more then."""
        self.prepare.shutdown(cancel_futures=True)
        self.responses.close()
