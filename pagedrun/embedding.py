"""A loaded model for embeddings, which answers requests from any thread.

service.submit(inputs) -> Future        of vectors, one for each input; `cancel()` takes out what was not read yet
service.embed(inputs)                   the same, waiting

Inputs of all requests are read together, as many as a batch holds, and requests take turns: one with two thousand
inputs does not keep others waiting until its last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pagedrun.engine import EngineStats
from pagedrun.errors import ContextLengthError, EngineError, ParameterError, RequestError
from pagedrun.memory import OVERHEAD_BYTES, Holds
from pagedrun.model import ModelInfo
from pagedrun.step import RunnerLimits, Vocab

log = logging.getLogger(__name__)

Vectors = npt.NDArray[np.float32]

MAX_INPUTS = 256  # LLAMA_MAX_SEQ, texts that llama.cpp can tell apart in a batch


class Reader(Protocol):
    """What computes. A text may be more than a batch, and is then read alone.

    pooling: how the vectors of tokens become one: mean, cls, last; or rank, which gives scores.
    """

    info: ModelInfo
    vocab: Vocab
    limits: RunnerLimits
    n_dims: int
    pooling: str

    def read(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """A vector for each of the inputs, which together are within the limits. Raises EngineError."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    """One request. begun: inputs that were taken; left: whose vectors are not there."""

    inputs: Sequence[Sequence[int]]
    vectors: Vectors
    left: int
    future: Future[Vectors] = field(default_factory=Future)
    begun: int = 0


class _Taken(NamedTuple):
    job: _Job
    number: int


class EmbeddingService:
    """A model and its thread. A context manager; thread-safe.

    plan: None, as llama.cpp decides what goes where. holds: what memory it has.
    """

    plan: None = None

    def __init__(self, reader: Reader) -> None:
        self.model, self.vocab, self.limits = reader.info, reader.vocab, reader.limits
        self.n_dims, self.pooling = reader.n_dims, reader.pooling
        size = reader.info.size_bytes + OVERHEAD_BYTES
        self.holds = Holds(vram=size) if reader.info.on_gpu else Holds(ram=size)
        self.stats = EngineStats()
        self._reader = reader
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pagedrun-embedding", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not self._closing

    @property
    def normalizes(self) -> bool:
        """Whether vectors have length 1; the scores of a reranker are left as they are."""
        return self.pooling != "rank"

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text, with those that the model was trained to see around it."""
        return self.vocab.tokenize(text, add_special=True, parse_special=True)

    def submit(self, inputs: Sequence[Sequence[int]]) -> Future[Vectors]:
        """Have inputs read: vectors of shape (inputs, n_dims), of length 1 unless the model ranks.

        Raises RequestError, ContextLengthError or ParameterError for inputs that cannot be read, EngineError when the
        service is closed.
        """
        self.check(inputs)
        job = _Job(inputs, np.empty((len(inputs), self.n_dims), np.float32), len(inputs))
        with self._changed:
            if not self.alive:
                raise EngineError("the engine has stopped")
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """The vectors of inputs; waits for them."""
        return self.submit(inputs).result()

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise RequestError, ContextLengthError or ParameterError for what cannot be read."""
        if not inputs:
            raise RequestError("there is no input")
        for tokens in inputs:
            if not tokens:
                raise RequestError("an input is empty")
            if len(tokens) > self.limits.max_seq_len:
                raise ContextLengthError(len(tokens), self.limits.max_seq_len, hint="shorten the input")
            if min(tokens) < 0 or max(tokens) >= self.vocab.n_tokens:
                raise ParameterError(f"the input has token ids outside 0 to {self.vocab.n_tokens - 1}")

    def close(self) -> None:
        """End what runs, with an error for those who wait, and free the model."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> EmbeddingService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._read(batch)
        except Exception:
            log.exception("the engine for embeddings failed")
        finally:
            with self._changed:
                self._closing = True
                jobs, self._jobs = list(self._jobs), deque()
            for job in jobs:
                _fail(job, EngineError("the engine has stopped"))
            self._reader.close()

    def _next(self) -> list[_Taken]:
        """Inputs of one batch, waiting for the first; none when it is time to end."""
        with self._changed:
            while not self._closing:
                if batch := self._take():
                    return batch
                self._changed.wait()
        return []

    def _take(self) -> list[_Taken]:
        """One input of each request after the other, while they fit."""
        batch: list[_Taken] = []
        left = self.limits.max_batch_tokens
        while self._jobs and len(batch) < self.limits.max_num_seqs:
            job = self._jobs[0]
            if job.future.cancelled() or job.future.done() or job.begun == len(job.inputs):
                self._jobs.popleft()
                continue
            length = len(job.inputs[job.begun])
            if batch and length > left:
                break
            batch.append(_Taken(job, job.begun))
            job.begun += 1
            left -= length
            self._jobs.rotate(-1)
        return batch

    def _read(self, batch: Sequence[_Taken]) -> None:
        inputs = [job.inputs[number] for job, number in batch]
        began = time.perf_counter()
        try:
            vectors = self._reader.read(inputs)
            if not np.isfinite(vectors).all():
                raise EngineError("the model computed something that is no number")
        except Exception as e:
            ours = e if isinstance(e, EngineError) else EngineError("the engine has stopped")
            for job, _ in batch:
                _fail(job, ours)
            if ours is not e:
                raise
            return
        self._count(inputs, time.perf_counter() - began)
        if self.normalizes:
            vectors = normalized(vectors)
        for (job, number), vector in zip(batch, vectors, strict=True):
            job.vectors[number] = vector
            job.left -= 1
            if not job.left:
                with suppress(InvalidStateError):  # cancelled meanwhile
                    job.future.set_result(job.vectors)

    def _count(self, inputs: Sequence[Sequence[int]], seconds: float) -> None:
        stats = self.stats
        stats.steps += 1
        stats.tokens_computed += sum(map(len, inputs))
        stats.step_s += seconds
        stats.native_s += seconds


def normalized(vectors: Vectors) -> Vectors:
    """The vectors with length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _fail(job: _Job, error: EngineError) -> None:
    with suppress(InvalidStateError):
        job.future.set_exception(error)
