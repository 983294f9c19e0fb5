"""How the KV cache is cut into pages.

What the hardware can map is a fixed number of bytes: 2 MiB on a GPU, 4 KiB on the CPU. How many tokens that holds
follows from how many layers' rows lie side by side (patches/README.md):

    GPU   a page is 2 MiB, so few tokens in a page means many layers in a slab. The further apart a layer's rows are,
          the slower decoding becomes: with an 8B at 32,768 tokens all 32 layers in a slab (16 tokens a page) took 5%,
          one layer (512 tokens) nothing (H200, f16). All 10 of a 35B (102 tokens) took nothing either.
    CPU   llama.cpp's own layout: pages are as small as they should be anyway, and its kernels like rows close together
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedrun.gguf_file import KvFacts

#: Tokens in a page on the CPU, where the hardware leaves the choice; more where there are many pages, because each
#: takes two mappings for every layer, of which Linux allows a process 65,530. Past them nothing can even be unmapped.
CPU_PAGE_SIZE = 256
_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
#: The same on a GPU, where it decides how many layers share a slab.
GPU_PAGE_SIZE = 128

#: Memory that uneven slabs may waste.
_SLAB_WASTE = 0.02

#: llama_kv_cache::get_n_kv rounds up to it.
STEP = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of a page in one stripe, and how many layers share one; 0: K and V of each layer have their own."""

    page_bytes: int
    layers_per_slab: int


def choose_layout(
    page_size: int, kv: KvFacts, token_bytes: float, granularity: int, *, on_gpu: bool, all_pages: float = 0
) -> Layout:
    """Pages of about `page_size` tokens (0: as suits the device).

    token_bytes: of K and V of one token in all layers that can be paged. all_pages: bytes of all pages there may be.
    """
    layer_bytes = max(token_bytes / max(kv.full_layers, 1), 1)
    if not on_gpu:
        wanted = max((page_size or CPU_PAGE_SIZE) * layer_bytes / 2, all_pages / _mappings())
        return Layout(math.ceil(wanted / granularity) * granularity, 0)
    page_size = page_size or GPU_PAGE_SIZE
    if granularity >= page_size * layer_bytes * 0.75:  # below one layer's K and V there are K and V by themselves
        return Layout(granularity, _layers_per_slab(granularity / (page_size * layer_bytes), max(kv.full_layers, 1)))
    return Layout(math.ceil(page_size * layer_bytes / 2 / granularity) * granularity, 0)


def _layers_per_slab(wanted: float, n_layers: int) -> int:
    """The number nearest to `wanted` that divides the layers into slabs of one size, or nearly.

    All slabs have rows as long as the longest: 10 layers in slabs of 8 and 2 would take 16 layers' memory.
    """
    even = {-(-n_layers // slabs) for slabs in range(1, n_layers + 1)}
    tight = [g for g in even if -(-n_layers // g) * g <= n_layers * (1 + _SLAB_WASTE)]
    return min(tight, key=lambda g: abs(math.log(g / wanted)))


def _mappings() -> int:
    """How many mappings pages may take: half of what Linux allows, as the rest of the process needs some too."""
    try:
        return int(_MAX_MAP_COUNT.read_text()) // 2
    except (OSError, ValueError):
        return 65_530 // 2


def whole(n_tokens: float) -> int:
    """What llama.cpp rounds the length of a KV cache to."""
    return max(math.ceil(n_tokens / STEP), 1) * STEP
