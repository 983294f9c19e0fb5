"""Routed experts of some layers in RAM: llama.cpp's list of tensors that go elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Overrides:
    """The list, one pattern for each layer. Keep it until the model is loaded."""

    def __init__(self, llama: Any, layers: Iterable[int]) -> None:
        cpu = llama._lib.ggml_backend_cpu_buffer_type
        cpu.restype = ctypes.c_void_p
        cpu.argtypes = ()
        self.patterns = [pattern(layer) for layer in layers]
        entries = [_Override(text.encode(), cpu()) for text in self.patterns]
        self._array = (_Override * (len(entries) + 1))(*entries)  # the last is empty: the end

    @property
    def pointer(self) -> int:
        """For `tensor_buft_overrides`."""
        return ctypes.addressof(self._array)


def pattern(layer: int) -> str:
    """A regular expression for the names of a layer's routed experts."""
    return rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
