"""The KV cache without a GPU, as `pagedrun.opening` makes it: how far its buffers reach, and what is left for pages.

    budget   | buffers for so many tokens, states, cells | frames ... | less than a frame |
    swap     | frames of pages that had to leave ... |

A frame is a whole page, and the pages of a step are never elsewhere: with fewer frames than these and one more
nothing leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagedrun.config import EngineConfig
from pagedrun.gguf_file import KvFacts
from pagedrun.kv import PageGeometry
from pagedrun.kv.layout import STEP, choose_layout, whole
from pagedrun.memory import BYTES_PER_ELEMENT, default_seq_len
from pagedrun.plan import pages, rules
from pagedrun.plan.buffers import Reckoned
from pagedrun.plan.shape import ModelShape

_BLOCK = 32  # elements of a block in quantised formats
_GRANULARITY = 4096  # bytes that the CPU maps at a time


@dataclass(frozen=True, slots=True)
class Room:
    """What conversations have. window: tokens that llama.cpp's cache is made for; tokens: that one can really have.

    buffers: bytes, with cells. frames, swapped: bytes of frames in the budget and in swap; hot, warm: tokens in them.
    """

    window: int
    tokens: int
    buffers: int
    frames: int
    swapped: int
    hot: int
    warm: int


@dataclass(frozen=True, slots=True)
class Opener:
    """Arithmetic over one model. Sizes in bytes; budget: for buffers, states and pages; swap: for pages that left."""

    shape: ModelShape
    config: EngineConfig
    batch: int

    @property
    def token_bytes(self) -> float:
        """Of one token's K and V."""
        return pages.token_bytes(self.shape.kv, self.config)

    def states(self, window: int) -> int:
        """Of all conversations."""
        kv = self.shape.kv
        return self.config.max_num_seqs * pages.fixed_bytes(kv, self.config, self.computed(window))

    def computed(self, window: int) -> int:
        """Tokens that are computed at once: llama.cpp cuts the batch to what all conversations can have."""
        return min(self.batch, window * self.config.max_num_seqs)

    @property
    def spills(self) -> bool:
        """Whether buffers are made for tokens that the budget has no pages for."""
        return bool(self.config.gpu_memory and self.config.swap_space) and self.config.spill != "off"

    def kv_bytes(self, n_tokens: int, n_seqs: int) -> int:
        """Of conversations of that length, states included."""
        kinds = self.config.kv_types
        return n_seqs * (sum(self.shape.kv.bytes_for(n_tokens, kind, batch=self.batch) for kind in kinds) // 2)

    def buffers(self, reach: int, rows: int) -> int:
        """reach: tokens that attention may read. rows: of the cache of each conversation."""
        cells = rules.CELL_BYTES * whole(rows) * self.config.max_num_seqs
        return Reckoned(self.shape, self.config).cpu(self.computed(rows), reach) + cells

    def paged(self, budget: int, swap: int) -> Room:
        """The room for pages, as far as it goes; tokens is 0 where not one page fits."""
        reach = budget + (self.config.swap_space if self.spills else 0)
        window = self.config.max_seq_len or default_seq_len(
            self.shape.n_ctx_train, lambda n: self.kv_bytes(n, 1), 2 * reach
        )
        g = _geometry(self.shape.kv, self.config, window, reach)
        n = self._reserved(g, window, budget)
        buffers = self.buffers(n, window)
        left = budget - buffers - self.states(window)
        afforded = max(left, 0) // g.frame_bytes
        frames, host = min(afforded, g.n_slots * g.pages_for(window)), max(swap, 0) // g.frame_bytes
        cold = host if self.config.spill != "off" and frames >= g.pages_for(self.batch) + 1 else 0
        tokens = min(window, n, g.max_tokens, _tokens(g, frames + cold)) if frames else 0
        sizes = frames * g.frame_bytes, host * g.frame_bytes
        return Room(window, tokens, buffers, *sizes, _tokens(g, frames), _tokens(g, host))

    def plain(self, budget: int, left: int) -> Room:
        """The room of llama.cpp's own cache, which has all its memory from the start; the budget pays for it alone.

        left: bytes beside the weights.
        """
        n_seqs, asked, trained = self.config.max_num_seqs, self.config.max_seq_len, self.shape.n_ctx_train
        window = asked or trained
        if not self.config.gpu_memory:
            budget = max(left, 0)
            window = asked or default_seq_len(trained, lambda n: self.kv_bytes(n, n_seqs), budget)

        def fits(n: int) -> bool:
            kv = self.kv_bytes(n, n_seqs)
            return kv <= budget and kv + self.buffers(n, n) <= left

        low, high = 0, whole(window) // STEP + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle * STEP) else (low, middle)
        tokens = min(window, low * STEP)
        if tokens < window and not self.config.gpu_memory:
            tokens = min(tokens, asked)  # it is not made shorter
        n = tokens or window
        kv = self.kv_bytes(n, n_seqs) - self.states(n)
        return Room(window, tokens, self.buffers(n, n), kv, 0, n * n_seqs, 0)

    def _reserved(self, g: PageGeometry, window: int, budget: int) -> int:
        """Tokens of a conversation that buffers are made for."""

        def buffers(n: int) -> int:
            return self.buffers(n, window) + self.states(window)

        if self.spills:
            left = budget - buffers(window)
            if left >= (g.pages_for(min(self.batch, window)) + 1) * g.frame_bytes:
                return window
        n = whole(min(window, budget / self.token_bytes))
        if n == STEP or budget - buffers(n) >= g.pages_for(min(n, whole(window))) * g.frame_bytes:
            return n
        least = budget - buffers(STEP)
        per_token = (buffers(n) - buffers(STEP)) / (n - STEP)
        return whole((least + per_token * STEP) / (self.token_bytes + per_token))


def _tokens(g: PageGeometry, n_pages: int) -> int:
    return n_pages * g.page_bytes // g.row_bytes


def _geometry(kv: KvFacts, config: EngineConfig, window: int, reach: int) -> PageGeometry:
    """Pages as the CPU cuts them: K and V of each layer by themselves, or side by side where their sizes differ."""
    token_bytes = pages.token_bytes(kv, config)
    n_seqs = config.max_num_seqs
    layout = choose_layout(
        min(config.page_size, whole(window)), kv, token_bytes, _GRANULARITY, on_gpu=False,
        all_pages=min(reach, n_seqs * window * token_bytes),
    )  # fmt: skip
    layer = math.ceil(token_bytes / kv.full_layers)
    row, n_stripes = layer // 2, 2 * kv.full_layers
    if BYTES_PER_ELEMENT[config.kv_types[0]] != BYTES_PER_ELEMENT[config.kv_types[1]]:
        unit = math.lcm(*map(_type_size, config.kv_types))
        row, n_stripes = math.ceil(layer / unit) * unit, kv.full_layers
    step = layout.page_bytes // math.gcd(layout.page_bytes, row)
    rows = math.ceil(whole(window) / step) * step
    n_pages = rows * row // layout.page_bytes
    return PageGeometry(
        page_bytes=layout.page_bytes, row_bytes=row, n_stripes=n_stripes, n_pages=n_pages, n_slots=n_seqs
    )


def _type_size(kind: str) -> int:
    """Bytes of the smallest piece that llama.cpp can point at."""
    n_bytes = BYTES_PER_ELEMENT[kind]
    return int(n_bytes if kind in ("f32", "f16", "bf16") else n_bytes * _BLOCK)
