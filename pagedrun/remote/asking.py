"""One answer on its way from a server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future

from pagedrun.errors import PagedrunError
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest, TextDelta, Timings, Usage


class Asking:
    """Its events go to `sink`, and one `Finished` in any case. id: for the server, to cancel it."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.id = secrets.token_hex(16)
        self.sink: Callable[[Event], None] = lambda event: None
        self.future: Future[None] | None = None
        self.over = False
        self._n_tokens = 0
        self._began = time.perf_counter()
        self._first = 0.0

    def said(self, delta: TextDelta) -> None:
        """Some more of it."""
        if not self.over:
            self._first = self._first or time.perf_counter()
            self._n_tokens += len(delta.tokens)
            self.sink(delta)

    def ended(self, finished: Finished) -> None:
        """The end of it, as the server tells it."""
        if not self.over:
            self.over = True
            self.sink(finished)

    def failed(self, error: PagedrunError) -> None:
        """It cannot go on."""
        self.ended(self._end(FinishReason.ERROR, error))

    def gone(self) -> None:
        """Nobody waits for the server any more; what it would have told is estimated."""
        self.ended(self._end(FinishReason.CANCELLED))

    def cancel(self) -> None:
        """Leave, without a word to the server, which sees it. From any thread."""
        if self.future is not None:
            self.future.cancel()

    def _end(self, reason: FinishReason, error: PagedrunError | None = None) -> Finished:
        now = time.perf_counter()
        first = self._first or now
        timings = Timings(0.0, first - self._began, now - first)
        return Finished(reason, Usage(len(self.request.prompt), self._n_tokens), timings, error)
