"""What a model expects of a text, token by token: the logits behind perplexity and KL divergence."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagedrun.config import EngineConfig
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel, OnBytes
from pagedrun.native.placement import Placement
from pagedrun.step import Chunk, Slot, StepPlan


def tokenize(path: Path, text: str) -> list[int]:
    """The tokens of `text` in the vocabulary of the model at `path`, as llama-perplexity makes them.

    Loads no weights. Raises ModelFileError.
    """
    library = load()
    params = library.llama.llama_model_default_params()
    params.vocab_only = True
    params.n_gpu_layers = 0
    model = NativeModel(library, path, params)
    try:
        return model.vocab.tokenize(text, add_special=True, parse_special=False)
    finally:
        model.close()


_SLOT = Slot(0)


class Evaluator:
    """A model that reads pieces of text of `length` tokens. Close it."""

    def __init__(self, path: Path, length: int, threads: int, on_bytes: OnBytes | None = None) -> None:
        library = load()
        self._llama = library.llama
        config = EngineConfig(max_num_seqs=1, max_seq_len=length, max_batch_tokens=length, threads=threads)
        placement = Placement(self._llama, Door(library.common), path, config)
        self._model = NativeModel(library, path, placement.model_params, on_bytes)
        try:
            placement.set_seq_len(length, 1)
            placement.context_params.n_outputs_max = length
            self._context = NativeContext(self._model, placement.context_params)
        except BaseException:
            self._model.close()
            raise
        self.n_vocab = self._context.n_vocab
        pointer = self._model.vocab.pointer
        self._bos = self._llama.llama_vocab_bos(pointer) if self._llama.llama_vocab_get_add_bos(pointer) else None

    def close(self) -> None:
        """Free the context and the model."""
        self._context.close()
        self._model.close()

    def read(self, tokens: Sequence[int], first: int) -> npt.NDArray[np.float32]:
        """Logits after each token from `first` on, shape (tokens - first, n_vocab). A view, until the next call.

        Where the vocabulary wants it, the first token is replaced by BOS, as llama-perplexity does.
        """
        self._context.forget(_SLOT)
        seen = list(tokens) if self._bos is None else [self._bos, *tokens[1:]]
        # The engine asks for one logit per chunk; here every token is a chunk, to get the logits of all.
        before = [Chunk(_SLOT, 0, tuple(seen[:first]), sample=False)] if first else []
        each = [Chunk(_SLOT, first + i, (token,), sample=True) for i, token in enumerate(seen[first:])]
        self._context.batch.fill(StepPlan((*before, *each)))
        self._context.decode()
        pointer = ctypes.cast(self._llama.llama_get_logits(self._context.pointer), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (len(seen) - first, self.n_vocab))
