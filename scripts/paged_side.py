"""llama.cpp's own KV cache and a paged one over the same model, for benchmarks: what `bench_paged.py`,
`bench_kv_types.py`, `vram_share.py` and `vram_use.py` share. No sampling, no scheduler: tokens in, logits out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.config import EngineConfig
from pagedrun.gguf_file import KvFacts, read_facts
from pagedrun.kv import Budget, PageManager
from pagedrun.kv.ids import ConversationId
from pagedrun.kv.layout import Layout, choose_layout
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.frames import NativeFrames, PagesDoor
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel
from pagedrun.native.override import Overrides
from pagedrun.native.paging import open_paged
from pagedrun.native.placement import Placement
from pagedrun.step import Chunk, Slot, StepPlan

FLASH_ATTENTION_ON = 1
LOAD_NONE = 0  # weights in RAM are in memory that is pinned
SLOT = Slot(0)


class Model:
    """A loaded model, all of it on the GPU or none."""

    def __init__(
        self,
        path: Path,
        *,
        gpu: bool,
        kv_types: tuple[str, str],
        batch: int,
        threads: int,
        ram_experts: range = range(0),
    ) -> None:
        """ram_experts: layers whose routed experts are in RAM, pinned."""
        library = load()
        self.config = EngineConfig(
            max_seq_len=4096,
            max_batch_tokens=batch,
            gpu_layers=999 if gpu else 0,
            threads=threads,
            kv_type_k=kv_types[0],
            kv_type_v=kv_types[1],
        )
        self.gpu = gpu
        self.batch = batch
        self.placement = Placement(library.llama, Door(library.common), path, self.config)
        self.placement.context_params.flash_attn_type = FLASH_ATTENTION_ON
        if ram_experts:
            self._overrides = Overrides(library.llama, ram_experts)
            self.placement.model_params.tensor_buft_overrides = self._overrides.pointer
            self.placement.model_params.load_mode = LOAD_NONE
        self.kv = read_facts(path).kv or KvFacts()
        self.native = NativeModel(library, path, self.placement.model_params)
        self.door = PagesDoor(library.llama._lib)
        self.can_rewind = self.native.info("").can_rewind

    @property
    def token_bytes(self) -> float:
        """K and V of one token."""
        return sum(self.kv.bytes_per_token(kind) / 2 for kind in self.config.kv_types)

    def layout(self, page_size: int) -> Layout:
        """Pages of about that many tokens."""
        granularity = self.door.granularity_of("CUDA0" if self.gpu else None)
        return choose_layout(page_size, self.kv, self.token_bytes, granularity, on_gpu=self.gpu)


class Stock:
    """One slot of `n_cells` tokens in llama.cpp's own cache."""

    def __init__(self, model: Model, n_cells: int) -> None:
        model.placement.set_seq_len(n_cells, 1)
        self.batch = model.batch
        self.context = NativeContext(model.native, model.placement.context_params)
        self.state = b""

    def feed(self, tokens: Sequence[int], start: int) -> None:
        """Compute tokens, a batch at a time, and wait for the last one's logits."""
        for at in range(0, len(tokens), self.batch):
            self.step(tuple(tokens[at : at + self.batch]), start + at)

    def step(self, tokens: tuple[int, ...], start: int) -> None:
        """Compute one batch."""
        outputs = self.context.batch.fill(StepPlan((Chunk(SLOT, start, tokens, sample=True),)))
        self.context.decode()
        self.context.logits(outputs[SLOT])

    def mark(self) -> None:
        """The slot is where measuring begins."""
        self.state = self.context.save(SLOT)

    def reset(self, length: int) -> None:
        """Go back to where `mark` was called."""
        if self.state:
            self.context.load(SLOT, self.state)
        if not self.context.forget(SLOT, length):
            raise RuntimeError("the slot cannot go back")

    def close(self) -> None:
        """Free the context."""
        self.context.close()


@dataclass
class Counted:
    """Frames that count their operations."""

    frames: NativeFrames
    n_ops: int = 0

    def __post_init__(self) -> None:
        self.fence, self.passed, self.wait = self.frames.fence, self.frames.passed, self.frames.wait

    def apply(self, ops: object) -> None:
        self.n_ops += len(ops)  # type: ignore[arg-type]
        self.frames.apply(ops)  # type: ignore[arg-type]


@dataclass
class Paged(Stock):
    """The same over pages. pages_s: seconds of page management; steps: how many steps that was."""

    model: Model
    layout: Layout
    n_cells: int
    memory: int
    n_slots: int = 1
    pages_s: float = 0.0
    steps: int = 0
    conversation: ConversationId = field(init=False)

    def __post_init__(self) -> None:
        self.model.placement.set_seq_len(self.n_cells, self.n_slots)
        self.batch = self.model.batch
        self.state = b""
        params = self.model.placement.context_params
        self.context, frames = open_paged(self.model.native, params, self.model.door, self.layout, n_kv_reserve=0)
        if frames is None:
            raise RuntimeError("this model's KV cache cannot be paged")
        self.frames, self.store = frames, Counted(frames)
        self.manager = PageManager(frames.geometry, self.store, gpu_memory=Budget(self.memory), swap_space=Budget(0))
        self.conversation = self.manager.open()
        self.manager.bind(self.conversation, SLOT)

    def step(self, tokens: tuple[int, ...], start: int) -> None:
        began = time.perf_counter()
        if not self.manager.append(self.conversation, len(tokens)):
            raise MemoryError("the pool is full")
        self.manager.flush()
        waited = time.perf_counter()
        super().step(tokens, start)
        done = time.perf_counter()
        self.manager.commit(self.conversation, len(tokens))
        self.pages_s += waited - began + time.perf_counter() - done
        self.steps += 1

    def reset(self, length: int) -> None:
        if self.state:
            self.context.forget(SLOT)
            self.context.load(SLOT, self.state)
            self.frames.bind(SLOT, length)
        else:
            super().reset(length)
        self.manager.truncate(self.conversation, length)

    def another(self) -> None:
        """A new conversation in the slot; the one before stays where it is."""
        self.manager.unbind(SLOT)
        self.context.forget(SLOT)
        self.conversation = self.manager.open()
        self.manager.bind(self.conversation, SLOT)

    def take(self, conversation: ConversationId) -> None:
        """A conversation that has tokens already, a fork, in the slot. Not for models with a recurrent state."""
        self.manager.unbind(SLOT)
        self.context.forget(SLOT)
        if not self.manager.bind(conversation, SLOT):
            raise MemoryError("the pool is full")
        self.frames.bind(SLOT, self.manager.length(conversation))
        self.conversation = conversation


def tokens_of(seed: int, n: int) -> list[int]:
    """Ordinary tokens at random."""
    rng = random.Random(seed)
    return [rng.randrange(100, 30_000) for _ in range(n)]
