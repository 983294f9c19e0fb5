"""What llama.cpp computes in: buffers on the device and in RAM, for a batch and a length of conversations.

    device   batch x what a token needs on its way through a layer
             batch x n_kv x 2                                            attention's mask
             n_kv x one layer's K and V as f16                           where the cache is quantised
             experts that are copied from RAM for a large batch
    RAM      batch x (its inputs), and the mask once more

What a token needs on the CPU was checked against llama.cpp for both shapes of scripts/random_model.py. On a GPU
llama.cpp is asked, as it knows best which of its kernels need what, and when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagedrun.config import EngineConfig
from pagedrun.plan.rules import MIB
from pagedrun.plan.shape import ModelShape

_STEP = 256  # llama.cpp rounds the length that attention reads up to it
_SLACK = 32 * MIB  # alignment, and holes between tensors
#: Bytes of a token beside its activations: its number, its position, where its K and V go; with recurrent layers more.
_INPUTS, _HYBRID_INPUTS = 24, 100


class BufferModel(Protocol):
    """Bytes of compute buffers. n_kv: tokens of the longest conversation. copies: routed experts are in RAM."""

    @property
    def reckoned(self) -> bool:
        """Whether nobody asked llama.cpp."""

    def device(self, batch: int, n_kv: int, *, copies: bool) -> int:
        """On the GPU."""

    def host(self, batch: int, n_kv: int) -> int:
        """In RAM, beside a GPU."""


def attention_bytes(batch: int, n_kv: int, f16_copy: int) -> int:
    """What grows with the conversation. f16_copy: bytes of a token's f16 copy in one layer, 0 where none is made."""
    n = math.ceil(n_kv / _STEP) * _STEP
    return n * (2 * batch + f16_copy)


def f16_copy_of(shape: ModelShape, config: EngineConfig) -> int:
    """Bytes a token of all slots, to read one layer's cache as f16; 0 where it is."""
    per_layer = shape.kv.full_elements // max(shape.kv.full_layers, 1)
    return 0 if config.kv_types == ("f16", "f16") else 2 * per_layer * config.max_num_seqs


@dataclass(frozen=True, slots=True)
class Reckoned:
    """From the model's shape alone."""

    shape: ModelShape
    config: EngineConfig

    @property
    def reckoned(self) -> bool:
        """It is."""
        return True

    def device(self, batch: int, n_kv: int, *, copies: bool) -> int:
        """Activations, mask, and one tensor of experts."""
        fixed = _SLACK + (self.shape.expert_piece if copies else 0)
        return fixed + self.cpu(batch, n_kv) + attention_bytes(0, n_kv, f16_copy_of(self.shape, self.config))

    def host(self, batch: int, n_kv: int) -> int:
        """Inputs: embeddings, positions, the mask."""
        return attention_bytes(batch, n_kv, 0) + batch * 4 * (self.shape.n_embd + 8)

    def cpu(self, batch: int, n_kv: int) -> int:
        """Without a GPU: what llama.cpp answers for the CPU, to the byte or nearly."""
        s = self.shape
        token = 4 * max(3 * s.ff + (4 + s.experts[1]) * s.n_embd, self._attention)
        inputs = _HYBRID_INPUTS if s.kv.recurrent_layers else _INPUTS
        return attention_bytes(batch, n_kv, 0) + batch * (token + inputs) + 32

    @property
    def _attention(self) -> int:
        """Numbers of a token in an attention layer: more than in the other part of it where heads are wide."""
        s = self.shape
        keys = s.kv.full_elements // max(s.kv.full_layers, 1) // 2
        queries = keys * max(s.heads, 1) // max(s.kv_heads, 1)
        if s.kv.recurrent_layers:  # queries are gated
            return 4 * queries + 2 * keys + 2 * s.n_embd
        return 2 * queries + 2 * keys + s.n_embd


@dataclass(frozen=True, slots=True)
class Measured:
    """As llama.cpp answered: rows of batch, length, bytes on the device, bytes in RAM, for two batches and two lengths.

    Between them it is taken to be even. It is a little less: what is needed at different times lies at one place.
    without_copies: the same where no experts are in RAM.
    """

    answers: Sequence[Sequence[int]]
    without_copies: Sequence[Sequence[int]]

    @property
    def reckoned(self) -> bool:
        """It is not."""
        return False

    def device(self, batch: int, n_kv: int, *, copies: bool) -> int:
        """On the GPU."""
        return _between(self.answers if copies else self.without_copies, batch, n_kv, 2)

    def host(self, batch: int, n_kv: int) -> int:
        """In RAM."""
        return _between(self.answers, batch, n_kv, 3)


def _between(rows: Sequence[Sequence[int]], batch: int, n_kv: int, column: int) -> int:
    """On the plane through the answers for both batches, at a length; and beyond them."""
    by_batch: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        by_batch.setdefault(row[0], []).append(row)
    values = [(b, _line([(row[1], row[column]) for row in found], n_kv)) for b, found in by_batch.items()]
    return max(math.ceil(_line(values, batch)), 0)


def _line(points: Sequence[tuple[int, float]], at: int) -> float:
    """Through the first and the last of the points."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    return y0 if x0 == x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
