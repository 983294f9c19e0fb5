"""Real models by hand, with llama.cpp's own KV cache and with a paged one, through the project's own classes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pagedrun.config import EngineConfig
from pagedrun.kv import Budget, PageGeometry, PageManager, validate
from pagedrun.kv.ids import ConversationId
from pagedrun.kv.layout import Layout
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.frames import NativeFrames, PagesDoor
from pagedrun.native.library import Library
from pagedrun.native.model import NativeModel
from pagedrun.native.paging import open_paged
from pagedrun.native.placement import Placement
from pagedrun.step import Chunk, Slot, StepPlan

ALL_LAYERS = 1 << 16
FLASH_ATTENTION_ON = 1


@dataclass(frozen=True)
class Loaded:
    """A model and the context parameters that both sides share."""

    model: NativeModel
    params: Any
    door: PagesDoor
    on_gpu: bool

    @property
    def granularity(self) -> int:
        """Bytes that a page's must be a multiple of."""
        return self.door.granularity_of("CUDA0" if self.on_gpu else None)


def skip_without_pages() -> None:
    """End a test that needs pages on the GPU, where the environment takes them away."""
    if "PAGEDRUN_NO_VMM" in os.environ:
        pytest.skip("PAGEDRUN_NO_VMM is set: there are no pages on the GPU")


@contextmanager
def loaded(
    library: Library,
    path: Path,
    *,
    kv_types: tuple[str, str] = ("f16", "f16"),
    on_gpu: bool = False,
    n_slots: int = 3,
    n_cells: int = 1024,
    batch: int = 128,
) -> Iterator[Loaded]:
    """A model to be paged, with everything on the GPU or nothing. Skips the test where a GPU has no pages."""
    if on_gpu:
        skip_without_pages()
    config = EngineConfig(
        max_seq_len=n_cells,
        max_num_seqs=n_slots,
        max_batch_tokens=batch,
        gpu_layers=999 if on_gpu else 0,
        kv_type_k=kv_types[0],
        kv_type_v=kv_types[1],
    )
    placement = Placement(library.llama, Door(library.common), path, config)
    placement.context_params.flash_attn_type = FLASH_ATTENTION_ON  # as paging needs it
    model = NativeModel(library, path, placement.model_params)
    with closing(model):
        yield Loaded(model, placement.context_params, PagesDoor(library.llama._lib), on_gpu)


class Stock:
    """llama.cpp's own KV cache. `feed` computes tokens at the end of a slot."""

    def __init__(self, context: NativeContext) -> None:
        self.context = context

    def feed(self, slot: int, tokens: list[int]) -> bytes:
        """The raw logits after the last of the tokens, as bytes."""
        begin = self.context.length(Slot(slot))
        size = len(self.context.batch._token)
        for at in range(0, len(tokens), size):
            chunk = Chunk(Slot(slot), begin + at, tuple(tokens[at : at + size]), sample=True)
            outputs = self.context.batch.fill(StepPlan((chunk,)))
            self.context.decode()
        return self.context.logits(outputs[Slot(slot)]).tobytes()

    def empty(self, slot: int) -> None:
        """Forget what the slot holds."""
        self.context.forget(Slot(slot))


@contextmanager
def stock(of: Loaded) -> Iterator[Stock]:
    """A context as llama.cpp makes it."""
    with closing(NativeContext(of.model, of.params)) as context:
        yield Stock(context)


class Paged:
    """A paged KV cache and its manager. A conversation is bound for one `feed` at a time.

    device, host: frames of each tier.
    """

    def __init__(self, context: NativeContext, frames: NativeFrames, *, device: int, host: int) -> None:
        self.context = context
        self.frames = frames
        self.geometry: PageGeometry = frames.geometry
        memory, swap = (Budget(n * self.geometry.frame_bytes) for n in (device, host))
        self.manager = PageManager(self.geometry, frames, gpu_memory=memory, swap_space=swap)
        self._stock = Stock(context)

    def feed(self, c: ConversationId, slot: int, tokens: list[int]) -> bytes:
        """The raw logits after the last of the tokens, as bytes."""
        manager = self.manager
        assert manager.bind(c, slot) and manager.append(c, len(tokens)), "too few frames for this test"
        manager.flush()
        manager.write_back(2)
        validate(manager)
        self.frames.bind(Slot(slot), manager.length(c))
        logits = self._stock.feed(slot, tokens)
        manager.commit(c, len(tokens))
        manager.unbind(slot)
        return logits

    def shuffle(self, rng: random.Random) -> int:
        """Send random pages of all conversations to the host; answers how many. They come back when they are needed."""
        pages = np.arange(self.manager.table.top)[[rng.random() < 0.5 for _ in range(self.manager.table.top)]]
        return self.manager.demote(pages)

    def save(self, slot: int) -> bytes:
        """The recurrent state; empty where there is none."""
        return self.context.save(Slot(slot))

    def load(self, slot: int, state: bytes) -> None:
        """Put it into a slot, whatever that held."""
        self.context.forget(Slot(slot))
        assert not state or self.context.load(Slot(slot), state)


@contextmanager
def paged(of: Loaded, layout: Layout, *, device: int, host: int = 0, n_kv_reserve: int = 0) -> Iterator[Paged]:
    """A context whose KV cache lies in frames. device, host: how many, or how many for so many tokens if negative."""
    context, frames = open_paged(of.model, of.params, of.door, layout, n_kv_reserve=n_kv_reserve)
    with closing(context):
        assert frames is not None
        yield Paged(context, frames, device=device, host=host)


def tokens_of(seed: int, n: int) -> list[int]:
    """Ordinary tokens at random."""
    rng = random.Random(seed)
    return [rng.randrange(100, 30_000) for _ in range(n)]


def likeliest(logits: bytes) -> int:
    """The token with the highest logit."""
    return int(np.frombuffer(logits, np.float32).argmax())


def rows(side: Paged, c: ConversationId) -> npt.NDArray[np.uint8]:
    """A conversation's pages as they are in its frames, shape (pages, bytes)."""
    table = side.manager.table
    frames = [table.device[p] if table.device[p] >= 0 else table.host[p] for p in side.manager.pages(c)]
    return np.array([side.frames.read(int(f)) for f in frames])
