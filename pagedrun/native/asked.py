"""What llama.cpp's buffers take on a GPU: it is asked, by loads that allocate nothing.

Two batches and two lengths tell the rest (pagedrun/plan/buffers.py). An answer takes a second, most of it for the
vocabulary, so that answers are kept.
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

_BATCHES = (512, 2048)
_LENGTHS = (4096, 131_072)  # tokens of a conversation, as far as the model was trained for them
_FLASH_ATTENTION_ON = 1


class Asker:
    """Asks about one model."""

    def __init__(self, library: Library, path: Path, shape: ModelShape, config: EngineConfig) -> None:
        self._library, self._path, self._shape, self._config = library, path, shape, config
        self._door = Door(library.common)

    def answers(self, *, copies: bool) -> list[list[int]]:
        """Rows of batch, length, bytes on all GPUs together, bytes in RAM. copies: all routed experts are in RAM.

        Raises EngineError.
        """
        lengths = sorted({min(n, self._shape.n_ctx_train) for n in _LENGTHS})
        return [[batch, n, *self._ask(batch, n, copies=copies)] for batch in _BATCHES for n in lengths]

    def _ask(self, batch: int, length: int, *, copies: bool) -> tuple[int, int]:
        *gpus, ram = self._door.memory(str(self._path), *self._params(batch, length, copies=copies))
        return sum(int(gpu["compute"]) for gpu in gpus), int(ram["compute"])

    def _params(self, batch: int, length: int, *, copies: bool) -> tuple[Any, Any]:
        llama, n_seqs = self._library.llama, self._config.max_num_seqs
        model, context = llama.llama_model_default_params(), llama.llama_context_default_params()
        model.n_gpu_layers = len(self._shape.layers) + 1
        if copies:
            self._overrides = Overrides(llama, range(len(self._shape.layers)))
            model.tensor_buft_overrides = self._overrides.pointer
        context.n_ctx, context.n_seq_max = length * n_seqs, n_seqs
        context.n_batch = context.n_ubatch = batch
        context.n_outputs_max = n_seqs
        context.type_k, context.type_v = (GGML_TYPES[kind] for kind in self._config.kv_types)
        context.flash_attn_type = _FLASH_ATTENTION_ON
        return model, context
