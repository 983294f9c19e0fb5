"""How fast a GPU's memory and its link to RAM are, and what CUDA's context takes. Runs in a process of its own:

    python -m pagedrun.native.probe      prints {"pcie", "vram", "cuda"}: bytes a second, and bytes

A context cannot be given back while the process lives, and a driver that misbehaves harms nobody here.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from pagedrun import machine

_PIECE = 256 << 20
_ROUNDS = 4


class DriverError(Exception):
    """A call of the driver failed."""


class _Driver:
    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            raise DriverError(str(e)) from e

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._lib, name)(*arguments):
            raise DriverError(f"{name} failed with CUDA error {code}")


def measure() -> dict[str, float]:
    """The figures of the first GPU. Raises DriverError."""
    driver = _Driver()
    before = _used()
    context, device = c_void_p(), c_int()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", byref(device), 0)
    driver.call("cuDevicePrimaryCtxRetain", byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    cuda = _used() - before
    host, here, there = c_void_p(), c_uint64(), c_uint64()
    size = c_size_t(_PIECE)
    driver.call("cuMemHostAlloc", byref(host), size, 0)
    driver.call("cuMemAlloc_v2", byref(here), size)
    driver.call("cuMemAlloc_v2", byref(there), size)

    def up() -> None:
        driver.call("cuMemcpyHtoDAsync_v2", here, host, size, None)

    def across() -> None:
        driver.call("cuMemcpyDtoDAsync_v2", there, here, size, None)

    def settle() -> None:
        driver.call("cuCtxSynchronize")

    return {"pcie": _rate(up, settle), "vram": 2 * _rate(across, settle), "cuda": max(cuda, 0)}


def _rate(start: Callable[[], None], settle: Callable[[], None]) -> float:
    """Bytes a second of `start`, the best of a few."""
    start()
    settle()
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        start()
        settle()
        best = min(best, time.perf_counter() - began)
    return _PIECE / best


def _used() -> int:
    gpu = machine.gpus()[0]
    return gpu.vram - gpu.vram_free


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(measure()))
    except (DriverError, IndexError) as e:
        sys.exit(str(e))
