"""One model that requests may ask for, loaded or not, and who waits for it. See `models`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pagedrun.engine import EngineStats
from pagedrun.server.serving import Kind, Loaded, ServeSettings


class Source(Protocol):
    """Where a model comes from. Its methods take a while; they are called on one thread, one at a time."""

    @property
    def settings(self) -> ServeSettings:
        """Its names and ways, and the server's."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What is known of it before it is loaded, for lists."""

    @property
    def kind(self) -> Kind | None:
        """What it is for, as far as that is known without loading it."""

    def fits(self, beside: Sequence[Loaded]) -> bool:
        """Whether there is room for it beside these, as good as if it were alone. Raises what `load` would."""

    def load(self, beside: Sequence[Loaded], given_up: Callable[[], bool]) -> Loaded:
        """Load it into what these leave. given_up: whether nobody wants it any more. Raises PagedrunError."""


@dataclass(eq=False)
class Served:
    """A model by its names. source: None for one that cannot be loaded again.

    waiting: requests that get it when it is loaded, in their order. state: unloaded, waiting (for memory, or for its
    turn), loading, loaded, leaving (no new request gets it, so that another finds room) or unloading. since: when that
    became so; used, used_at: when a request last had it, on the server's clock and on everybody's. expected: until when
    on the server's clock one may come that should find it. before: what engines counted that have ended. slots: answers
    that it computed together when it was last loaded.
    """

    source: Source | None
    settings: ServeSettings
    serving: Loaded | None = None
    waiting: deque[asyncio.Future[Loaded]] = field(default_factory=deque)
    state: str = "unloaded"
    since: float = field(default_factory=time.time)
    used: float = 0.0
    used_at: float = 0.0
    expected: float = 0.0
    last_load_s: float = 0.0
    slots: int = 1
    before: EngineStats = field(default_factory=EngineStats)

    @property
    def name(self) -> str:
        """What it is called in answers."""
        return self.settings.names[0]

    @property
    def n_waiting(self) -> int:
        """Requests that wait for it. Clients may have left."""
        return sum(not future.done() for future in self.waiting)

    def turn(self, state: str) -> None:
        """It is in another state from now on."""
        self.state, self.since = state, time.time()

    def take(self) -> Loaded | None:
        """The model for one more request, if it can have it at once."""
        if self.serving is None or self.state != "loaded":
            return None
        self.serving.users += 1
        return self.serving

    def hand_over(self) -> None:
        """Give the model to all that wait for it, before anything else can happen to it."""
        assert self.serving is not None
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                self.serving.users += 1
                future.set_result(self.serving)

    def fail(self, error: Exception) -> None:
        """Tell all that wait for it why they do not get it."""
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_exception(error)

    @property
    def stats(self) -> EngineStats:
        """Totals of all its engines; pages are those of the one that runs."""
        return self.before if self.serving is None else _sum(self.before, self.serving.service.stats)

    def ended(self, stats: EngineStats) -> None:
        """Its engine has, with these totals."""
        self.before = replace(_sum(self.before, stats), kv=None)


def _sum(before: EngineStats, now: EngineStats) -> EngineStats:
    return replace(
        now,
        steps=before.steps + now.steps,
        tokens_computed=before.tokens_computed + now.tokens_computed,
        tokens_sampled=before.tokens_sampled + now.tokens_sampled,
        step_s=before.step_s + now.step_s,
        native_s=before.native_s + now.native_s,
        max_gap_s=max(before.max_gap_s, now.max_gap_s),
    )
