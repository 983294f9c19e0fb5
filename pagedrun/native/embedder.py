"""A model for embeddings behind `pagedrun.embedding.Reader`: texts in, one vector each, and nothing kept.

A model that looks both ways, or pools over all tokens, reads a text in one batch, and so what fits a batch is the most
that a text can have. One that looks back only and gives its last token's vector reads longer ones piece by piece.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.embedding import MAX_INPUTS
from pagedrun.errors import EngineError, NotEnoughMemoryError
from pagedrun.gguf_file import KvFacts, ModelFacts
from pagedrun.gguf_file.purpose import looks_both_ways
from pagedrun.memory import OVERHEAD_BYTES, FreeMemory, check_weights, default_seq_len
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.library import Library
from pagedrun.native.model import NativeModel, OnBytes
from pagedrun.native.placement import Placement
from pagedrun.step import Chunk, RunnerLimits, Slot, StepPlan, Vocab
from pagedrun.units import size

log = logging.getLogger(__name__)

# llama_pooling_type
POOLINGS = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
_MEAN, _LAST, _RANK = 1, 3, 4

_PIECE = 512  # tokens that are computed together where a text may be read in pieces, and the least of a batch
_TEXTS_WITH_CACHE = 16  # that are read together where the model has a KV cache
_BYTES_PER_TOKEN = 64 << 10  # of compute buffers, roughly; what grows with the square comes on top


class Embedder:
    """Owns the model and its context. For one thread."""

    def __init__(self, library: Library, facts: ModelFacts, config: EngineConfig, on_bytes: OnBytes | None = None):
        """Raises ModelFileError, NotEnoughMemoryError."""
        path, llama = facts.parts[0], library.llama
        gpus = machine.gpus() if config.gpu_layers != 0 and llama.llama_supports_gpu_offload() else []
        free = machine.free_memory(gpus)
        check_weights(path.name, facts.file_size, free)
        self._shape = shape = Shape(facts, config, free)
        asked = replace(config, max_seq_len=shape.cells, max_num_seqs=1, max_batch_tokens=shape.batch)
        placement = Placement(llama, Door(library.common), path, asked)
        self._model = NativeModel(library, path, placement.model_params, on_bytes)
        try:
            self.info = self._model.info(gpus[0].name if placement.on_gpu and gpus else "CPU")
            self._context = NativeContext(self._model, shape.fill(placement.context_params))
            self._check(path)
        except BaseException:
            self._model.close()
            raise
        self._llama = llama
        self._encodes = bool(llama.llama_model_has_encoder(self._model.pointer))
        self.vocab: Vocab = self._model.vocab
        self.pooling = POOLINGS[shape.pooling]
        self.n_dims = int(
            llama.llama_model_n_cls_out(self._model.pointer)
            if shape.pooling == _RANK
            else llama.llama_model_n_embd_out(self._model.pointer)
        )
        self.limits = RunnerLimits(shape.texts, shape.window, shape.batch)

    def read(self, inputs: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """What the model computed for each, shape (inputs, n_dims). As many as `limits` allows. Raises EngineError."""
        found = np.empty((len(inputs), self.n_dims), np.float32)
        for plan, ended in _pieces(inputs, self._shape.batch):
            self._compute(plan)
            for slot in ended:
                found[slot] = self._vector(slot)
                self._context.forget(slot)
        return found

    def close(self) -> None:
        """Free context and model."""
        self._context.close()
        self._model.close()

    def _compute(self, plan: StepPlan) -> None:
        batch = self._context.batch
        batch.fill(plan)
        batch.want_all()
        try:
            self._context.decode(encode=self._encodes)
        except EngineError:
            for chunk in plan.chunks:
                self._context.forget(chunk.slot)
            raise

    def _vector(self, slot: Slot) -> npt.NDArray[np.float32]:
        pointer = self._llama.llama_get_embeddings_seq(self._context.pointer, slot)
        if not pointer:
            raise EngineError("the model computed no vector")
        return np.ctypeslib.as_array(pointer, (self.n_dims,))

    def _check(self, path: Path) -> None:
        """Raise EngineError where what was decided by the header is not what llama.cpp does."""
        context = self._context.pointer
        causal = bool(self._model.library.llama.llama_get_causal_attn(context))
        pooling = int(self._model.library.llama.llama_pooling_type(context))
        if (self._shape.in_pieces and not causal) or pooling != self._shape.pooling:
            self._context.close()
            raise EngineError(f"{path.name}: llama.cpp reads this model in another way than its header says")


class Shape:
    """How a model is to be read: its pooling, the longest text, and what is computed together, in tokens."""

    def __init__(self, facts: ModelFacts, config: EngineConfig, free: FreeMemory) -> None:
        both_ways = looks_both_ways(facts)
        said = facts.header.number(f"{facts.architecture}.pooling_type")
        # Where the file does not say: what most such models do.
        self.pooling = said if said in POOLINGS and said else (_MEAN if both_ways else _LAST)
        self.in_pieces = not both_ways and self.pooling == _LAST
        kv = facts.kv or KvFacts()
        self.has_cache = bool(kv.full_layers or kv.window_layers or kv.recurrent_layers)
        trained = facts.context or _PIECE

        def taken(n_tokens: int) -> int:
            in_cache = sum(kv.bytes_for(n_tokens, kind) for kind in config.kv_types) // 2 if self.has_cache else 0
            at_once = _PIECE if self.in_pieces else n_tokens
            # llama.cpp has room for logits and for a mask whether they are used or not.
            return in_cache + at_once * (_BYTES_PER_TOKEN + 4 * (facts.n_vocab or 0)) + 4 * at_once * n_tokens

        left = free.total - facts.file_size - OVERHEAD_BYTES
        asked = min(config.max_seq_len, trained)  # a setting for models that read more is no mistake
        self.window = asked or default_seq_len(trained, taken, left)
        if taken(self.window) > left:
            raise NotEnoughMemoryError(
                f"texts of {self.window:,} tokens take {size(taken(self.window))} beside {facts.name}, and "
                f"{size(max(left, 0))} are free",
                hint="lower --max-seq-len",
            )
        least = 1 if self.in_pieces else self.window
        self.batch = max(least, config.max_batch_tokens or max(_PIECE, least))
        # llama.cpp has a place for an output of each, in a buffer of a batch's size.
        self.texts = min(_TEXTS_WITH_CACHE if self.has_cache else MAX_INPUTS, self.batch)
        self.cells = self.window + self.batch if self.has_cache else self.batch

    def fill(self, params: Any) -> Any:
        """llama_context_params for it."""
        params.embeddings = True
        params.pooling_type = self.pooling
        params.n_ctx = self.cells
        params.n_seq_max = self.texts
        params.kv_unified = True  # texts of any length share the cells
        params.n_batch = params.n_ubatch = self.batch
        params.n_outputs_max = 0  # as many as are computed
        return params


def _pieces(inputs: Sequence[Sequence[int]], capacity: int) -> Iterator[tuple[StepPlan, list[Slot]]]:
    """Batches of at most so many tokens, in order, and the slots whose text ends with each."""
    chunks: list[Chunk] = []
    ended: list[Slot] = []
    left = capacity
    for number, tokens in enumerate(inputs):
        slot, at = Slot(number), 0
        while at < len(tokens):
            if not left:
                yield StepPlan(tuple(chunks)), ended
                chunks, ended, left = [], [], capacity
            some = tuple(tokens[at : at + left])
            chunks.append(Chunk(slot, at, some, sample=False))
            at, left = at + len(some), left - len(some)
        ended.append(slot)
    if chunks:
        yield StepPlan(tuple(chunks)), ended
