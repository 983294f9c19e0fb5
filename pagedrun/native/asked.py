"""What llama.cpp's buffers take on a GPU: it is asked, by loads that allocate nothing.

Two batches tell what is fixed and what a token of a batch adds; what the length of a conversation adds is known
exactly (pagedrun/plan/buffers.py). An answer takes a second, most of it for the vocabulary, so that answers are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagedrun.config import EngineConfig
from pagedrun.native.context import GGML_TYPES
from pagedrun.native.door import Door
from pagedrun.native.library import Library
from pagedrun.native.override import Overrides
from pagedrun.plan import ModelShape
from pagedrun.plan.buffers import attention_bytes, f16_copy_of

_BATCHES = (512, 2048)
_LENGTH = 4096  # tokens of a conversation
_FLASH_ATTENTION_ON = 1


class Asker:
    """Asks about one model."""

    def __init__(self, library: Library, path: Path, shape: ModelShape, config: EngineConfig) -> None:
        self._library, self._path, self._shape, self._config = library, path, shape, config
        self._door = Door(library.common)

    def answers(self, *, copies: bool) -> dict[str, float]:
        """`{fixed, per_token, host_per_token}`: bytes of buffers without what depends on the length.

        copies: with all routed experts in RAM. Raises EngineError.
        """
        small, large = (self._ask(batch, copies=copies) for batch in _BATCHES)
        step = _BATCHES[1] - _BATCHES[0]
        per_token = max(large[0] - small[0], 0) / step
        return {
            "fixed": max(small[0] - per_token * _BATCHES[0], 0),
            "per_token": per_token,
            "host_per_token": max(large[1], 0) / _BATCHES[1],
        }

    def _ask(self, batch: int, *, copies: bool) -> tuple[int, int]:
        """Bytes on all GPUs together and in RAM, less what the length of a conversation adds."""
        *gpus, ram = self._door.memory(str(self._path), *self._params(batch, copies=copies))
        f16_copy = f16_copy_of(self._shape, self._config)
        on_gpu = sum(int(gpu["compute"]) for gpu in gpus) - attention_bytes(batch, _LENGTH, f16_copy)
        return on_gpu, int(ram["compute"]) - attention_bytes(batch, _LENGTH, 0)

    def _params(self, batch: int, *, copies: bool) -> tuple[Any, Any]:
        llama, n_seqs = self._library.llama, self._config.max_num_seqs
        model, context = llama.llama_model_default_params(), llama.llama_context_default_params()
        model.n_gpu_layers = len(self._shape.layers) + 1
        if copies:
            self._overrides = Overrides(llama, range(len(self._shape.layers)))
            model.tensor_buft_overrides = self._overrides.pointer
        context.n_ctx, context.n_seq_max = _LENGTH * n_seqs, n_seqs
        context.n_batch = context.n_ubatch = batch
        context.n_outputs_max = n_seqs
        context.type_k, context.type_v = (GGML_TYPES[kind] for kind in self._config.kv_types)
        context.flash_attn_type = _FLASH_ATTENTION_ON
        return model, context
