"""A loaded model that answers requests from any thread.

service.submit(request) -> Stream    iterate over it for TextDelta ... Finished; `cancel()` from anywhere
service.submit(request, sink)        the events go to `sink` instead, on the engine thread
"""

from __future__ import annotations

import itertools
import math
import os
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pagedrun.engine import Call, Cancel, Engine, EngineStats, Shutdown, Sink, Submit, start
from pagedrun.errors import ContextLengthError, EngineError, ParameterError, RequestError
from pagedrun.memory import Holds
from pagedrun.model import ModelInfo
from pagedrun.request import Event, Finished, GenerationRequest, RequestId
from pagedrun.sampling import LLAMA_DEFAULTS
from pagedrun.scheduling import NO_MEMORY, Sequence
from pagedrun.step import RunnerLimits, Vocab

if TYPE_CHECKING:
    from typing_extensions import Self

    from pagedrun.chat import ChatTemplates
    from pagedrun.durable import Keeper, Keeping
    from pagedrun.kv import KvStats
    from pagedrun.plan import Plan
    from pagedrun.sessions import Identity

MAX_LOGPROBS = 20  # alternatives per token, as in the OpenAI API


class Stream:
    """One answer as it is made: an iterator over events that ends after `Finished`."""

    def __init__(self, request_id: RequestId, cancel: Callable[[], None]) -> None:
        self.id = request_id
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancel = cancel
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self._events.get()
        self._ended = isinstance(event, Finished)
        return event

    def put(self, event: Event) -> None:
        """For the engine: hand over an event. Never blocks."""
        self._events.put(event)

    def cancel(self) -> None:
        """Ask the engine to stop; `Finished` still comes, within one step. Harmless after the end."""
        self._cancel()


class Answerer(ABC):
    """Who answers requests: a model in this process, or a server that has it. A context manager; thread-safe.

    identity: what files of saved conversations have to agree with; None: none are saved. where: the server's address;
    "": this process. pid: of the process that has the model; None where it is on another machine.
    """

    model: ModelInfo
    templates: ChatTemplates
    identity: Identity | None
    where = ""

    @property
    def pid(self) -> int | None:
        """See above."""
        return os.getpid()

    @property
    @abstractmethod
    def limits(self) -> RunnerLimits:
        """How many conversations, and tokens each, fit."""

    @property
    @abstractmethod
    def context_hint(self) -> str:
        """What to do when a conversation is longer than fits."""

    @property
    @abstractmethod
    def vocab(self) -> Vocab:
        """The model's vocabulary."""

    @property
    @abstractmethod
    def kv(self) -> KvStats | None:
        """The pages of the KV cache when an answer last ended; None before, and without pages."""

    @property
    @abstractmethod
    def keeper(self) -> Keeping | None:
        """What saves and restores conversations, where that is so; for the engine's thread (`call`)."""

    def refresh(self) -> None:  # noqa: B027 - most know it anyway
        """Learn how the model is loaded now, if that may have changed; a loaded model may be loaded again for it."""

    @abstractmethod
    def call(self, work: Callable[[], None]) -> None:
        """Have something done on the engine's thread, between two steps."""

    @abstractmethod
    def submit(self, request: GenerationRequest, sink: Sink | None = None) -> Stream:
        """Start generating. With a `sink` the stream is there to be cancelled only; the sink must not block.

        Raises ContextLengthError, ParameterError or RequestError at once for what can be seen beforehand;
        EngineError when the service is closed. What goes wrong later arrives as `Finished` with an error.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel what runs, and give back what was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, request: GenerationRequest) -> None:
        n_prompt, n_vocab = len(request.prompt), self.vocab.n_tokens
        if not n_prompt:
            raise RequestError("the prompt is empty", hint="say at least a word")
        size = self.limits.max_seq_len
        if n_prompt >= size:
            more = "" if n_prompt > size else "an answer needs room too: "
            raise ContextLengthError(n_prompt, size, hint=f"{more}{self.context_hint}")
        if min(request.prompt) < 0 or max(request.prompt) >= n_vocab:
            raise ParameterError(f"the prompt has token ids outside 0 to {n_vocab - 1}")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ParameterError(f"max_tokens must be 1 or more, not {request.max_tokens}")
        if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
            raise ParameterError(f"logprobs must be from 0 to {MAX_LOGPROBS}, not {request.logprobs}")
        for token, _ in request.sampling.logit_bias:
            if token >= n_vocab:
                raise ParameterError(f"logit_bias names token {token}, and the model has {n_vocab}")


class Service(Answerer):
    """A model, its engine thread, and its chat templates.

    plan: what was to go where; None where llama.cpp decided. holds: what memory it has, or may take.
    """

    def __init__(
        self,
        engine: Engine,
        model: ModelInfo,
        templates: ChatTemplates,
        *,
        sampling_defaults: Mapping[str, Any] | None = None,
        identity: Identity | None = None,
        plan: Plan | None = None,
        holds: Holds | None = None,
    ) -> None:
        self.model = model
        self.plan = plan
        self.holds = holds or Holds(ram=model.size_bytes)
        self.templates = templates
        self.identity = identity
        self._engine = engine
        self._defaults = (sampling_defaults or {}, model.sampling, LLAMA_DEFAULTS)
        self._ids = itertools.count()
        self._thread = start(engine)

    @property
    def limits(self) -> RunnerLimits:
        """How many conversations, and tokens each, fit."""
        return replace(self._engine.runner.limits, max_seq_len=self._engine.max_tokens)

    @property
    def context_hint(self) -> str:
        """What to do when a conversation is longer than fits."""
        limit = self._engine.runner.limits.max_seq_len
        if self._engine.max_tokens < limit:
            return NO_MEMORY
        if 0 < self.model.n_ctx_train <= limit:
            return "shorten the prompt: the model was trained for no more, which --rope-scaling yarn goes beyond"
        return "shorten the prompt, or raise --max-seq-len"

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self._engine.runner.vocab

    @property
    def alive(self) -> bool:
        """Whether the engine takes requests."""
        return self._thread.is_alive()

    @property
    def stats(self) -> EngineStats:
        """Running totals of the engine."""
        return self._engine.stats

    @property
    def kv(self) -> KvStats | None:
        """Of the engine's totals."""
        return self._engine.stats.kv

    @property
    def keeper(self) -> Keeper | None:
        """What saves and restores conversations, where that is so; for the engine's thread (`call`)."""
        return self._engine.keeper

    def call(self, work: Callable[[], None]) -> None:
        """Have something done on the engine's thread, between two steps."""
        self._engine.inbox.put(Call(work))

    def measure(self, done: Callable[[], None]) -> None:
        """Count the pages anew, into `stats.kv`; `done` is called on the engine's thread after that."""

        def work() -> None:
            self._engine.measure()
            done()

        self.call(work)

    def complete_sampling(self, request: GenerationRequest) -> GenerationRequest:
        """The request with every sampling setting filled in: registry, then the GGUF's own, then llama.cpp's."""
        return replace(request, sampling=request.sampling.with_defaults(*self._defaults))

    def submit(self, request: GenerationRequest, sink: Sink | None = None) -> Stream:
        """See `Answerer`."""
        self._check(request)
        if not self._thread.is_alive():
            raise EngineError("the engine has stopped")
        request_id = RequestId(next(self._ids))
        stream = Stream(request_id, lambda: self._engine.inbox.put(Cancel(request_id)))
        self._engine.inbox.put(Submit(Sequence(request_id, self.complete_sampling(request)), sink or stream.put))
        return stream

    @property
    def unsaved(self) -> int:
        """Conversations that are being saved, or are to be."""
        return self.keeper.unsaved if self.keeper is not None and self.alive else 0

    def end(self, saving_s: float = math.inf) -> None:
        """Begin to close. Conversations are saved for so many seconds at most; called again there may be fewer."""
        self._engine.inbox.put(Shutdown(saving_s))

    def close(self) -> None:
        """Cancel what runs, save what is to be saved, and free the model. Waits for the engine thread."""
        self.end()
        self._thread.join()
