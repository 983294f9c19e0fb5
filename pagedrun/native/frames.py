"""The frames behind a context's KV cache: pagedrun_kv_* of the patched llama.cpp, as `pagedrun.kv`'s frame store.

The C side obeys: it makes frames, maps them into the windows of slots, copies and clears them. What goes where is
decided in `pagedrun.kv`. See patches/0007-paged-kv-cache.patch, 0008-staged-pages.patch,
0009-frames-ahead.patch, include/pagedrun-kv.h.
"""

from __future__ import annotations

import ctypes
import types
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun.errors import EngineError
from pagedrun.kv import FrameError, PageGeometry, Tier
from pagedrun.step import Slot

NO_MEMORY = -1  # ggml_pages_status


class _Params(ctypes.Structure):
    """pagedrun_kv_params."""

    _fields_ = (("page_bytes", c_uint64), ("layers_per_slab", c_uint32), ("n_kv_reserve", c_uint32))


class _Info(ctypes.Structure):
    """pagedrun_kv_info."""

    _fields_ = (
        ("page_bytes", c_uint64),
        ("row_bytes", c_uint64),
        ("n_pages", c_uint64),
        ("n_stripes", c_uint32),
        ("n_slots", c_uint32),
        ("stage_bytes", c_uint64),
        ("n_groups", c_uint32),
        ("zero_copy", c_bool),
    )


class _Staging(ctypes.Structure):
    """pagedrun_kv_staging."""

    _fields_ = (
        ("decode_copy", c_uint32),
        ("prefill_copy", c_uint32),
        ("prefill_from", c_uint32),
        ("blocks", c_uint32),
        ("prefetch", c_bool),
        ("timing", c_bool),
    )


class _Spill(ctypes.Structure):
    """pagedrun_kv_spill."""

    _fields_ = (("bytes", c_uint64), ("copies", c_uint64), ("waited_ns", c_uint64))


class _Memory(ctypes.Structure):
    """pagedrun_kv_memory."""

    _fields_ = (
        ("device_compute", c_uint64),
        ("device_context", c_uint64),
        ("host_compute", c_uint64),
        ("host_context", c_uint64),
        ("cells", c_uint64),
    )


class Copier(IntEnum):
    """What fills stages. A kernel lets other layers' small copies pass; the copy engine takes no multiprocessors."""

    KERNEL = 0
    ENGINE = 1


class Route(IntEnum):
    """Ways between the host and the device. The first two are Copier's; the third is a kernel that reads the host."""

    KERNEL = 0
    ENGINE = 1
    ZERO_COPY = 2
    TO_HOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """How stages are filled.

    prefill_from: tokens of one slot in a batch that make it prefill. blocks: of the kernel that copies (0: 16); fewer
    are slower and leave more to what computes. prefetch: False: a copy begins when its contents are needed. timing:
    measure how long attention waits.
    """

    decode: Copier = Copier.KERNEL
    prefill: Copier = Copier.ENGINE
    prefill_from: int = 32
    blocks: int = 0
    prefetch: bool = True
    timing: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """What went into stages: bytes, in how many copies, and how long attention waited for them (0 without timing)."""

    n_bytes: int
    copies: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class ContextMemory:
    """Bytes that a context takes beside the model and the pages, on the device and in RAM.

    Buffers that are reserved for the largest batch; recurrent states and sliding windows; what llama.cpp notes of each
    row of the KV cache (52 bytes).
    """

    device: int
    host: int


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "next": (None, (POINTER(_Params),)),
    "get": (c_void_p, (c_void_p,)),
    "get_info": (None, (c_void_p, POINTER(_Info))),
    "granularity": (c_uint64, (c_char_p,)),
    "apply": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "error": (c_char_p, (c_void_p,)),
    "stock": (None, (c_void_p, c_uint64)),
    "stocked": (c_uint64, (c_void_p,)),
    "read": (c_int32, (c_void_p, c_int64, c_void_p)),
    "write": (c_int32, (c_void_p, c_int64, c_void_p)),
    "fence": (c_int64, (c_void_p,)),
    "passed": (c_bool, (c_void_p, c_int64)),
    "wait": (c_int32, (c_void_p, c_int64)),
    "count_frames": (c_uint64, (c_void_p, c_int32)),
    "count_mapped": (c_uint64, (c_void_p,)),
    "bind": (c_bool, (c_void_p, c_int32, c_uint32, c_void_p)),
    "get_memory": (None, (c_void_p, POINTER(_Memory))),
    "fail": (None, (c_void_p, c_int64)),
    "staging": (c_int32, (c_void_p, POINTER(_Staging))),
    "spill_stats": (None, (c_void_p, POINTER(_Spill))),
    "bandwidth": (c_double, (c_void_p, c_int32, c_uint64)),
}


class PagesDoor:
    """The functions of libllama that have to do with paging. Cheap to make."""

    def __init__(self, llama: ctypes.CDLL) -> None:
        self.c = types.SimpleNamespace()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(llama, f"pagedrun_kv_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self.c, name, function)

    def granularity_of(self, device: str | None) -> int:
        """What page_bytes must be a multiple of on a device ("CUDA0"; None: the CPU); 0 where it cannot page."""
        return int(self.c.granularity(None if device is None else device.encode()))

    def ask_for(self, page_bytes: int, layers_per_slab: int, n_kv_reserve: int = 0) -> None:
        """The next context of this thread is to have a paged KV cache."""
        self.c.next(ctypes.byref(_Params(page_bytes, layers_per_slab, n_kv_reserve)))

    def ask_for_none(self) -> None:
        """The next context is to be as llama.cpp makes it."""
        self.c.next(None)


class NativeFrames:
    """The frame store of one context. Goes with it.

    n_groups: attentions that take turns in a stage; 0 where there are none.
    """

    def __init__(self, door: PagesDoor, context: Any) -> None:
        self._door = door
        self._context = context
        self._pointer = door.c.get(context)
        if not self._pointer:
            raise EngineError("this model's KV cache cannot be paged")
        info = _Info()
        door.c.get_info(self._pointer, ctypes.byref(info))
        self.geometry = PageGeometry(
            page_bytes=info.page_bytes,
            row_bytes=info.row_bytes,
            n_stripes=info.n_stripes,
            n_pages=info.n_pages,
            n_slots=info.n_slots,
            stage_bytes=info.stage_bytes,
            zero_copy=info.zero_copy,
        )
        self.n_groups = int(info.n_groups)

    def apply(self, ops: npt.NDArray[np.int64]) -> None:
        """Carry out operations, shape (n, 4). Raises FrameError, which tells how many were done."""
        if not len(ops):
            return
        ops = np.ascontiguousarray(ops, np.int64)
        done = self._door.c.apply(self._pointer, ops.ctypes.data, len(ops))
        if done < len(ops):
            raise self._failure(done)

    def stock(self, n: int) -> None:
        """So many frames of the host are made in the background, for CREATE to take. Does not wait for them."""
        self._door.c.stock(self._pointer, n)

    def stocked(self) -> int:
        """How many of them are there; a huge number where making one costs nothing."""
        return int(self._door.c.stocked(self._pointer))

    def fence(self) -> int:
        """A number that stands for everything copied and cleared so far."""
        return int(self._door.c.fence(self._pointer))

    def passed(self, fence: int) -> bool:
        """Whether all of that has happened."""
        return bool(self._door.c.passed(self._pointer, fence))

    def wait(self, fence: int) -> None:
        """Return when it has. Raises FrameError."""
        if self._door.c.wait(self._pointer, fence) != 0:
            raise self._failure()

    def read(self, frame: int) -> npt.NDArray[np.uint8]:
        """A frame's contents, shape (frame_bytes,). Raises FrameError."""
        data = np.empty(self.geometry.frame_bytes, np.uint8)
        if self._door.c.read(self._pointer, frame, data.ctypes.data) != 0:
            raise self._failure()
        return data

    def write(self, frame: int, data: npt.NDArray[np.uint8]) -> None:
        """Replace a frame's contents, shape (frame_bytes,). Raises FrameError."""
        data = np.ascontiguousarray(data, np.uint8)
        assert data.nbytes == self.geometry.frame_bytes
        if self._door.c.write(self._pointer, frame, data.ctypes.data) != 0:
            raise self._failure()

    def memory(self, *, on_gpu: bool) -> ContextMemory:
        """What the context takes beside the pages. Without a GPU, RAM is the device."""
        found = _Memory()
        self._door.c.get_memory(self._context, ctypes.byref(found))
        device = found.device_compute + found.device_context
        host = found.host_compute + found.host_context + found.cells
        return ContextMemory(device, host) if on_gpu else ContextMemory(device + host, 0)

    def bind(self, slot: Slot, n_tokens: int) -> None:
        """Tell llama.cpp that a slot holds positions 0 to n_tokens - 1. Raises EngineError."""
        if not self._door.c.bind(self._context, slot, n_tokens, None):
            raise EngineError(f"slot {slot} cannot hold {n_tokens:,} tokens")

    def n_frames(self, tier: Tier) -> int:
        """Frames that exist in a tier, as the native side counts them."""
        pieces = self.geometry.n_stripes
        if tier == Tier.STAGE:
            pieces = max(self.geometry.stage_bytes // self.geometry.page_bytes, 1)
        return int(self._door.c.count_frames(self._pointer, int(tier))) // pieces

    def staging(self, settings: Staging) -> None:
        """How stages are filled from now on. Raises FrameError."""
        s = settings
        native = _Staging(s.decode, s.prefill, s.prefill_from, s.blocks, s.prefetch, s.timing)
        if self._door.c.staging(self._pointer, ctypes.byref(native)) != 0:
            raise self._failure()

    def spill_stats(self) -> Staged:
        """What went into stages since this was last asked."""
        found = _Spill()
        self._door.c.spill_stats(self._pointer, ctypes.byref(found))
        return Staged(found.bytes, found.copies, found.waited_ns / 1e9)

    def bandwidth(self, route: Route, n_bytes: int = 64 << 20) -> float:
        """Bytes per second, measured with that much memory, which is made for it; 0.0: cannot be measured here."""
        return float(self._door.c.bandwidth(self._pointer, int(route), n_bytes))

    def fail_at(self, n: int) -> None:
        """For tests: the n-th making of a stripe's frame from now on fails; 0: none does."""
        self._door.c.fail(self._pointer, n)

    def _failure(self, done: int = 0) -> FrameError:
        text = self._door.c.error(self._pointer).decode("utf-8", "replace")
        return FrameError(text, done, hint="memory is short: lower gpu_memory, or use larger pages (page_size)")
