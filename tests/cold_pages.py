"""Windows by hand: pages of a real context on the device, on the host and read there, or read through stages.

    cell     slot * n_pages + page                               a page of a slot's window
    frames   | cell | n_cells + cell | 2 * n_cells + cell |      its frame of the device, of the host, and its stage

A cell's frame of the device is destroyed when it becomes cold: what is read then can only come from the host.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np

from pagedrun.kv import Op, Tier
from pagedrun.kv.layout import Layout
from pagedrun.native.context import NativeContext
from pagedrun.native.frames import NativeFrames
from pagedrun.native.paging import open_paged
from pagedrun.step import Chunk, Slot, StepPlan
from tests.paged_models import Loaded, likeliest, tokens_of

HOT, ZERO_COPY, STAGED = "hot", "zero-copy", "staged"


class Plain:
    """llama.cpp's own KV cache. `feed` computes tokens at the ends of slots, in one batch when they fit."""

    def __init__(self, context: NativeContext) -> None:
        self.context = context

    def feed(self, tokens: dict[int, list[int]]) -> dict[int, bytes]:
        """The raw logits after the last token of each slot, as bytes."""
        context, size = self.context, len(self.context.batch._token)
        for at in range(0, max(map(len, tokens.values())), size):
            chunks = []
            for slot, of_slot in sorted(tokens.items()):
                chunk = tuple(of_slot[at : at + size])
                chunks.append(Chunk(Slot(slot), context.length(Slot(slot)), chunk, sample=True))
            outputs = context.batch.fill(StepPlan(tuple(chunks)))
            context.decode()
        return {slot: context.logits(outputs[Slot(slot)]).tobytes() for slot in tokens}


class ColdPages(Plain):
    """The same over frames; `move` decides where full pages are. ways: of HOT, ZERO_COPY and STAGED those there are."""

    def __init__(self, context: NativeContext, frames: NativeFrames) -> None:
        super().__init__(context)
        self.frames = frames
        self.geometry = frames.geometry
        self.n_cells = self.geometry.n_slots * self.geometry.n_pages
        there = {HOT: True, ZERO_COPY: self.geometry.zero_copy, STAGED: self.geometry.stage_bytes > 0}
        self.ways = tuple(way for way, is_there in there.items() if is_there)
        self.places: dict[int, str] = {}
        self._copied: set[int] = set()

    def feed(self, tokens: dict[int, list[int]]) -> dict[int, bytes]:
        for slot, of_slot in tokens.items():
            n = self.context.length(Slot(slot)) + len(of_slot)
            for page in range(self.geometry.pages_for(n)):
                cell = slot * self.geometry.n_pages + page
                if cell not in self.places:
                    self.apply((Op.CREATE, cell, Tier.DEVICE), (Op.MAP, slot, page, cell))
                    self.places[cell] = HOT
        return super().feed(tokens)

    def apply(self, *ops: tuple[int, ...]) -> None:
        """Operations, and whatever they started is over."""
        self.frames.apply(np.array([(*op, *(0,) * (4 - len(op))) for op in ops], np.int64).reshape(-1, 4))
        self.frames.wait(self.frames.fence())

    def sealed(self) -> list[int]:
        """Cells that nothing is written to any more."""
        n_pages = self.geometry.n_pages
        full = [self.geometry.full_pages(self.context.length(Slot(slot))) for slot in range(self.geometry.n_slots)]
        return [cell for cell in self.places if cell % n_pages < full[cell // n_pages]]

    def move(self, choose: Callable[[int], str]) -> int:
        """Every sealed cell goes where `choose(cell)` says. Answers how many are cold then."""
        before: list[tuple[int, ...]] = []
        shown: list[tuple[int, ...]] = []
        gone: list[tuple[int, ...]] = []
        cells = self.sealed()
        for cell in cells:
            was, to = self.places[cell], choose(cell)
            host, stage = cell + self.n_cells, cell + 2 * self.n_cells
            slot, page = divmod(cell, self.geometry.n_pages)
            if was == to:
                continue
            if cell not in self._copied:
                self._copied.add(cell)
                before += [(Op.CREATE, host, Tier.HOST), (Op.COPY, host, cell)]
            gone += [(Op.DESTROY, {HOT: cell, STAGED: stage}[was])] if was != ZERO_COPY else []
            if to == HOT:
                before += [(Op.CREATE, cell, Tier.DEVICE), (Op.COPY, cell, host)]
                shown += [(Op.MAP_SHARED, slot, page, cell)]
            elif to == ZERO_COPY:
                shown += [(Op.MAP_SHARED, slot, page, host)]
            else:
                before += [(Op.CREATE, stage, Tier.STAGE)]
                shown += [(Op.MAP_STAGED, cell, host, stage)]
            self.places[cell] = to
        for ops in (before, shown, gone):
            self.apply(*ops)
        return sum(self.places[cell] != HOT for cell in cells)


@contextmanager
def plain(of: Loaded) -> Iterator[Plain]:
    """A context as llama.cpp makes it."""
    with closing(NativeContext(of.model, of.params)) as context:
        yield Plain(context)


@contextmanager
def cold_pages(of: Loaded, layout: Layout) -> Iterator[ColdPages]:
    """A context in pages."""
    context, frames = open_paged(of.model, of.params, of.door, layout, n_kv_reserve=0)
    with closing(context):
        assert frames is not None
        yield ColdPages(context, frames)


def anywhere(places: Sequence[str], seed: int = 1) -> Callable[[int], str]:
    """A choice for `ColdPages.move`, at random anew for every cell and call."""
    rng = random.Random(seed)
    return lambda cell: rng.choice(places)


def answers(
    side: Plain, prompts: dict[int, int], *, steps: int, between: Callable[[int], None] = lambda i: None
) -> list[dict[int, bytes]]:
    """What a context says: prompts of so many tokens, answers to all of them in one batch, a second prompt, and on.

    between(i) is called before step i.
    """
    said = [side.feed({slot: tokens_of(slot, n)}) for slot, n in prompts.items()]
    last = {slot: logits for one in said for slot, logits in one.items()}
    for i in range(steps + 1):
        between(i)
        last = side.feed({slot: [likeliest(logits)] for slot, logits in last.items()})
        said.append(last)
        if i == steps - 1:
            between(i)
            last = {slot: side.feed({slot: tokens_of(slot + 9, 300)})[slot] for slot in prompts}
            said.append(last)
    return said
