"""Models that are loaded when somebody asks, over the fake engine, and a server of several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedrun.engine import Engine
from pagedrun.server.app import make_app
from pagedrun.server.models import Models
from pagedrun.server.serving import Kind, Loaded, ServeSettings, Serving
from pagedrun.service import Service
from pagedrun.step import RunnerLimits
from tests.cli_fakes import model_info
from tests.server_fakes import Caller, Talker, Templates, eventually

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
HOW = ServeSettings(names=("?",), hosts=("localhost",), keep_alive_s=0.02)


class FakeSource:
    """A model that takes `size` of `capacity`. may_go: loading waits for it; error: why it cannot be loaded."""

    def __init__(self, name: str, size: int = 1, capacity: int = 100, limits: RunnerLimits | None = None) -> None:
        self.settings = replace(HOW, names=(name,))
        self.about = {"size": 7}
        self.kind: Kind | None = "text"
        self.size, self.capacity = size, capacity
        self.limits = limits or RunnerLimits(max_num_seqs=4, max_seq_len=4096, max_batch_tokens=256)
        self.may_go = threading.Event()
        self.may_go.set()
        self.error: Exception | None = None
        self.loads = 0
        self.began = 0
        self.runners: list[Talker] = []
        self.services: list[Service] = []

    def fits(self, beside: Sequence[Loaded]) -> bool:
        return self.size + sum(sizes[one.name] for one in beside) <= self.capacity

    def load(self, beside: Sequence[Loaded], given_up: Callable[[], bool]) -> Serving:
        assert self.fits(beside), "it is loaded where there is no room"
        assert self.settings.names[0] not in [one.name for one in beside]
        self.began += 1
        assert self.may_go.wait(20)
        if self.error is not None:
            raise self.error
        self.loads += 1
        self.runners.append(Talker(f"I am {self.settings.names[0]}", self.limits))
        engine = Engine(self.runners[-1])
        self.services.append(Service(engine, model_info(Path("fake.gguf")), Templates()))  # type: ignore[arg-type]
        return Serving(self.services[-1], self.settings)


sizes: dict[str, int] = {}


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Several:
    """A server of several models; the first is loaded."""

    def __init__(self, sources: Sequence[FakeSource], **more: Any) -> None:
        sizes.clear()
        sizes.update({source.settings.names[0]: source.size for source in sources})
        self.sources = {source.settings.names[0]: source for source in sources}
        self.clock = Clock()
        self.said: list[str] = []
        settings = replace(HOW, **more.pop("settings", {}))
        first = sources[0].load((), lambda: False)
        self.models = Models(settings, [first], sources, say=self.said.append, clock=self.clock, **more)
        self.app = make_app(self.models)

    def ask(self, model: str | None, path: str = PATH, **fields: Any) -> Caller:
        return Caller(self.app, path, {**CHAT, **fields, **({"model": model} if model else {})})

    async def answer(self, model: str | None, **fields: Any) -> str:
        caller = self.ask(model, **fields)
        await caller.until(lambda c: c.done)
        return caller.body.decode()

    async def busy(self, model: str) -> Caller:
        """An answer that goes on until `release`."""
        source = self.sources[model]
        source.runners[-1].gate = threading.Semaphore(0)
        caller = self.ask(model, stream=True)
        await eventually(lambda: self.serving(model).gate.inside > 0)
        return caller

    def release(self, model: str) -> None:
        gate = self.sources[model].runners[-1].gate
        assert gate is not None
        gate.release(10_000)

    def serving(self, model: str) -> Loaded:
        return self.models.peek(model)

    @property
    def loaded(self) -> list[str]:
        return [one.name for one in self.models.loaded]

    def state(self, model: str) -> str:
        return next(one.state for one in self.models.all if one.name == model)

    def waiting(self, model: str) -> int:
        return next(one.n_waiting for one in self.models.all if one.name == model)


@contextmanager
def several(*sources: FakeSource, **more: Any) -> Iterator[Several]:
    server = Several(sources, **more)
    try:
        yield server
    finally:
        for source in sources:
            source.may_go.set()
            for runner in source.runners:
                if runner.gate is not None:
                    runner.gate.release(10_000)
        server.models.close()
        assert not any(service.alive for source in sources for service in source.services)
