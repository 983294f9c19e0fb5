"""Does a model and its context fit the memory that is free? Arithmetic over sizes in bytes.

This is the coarse check before and after loading: weights and KV cache against free RAM plus free VRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pagedrun.errors import NotEnoughMemoryError
from pagedrun.units import size

#: Bytes per element of the KV formats: block bytes / block elements (ggml-common.h).
BYTES_PER_ELEMENT = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}

#: What a load needs beside weights and KV: compute buffers, tables, Python. SmolLM2 takes 369 MiB in all
#: (`/stats`), of which 92 are weights and 180 the KV cache of 8,192 tokens; larger models have larger buffers.
OVERHEAD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free bytes of RAM and of all GPUs."""

    ram: int
    vram: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.ram + self.vram


@dataclass(frozen=True, slots=True)
class Holds:
    """What a loaded model has, or may take when its conversations grow, in bytes.

    vram: of all GPUs; ram: weights, buffers, pages, swap space. context: of either, what gpu_memory pays for beside
    weights; swap: of ram, what swap_space pays for.
    """

    vram: int = 0
    ram: int = 0
    context: int = 0
    swap: int = 0

    def __add__(self, other: Holds) -> Holds:
        """Both."""
        return Holds(self.vram + other.vram, self.ram + other.ram, self.context + other.context, self.swap + other.swap)


def check_weights(name: str, weights: int, free: FreeMemory) -> None:
    """Raises NotEnoughMemoryError when the weights alone do not fit."""
    if weights + OVERHEAD_BYTES > free.total:
        raise NotEnoughMemoryError(
            f"{name} needs {size(weights + OVERHEAD_BYTES)} and {size(free.total)} are free{_split(free)}",
            hint="close other programs, or use a smaller model or quantisation",
        )


def check_context(weights: int, kv: int, free: FreeMemory) -> None:
    """Raises NotEnoughMemoryError when weights and KV cache together do not fit."""
    if weights + kv + OVERHEAD_BYTES > free.total:
        raise NotEnoughMemoryError(
            f"the context needs {size(kv)} beside {size(weights)} of weights, "
            f"and {size(free.total)} are free{_split(free)}",
            hint="lower --max-seq-len (or max_num_seqs in the settings file), or use --kv-type q8_0",
        )


def default_seq_len(n_ctx_train: int, kv_bytes: Callable[[int], int], free_after_weights: int) -> int:
    """Tokens per conversation when none are asked for: the model's own length, in at most half of what is free.

    kv_bytes: what all conversations take if each has that many tokens. Halved until it fits, but not below 2,048 (or
    the model's length, if that is less).
    """
    length = n_ctx_train
    while length > 2048 and kv_bytes(length) > free_after_weights / 2:
        length //= 2
    return length


def _split(free: FreeMemory) -> str:
    return f" ({size(free.ram)} RAM, {size(free.vram)} VRAM)" if free.vram else ""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model will run on this machine, from the size of its file alone.

    where: "gpu" (all in VRAM), "gpu+ram", "ram", or "no". missing: bytes that are short, 0 where it fits.
    """

    where: Literal["gpu", "gpu+ram", "ram", "no"]
    missing: int = 0

    def __bool__(self) -> bool:
        return self.where != "no"

    def __str__(self) -> str:
        texts = {"gpu": "fits the GPU", "gpu+ram": "fits GPU and RAM together", "ram": "fits RAM"}
        return texts.get(self.where) or f"{size(self.missing)} more than this machine has free"


def fit(weights: int, free: FreeMemory) -> Fit:
    """Where weights of that many bytes would go, with the overhead of a load beside them."""
    needed = weights + OVERHEAD_BYTES
    if needed > free.total:
        return Fit("no", needed - free.total)
    if not free.vram:
        return Fit("ram")
    return Fit("gpu" if needed <= free.vram else "gpu+ram")
