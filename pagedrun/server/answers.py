"""Answers on their way: from the engine's thread into the event loop, and from text to a message's parts.

engine thread ── Bridge.put ──> event loop ── Answers.more ──> Piece: what one event added to one choice
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from pagedrun.chat import Message, ReplyDelta, ReplyParser, ToolCallDelta
from pagedrun.errors import EngineError
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest, TextDelta, TokenLogprob
from pagedrun.server.bridge import Bridge, Tagged
from pagedrun.server.errors import not_ready

if TYPE_CHECKING:
    from pagedrun.server.serving import Serving
    from pagedrun.service import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Answers to generate: a request for each choice, and a parser where a chat template made the prompt.

    prompts: text that each choice's answer begins with (`echo`).
    """

    requests: tuple[GenerationRequest, ...]
    parsers: tuple[ReplyParser, ...] = ()
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event added to a choice. `finished` comes once, last."""

    index: int
    delta: ReplyDelta
    logprobs: tuple[TokenLogprob, ...] = ()
    finished: Finished | None = None


@dataclass(slots=True)
class Choice:
    """One answer as far as it is there. n_reasoning: tokens of its thinking, with the tags around it."""

    parser: ReplyParser | None
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None
    n_reasoning: int = 0
    first_token: float = 0.0
    _tokens: list[int] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def cut_off(self) -> bool:
        """Whether it ended because it may be no longer."""
        assert self.finished is not None
        return self.finished.reason in (FinishReason.LENGTH, FinishReason.CONTEXT)

    def add(self, event: TextDelta, sizes: Callable[[int], int]) -> tuple[ReplyDelta, tuple[TokenLogprob, ...]]:
        """More text; answers what it added, and the log-probabilities of the content's tokens.

        sizes: bytes of a token's text.
        """
        self._tokens += event.tokens
        self._logprobs += event.logprobs
        delta = ReplyDelta(content=event.text) if self.parser is None else self.parser.feed(event.text)
        return delta, self._took(delta, sizes)

    def end(self, finished: Finished, sizes: Callable[[int], int]) -> tuple[ReplyDelta, tuple[TokenLogprob, ...]]:
        """No more text; answers what the parser had held back."""
        self.finished = finished
        if self.parser is None:
            return ReplyDelta(), ()
        delta = self._rest(self.parser.finish())
        return delta, self._took(delta, sizes)

    def _rest(self, whole: Message) -> ReplyDelta:
        calls = []
        for i, call in enumerate(whole.tool_calls):
            if i >= len(self.calls):
                calls.append(ToolCallDelta(i, call.arguments, call.id, call.name))
            elif more := call.arguments[len(self.calls[i].arguments) :]:
                calls.append(ToolCallDelta(i, more))
        return ReplyDelta(whole.reasoning[len(self.reasoning) :], whole.content[len(self.content) :], tuple(calls))

    def _took(self, delta: ReplyDelta, sizes: Callable[[int], int]) -> tuple[TokenLogprob, ...]:
        thinking = not self.content and not self.calls
        self.reasoning += delta.reasoning
        self.content += delta.content
        for call in delta.tool_calls:
            if call.index == len(self.calls):
                self.calls.append(call)
            else:
                known = self.calls[call.index]
                arguments = known.arguments + call.arguments
                self.calls[call.index] = ToolCallDelta(call.index, arguments, known.id, known.name)
        if not delta:
            return ()
        at = self._begin_of(delta.content, sizes)
        if thinking and self.reasoning:
            self.n_reasoning += at
        mine = tuple(self._logprobs[at:])
        self._tokens, self._logprobs = [], []
        self.logprobs += mine
        return mine

    def _begin_of(self, content: str, sizes: Callable[[int], int]) -> int:
        """Where, of the tokens that were not given out, those begin that the new content is made of: the last ones."""
        left, at = len(content.encode()), len(self._tokens)
        while left > 0 and at > 0:
            at -= 1
            left -= sizes(self._tokens[at])
        return at


class Answers:
    """The answers to one request: an async context manager, which cancels what has not ended when it is left."""

    def __init__(self, serving: Serving, task: Task) -> None:
        self.task = task
        parsers = task.parsers or (None,) * len(task.requests)
        self.choices = [Choice(parser) for parser in parsers]
        self._serving = serving
        self._began = time.perf_counter()
        self._streams: list[Stream] = []
        self._bridge = Bridge(serving.bell, self._account)
        self._exact = any(request.logprobs is not None for request in task.requests)

    async def __aenter__(self) -> Answers:
        self._serving.gate.enter(len(self.task.requests))
        self._serving.open_answers.add(self)
        try:
            for index, request in enumerate(self.task.requests):
                self._streams.append(self._serving.service.submit(request, partial(self._bridge.put, index)))
        except BaseException:
            self._serving.gate.leave(len(self.task.requests) - len(self._streams))
            self.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End what runs, within one step. The engine still says how it ended."""
        self._serving.open_answers.discard(self)
        for stream, choice in zip(self._streams, self.choices, strict=False):
            if choice.finished is None:
                stream.cancel()

    @property
    def ended(self) -> bool:
        """Whether all choices are finished."""
        return all(choice.finished is not None for choice in self.choices)

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.perf_counter() - self._began

    async def more(self, timeout_s: float | None = None) -> list[Piece]:
        """What came since the last time; empty when nothing did for so long.

        Raises PagedrunError for an answer that failed, ApiError for one that was cancelled as the server stops.
        """
        pieces = []
        events = await self._bridge.take(timeout_s)
        if not events and not self._serving.service.alive:
            raise not_ready("the engine has stopped")
        for index, event in self._joined(events):
            choice = self.choices[index]
            if isinstance(event, TextDelta):
                delta, logprobs = choice.add(event, self._serving.piece_size)
                if delta or logprobs:
                    pieces.append(Piece(index, delta, logprobs))
                continue
            if event.reason is FinishReason.ERROR:
                choice.finished = event
                raise event.error or EngineError("the answer could not be generated")
            if event.reason is FinishReason.CANCELLED:
                choice.finished = event
                raise not_ready("the server is stopping")
            delta, logprobs = choice.end(event, self._serving.piece_size)
            pieces.append(Piece(index, delta, logprobs, event))
        return pieces

    def _joined(self, events: list[Tagged]) -> list[Tagged]:
        """Text that came while the loop was busy, as if it had come at once: a reply is parsed anew for each piece."""
        if self._exact or len(events) < 2:
            return events
        joined: list[Tagged] = []
        at: dict[int, int] = {}
        for index, event in events:
            if isinstance(event, TextDelta) and index in at:
                before = joined[at[index]][1]
                assert isinstance(before, TextDelta)
                joined[at[index]] = (index, TextDelta(before.text + event.text, before.tokens + event.tokens))
                continue
            if isinstance(event, TextDelta):
                at[index] = len(joined)
            joined.append((index, event))
        return joined

    def _account(self, index: int, event: Event) -> None:
        """Figures, and the place in the queue."""
        metrics, choice = self._serving.metrics, self.choices[index]
        if isinstance(event, TextDelta):
            if not choice.first_token:
                choice.first_token = self.seconds
                metrics.first_token.observe(self.seconds)
            return
        timings = event.timings
        self._serving.gate.leave(seconds=timings.prompt_s + timings.decode_s)
        metrics.ended(event)
