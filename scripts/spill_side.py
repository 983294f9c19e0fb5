"""Long conversations that nobody computed, in llama.cpp's own cache and over pages of which a share is cold.

What `bench_spill.py`, `spill_links.py` and `plan_side.py` measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from paged_side import SLOT, Counted, Model, Stock

from pagedrun.kv import Budget, PageManager, SpillSettings
from pagedrun.native.frames import Staging
from pagedrun.native.paging import open_paged
from pagedrun.spilling import Bus

PREFILLED = 2048  # tokens that are read in one batch
AHEAD = PREFILLED + 512  # tokens of room behind the conversation
CHUNK = 2048


def opened(args: argparse.Namespace, kv_type: str) -> Model:
    """The model as --cpu, --threads and --ram-experts say."""
    return Model(
        args.model,
        gpu=not args.cpu,
        kv_types=(kv_type, kv_type),
        batch=PREFILLED if not args.cpu else 512,
        threads=args.threads,
        ram_experts=range(args.ram_experts),
    )


@dataclass(frozen=True)
class Way:
    """How a conversation lies: cold, the share of its pages in RAM; mode: as --spill; staging: what fills stages.

    step_s, prefill_s: steps with nothing cold, as measured before. bus: copies, the same; then there is memory for
    stages in any mode.
    """

    cold: float
    mode: str = "auto"
    staging: Staging | None = None
    bus: Bus | None = None
    step_s: float = 0.0
    prefill_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.cold:.0%} {self.how}"

    @property
    def how(self) -> str:
        if self.staging is None:
            return self.mode
        s = self.staging
        return f"{self.mode}, {s.decode.name.lower()} / {s.prefill.name.lower()}, {s.blocks or 16} blocks"


class Deep(Stock):
    """llama.cpp's own cache with rows in it that nobody computed."""

    def __init__(self, model: Model, depth: int, *, offload: bool = True) -> None:
        model.placement.context_params.offload_kqv = offload
        super().__init__(model, depth + AHEAD)
        self.model = model
        self.reset(depth)

    def reset(self, length: int) -> None:
        """The slot has `length` tokens, and a recurrent state of nothing."""
        self.context.forget(SLOT)
        if length and not self.model.door.c.bind(self.context.pointer, SLOT, length, None):
            raise RuntimeError("the slot does not hold so many tokens")


class Spilled(Deep):
    """The same over pages, of which a share is cold."""

    def __init__(self, model: Model, depth: int, way: Way) -> None:
        self.model, self.batch = model, model.batch
        model.placement.context_params.offload_kqv = True
        model.placement.set_seq_len(depth + AHEAD, 1)
        layout = model.layout(round((2 << 20) * model.kv.full_layers / model.token_bytes) if model.gpu else 64)
        self.context, frames = open_paged(
            model.native, model.placement.context_params, model.door, layout, n_kv_reserve=0
        )
        if frames is None:
            raise RuntimeError("this model's KV cache cannot be paged")
        self.frames, self.way = frames, way
        self.bus = way.bus or (Bus.of(frames) if model.gpu else Bus(0.0, 0.0, 0.0))
        if model.gpu:
            frames.staging(way.staging or self.bus.staging())
        self.manager = self._manager(depth)
        self.pace: Callable[..., None] = lambda decoding: None  # nobody waits for copies yet
        self.conversation, self.reading = self.manager.open(), True
        self.manager.bind(self.conversation, SLOT)
        self.lengthen(depth + AHEAD)  # what is spilled for the tokens that are measured stays so
        self.reset(depth)
        if way.mode == "auto" and frames.geometry.stages_pay:
            self.pace = self.bus.pace(frames, self.manager)

    def lengthen(self, length: int) -> None:
        """Write tokens until there are so many."""
        while (n := min(CHUNK, length - self.manager.length(self.conversation))) > 0:
            self._prepare(n)
            self.manager.commit(self.conversation, n)

    def _manager(self, depth: int) -> PageManager:
        """VRAM for so many pages that the share is cold at that depth, and for the stages to read them through."""
        g = self.frames.geometry
        n_pages, new = g.full_pages(depth), g.pages_for(AHEAD) + 1
        n_cold = round(self.way.cold * n_pages)
        stages = n_cold + 1 if g.stages_pay and n_cold and (self.way.bus or self.way.mode != "zero-copy") else 0
        rates = self.bus.rates(decode_s=self.way.step_s, prefill_s=self.way.prefill_s)
        memory = (n_pages - n_cold + new) * g.frame_bytes + stages * g.stage_bytes
        return PageManager(
            g,
            Counted(self.frames),
            gpu_memory=Budget(memory),
            swap_space=Budget((n_pages + new) * g.frame_bytes),
            spill=SpillSettings(mode=self.way.mode, rates=rates, batch=1, step_tokens=PREFILLED),
        )

    def _prepare(self, n: int) -> None:
        manager, c = self.manager, self.conversation
        if self.reading != (n > 1):  # as the engine does
            self.reading = n > 1
            if not manager.rearrange(c, prefill=self.reading):
                raise MemoryError("the pages do not fit any more")
        if not manager.append(c, n) and not (manager.spill(c, n) and manager.append(c, n)):
            raise MemoryError("the pages do not fit")
        manager.flush()
        self.pace(decoding=n == 1)

    def step(self, tokens: tuple[int, ...], start: int) -> None:
        self._prepare(len(tokens))
        super().step(tokens, start)
        self.manager.commit(self.conversation, len(tokens))

    def reset(self, length: int) -> None:
        self.manager.truncate(self.conversation, length)
        super().reset(length)
