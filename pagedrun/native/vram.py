"""Free memory of a device, as llama.cpp's back end asks its driver: a call of microseconds, unlike NVML's start."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_size_t, c_void_p


def free_vram_of(llama: ctypes.CDLL, device: str) -> Callable[[], int]:
    """A function that answers the free bytes of a device ("CUDA0")."""
    llama.ggml_backend_dev_by_name.restype = c_void_p
    llama.ggml_backend_dev_by_name.argtypes = (c_char_p,)
    llama.ggml_backend_dev_memory.restype = None
    llama.ggml_backend_dev_memory.argtypes = (c_void_p, c_void_p, c_void_p)
    pointer = llama.ggml_backend_dev_by_name(device.encode())

    def free() -> int:
        now, total = c_size_t(), c_size_t()
        llama.ggml_backend_dev_memory(pointer, byref(now), byref(total))
        return now.value

    return free
