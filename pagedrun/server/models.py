"""The models of a server: which one a request means, and that it stays loaded while the request has it.

serving = await models.serving(asked.model)      the request's until its response has ended (`Models.request`)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pagedrun.server.errors import ApiError, not_ready
from pagedrun.server.metrics import Metrics, Reading
from pagedrun.server.serving import Loaded, ServeSettings

_held: ContextVar[list[Loaded] | None] = ContextVar("held", default=None)


class Models:
    """All that a server answers with. For the event loop only. prepare: a thread for large bodies."""

    def __init__(self, settings: ServeSettings, loaded: Sequence[Loaded] = ()) -> None:
        self.settings = settings
        self.started = time.time()
        self.metrics = Metrics(self._readings)
        self.prepare = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-bodies")
        self.stopping = False
        self._loaded = list(loaded)
        for serving in self._loaded:
            serving.metrics = self.metrics.of(serving.name)

    @property
    def loaded(self) -> Sequence[Loaded]:
        """Those that are loaded."""
        return self._loaded

    async def serving(self, name: str | None) -> Loaded:
        """The model of that name; None: the first. It is loaded if it is not, which takes a while.

        Raises ApiError: 404 for one that is not served, 503 when the server stops.
        """
        if self.stopping:
            raise not_ready("the server is stopping")
        serving = self.peek(name)
        held = _held.get()
        if held is not None:
            serving.users += 1
            held.append(serving)
        return serving

    def peek(self, name: str | None) -> Loaded:
        """The same for who only looks: it is not loaded. Raises ApiError."""
        for serving in self._loaded:
            if name is None or name in serving.settings.names:
                return serving
        raise unknown(name or "", [serving.name for serving in self._loaded])

    @contextmanager
    def request(self) -> Iterator[None]:
        """What is asked for inside belongs to this request, and is given back when it ends."""
        held: list[Loaded] = []
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
            for serving in held:
                serving.users -= 1

    @property
    def answering(self) -> bool:
        """Whether answers are under way."""
        return any(serving.open_answers for serving in self._loaded)

    def stop(self) -> None:
        """Take no more requests; what runs may go on until `cancel_all`."""
        self.stopping = True
        for serving in self._loaded:
            serving.stop()

    def cancel_all(self) -> None:
        """End what runs; clients are told."""
        for serving in self._loaded:
            serving.cancel_all()

    def close(self) -> None:
        """Save what is to be saved, and free all of them. After the last request."""
        self.prepare.shutdown(cancel_futures=True)
        for serving in self._loaded:
            serving.close()

    def _readings(self) -> list[Reading]:
        return [Reading(s.name, s.service.alive, s.gate.running, s.gate.waiting, s.service.stats) for s in self._loaded]


def unknown(name: str, known: Sequence[str]) -> ApiError:
    """A model that is not served."""
    these = ", ".join(f"'{one}'" for one in known[:5])
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    message = f"The model '{name[:200]}' does not exist; this server has {these}{more}."
    return ApiError(404, message, param="model", code="model_not_found")


def chosen(models: Models, query: dict[str, Any]) -> Loaded:
    """The loaded model that a view is of: `?model=`, else the first."""
    return models.peek(query.get("model"))
