"""A llama.cpp context: the KV cache, and one reusable batch that steps are written into."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun.errors import EngineError, NotEnoughMemoryError
from pagedrun.native.model import NativeModel
from pagedrun.step import Slot, State, StepPlan

#: ggml_type numbers of the KV formats (ggml.h).
GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}

_PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

_DECODE_ERRORS = {
    1: "there is no room in the KV cache for this batch",
    2: "decoding was aborted",
    -1: "the batch is invalid",
}


class Batch:
    """A llama_batch whose arrays are NumPy's, allocated once.

    i        0    1    2    3    4
    token    t0   t0   t1   t2   t0
    pos      812  0    1    2    97
    seq_id   0    1    1    1    2      each points into `_seq`
    logits   1    0    0    1    1      1: the next token is wanted
    """

    def __init__(self, llama: Any, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self._logits = np.zeros(capacity, np.int8)
        self.struct = llama.llama_batch()
        for field, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._n_seq),
            ("seq_id", self._seq_pointers),
            ("logits", self._logits),
        ):
            pointer_type = dict(llama.llama_batch._fields_)[field]
            setattr(self.struct, field, ctypes.cast(array.ctypes.data, pointer_type))

    def fill(self, plan: StepPlan) -> dict[Slot, int]:
        """Write a plan; returns, for each chunk that samples, the batch index whose logits to use."""
        outputs: dict[Slot, int] = {}
        begin = 0
        for chunk in plan.chunks:
            end = begin + len(chunk.tokens)
            self._token[begin:end] = chunk.tokens
            self._pos[begin:end] = np.arange(chunk.start, chunk.start + len(chunk.tokens))
            self._seq[begin:end] = chunk.slot
            self._logits[begin:end] = 0
            if chunk.sample:
                self._logits[end - 1] = 1
                outputs[chunk.slot] = end - 1
            begin = end
        self.struct.n_tokens = begin
        return outputs

    def want_all(self) -> None:
        """Want what is computed for every token, as embeddings do."""
        self._logits[: self.struct.n_tokens] = 1


class NativeContext:
    """Owns a `llama_context`. Used by one thread at a time; free it with `close` before its model."""

    def __init__(self, model: NativeModel, params: Any) -> None:
        self._llama = model.library.llama
        self.n_vocab = model.vocab.n_tokens
        model.library.log.clear()
        self.pointer = self._llama.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise _context_error(model)
        self._memory = self._llama.llama_get_memory(self.pointer)
        self.n_ctx_seq: int = self._llama.llama_n_ctx_seq(self.pointer)
        self.batch = Batch(self._llama, params.n_batch)

    def close(self) -> None:
        """Free the context."""
        if self.pointer:
            self._llama.llama_free(self.pointer)
            self.pointer = None

    def decode(self, *, encode: bool = False) -> None:
        """Compute the batch, with the model's encoder if so, and wait for it. Raises EngineError."""
        compute = self._llama.llama_encode if encode else self._llama.llama_decode
        code = compute(self.pointer, self.batch.struct)
        if code != 0:
            raise EngineError(_DECODE_ERRORS.get(code, f"llama_decode failed with code {code}"))
        self._llama.llama_synchronize(self.pointer)

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """The raw logits at a batch index, shape (n_vocab,). A view: copy it before the next decode."""
        pointer = self._llama.llama_get_logits_ith(self.pointer, index)
        if not pointer:
            raise EngineError(f"there are no logits at batch index {index}")
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))

    def length(self, slot: Slot) -> int:
        """How many positions the slot holds."""
        return int(self._llama.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def forget(self, slot: Slot, start: int = 0) -> bool:
        """Forget the slot's positions from `start` on; False when this memory cannot (only start 0 always works)."""
        return bool(self._llama.llama_memory_seq_rm(self._memory, slot, start, -1))

    def save(self, slot: Slot) -> State:
        """What cannot be rebuilt from rows of the KV cache: recurrent state, sliding windows. Empty: nothing.

        63 MiB for a 35B, written to where it stays: NumPy asks for huge pages, which are touched five times as fast.
        """
        size = self._llama.llama_state_seq_get_size_ext(self.pointer, slot, _PARTIAL_ONLY)
        state = np.empty(size, np.uint8)
        n = self._llama.llama_state_seq_get_data_ext(self.pointer, _address(state), size, slot, _PARTIAL_ONLY)
        return state.data.toreadonly() if n == size else b""

    def load(self, slot: Slot, state: State) -> bool:
        """Put back what `save` gave; False when llama.cpp refuses it."""
        data = np.frombuffer(state, np.uint8)
        n = self._llama.llama_state_seq_set_data_ext(self.pointer, _address(data), len(data), slot, _PARTIAL_ONLY)
        return bool(n == len(data))


def _address(state: npt.NDArray[np.uint8]) -> Any:
    """Where its bytes are, for C."""
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _context_error(model: NativeModel) -> Exception:
    log = model.library.log.text()
    if "alloc" in log or "out of memory" in log:
        return NotEnoughMemoryError(
            "the context does not fit the memory that is free", hint="lower --max-seq-len, or use --kv-type q8_0"
        )
    last = [line for line in log.splitlines() if "error" in line.lower() or "fail" in line.lower()]
    return EngineError(
        f"the context cannot be made: {last[-1].strip() if last else 'llama.cpp gives no reason'}",
        hint="run again with -v for llama.cpp's log",
    )
