"""A reader that computes nothing: a text's vector is made of its tokens, so that mixed-up ones are seen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pagedrun.embedding import Vectors
from pagedrun.errors import EngineError
from pagedrun.step import RunnerLimits
from tests.cli_fakes import model_info
from tests.fakes import FakeVocab


class FakeReader:
    """gate: released once for each batch where there is one. Texts with token 13 fail, with 14 give no numbers."""

    def __init__(self, limits: RunnerLimits | None = None, *, n_dims: int = 4, pooling: str = "mean") -> None:
        self.info = model_info(Path("fake-embedding.gguf"))
        self.vocab = FakeVocab()
        self.limits = limits or RunnerLimits(8, 32, 64)
        self.n_dims, self.pooling = n_dims, pooling
        self.batches: list[list[tuple[int, ...]]] = []
        self.gate: threading.Semaphore | None = None
        self.closed = False

    def read(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        self.batches.append([tuple(tokens) for tokens in inputs])
        if self.gate is not None:
            self.gate.acquire()
        if any(13 in tokens for tokens in inputs):
            raise EngineError("decoding was aborted")
        found = np.array([raw(tokens, self.n_dims) for tokens in inputs], np.float32)
        found[[14 in tokens for tokens in inputs]] = np.nan
        return found

    def close(self) -> None:
        self.closed = True


def raw(tokens: Sequence[int], n_dims: int = 4) -> list[float]:
    return [float(sum(tokens)), float(len(tokens)), float(tokens[0]), *[1.0] * (n_dims - 3)]


def vector(tokens: Sequence[int], n_dims: int = 4) -> Vectors:
    found = np.array(raw(tokens, n_dims), np.float32)
    return found / np.linalg.norm(found)
