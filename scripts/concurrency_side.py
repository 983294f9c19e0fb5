"""Many conversations in one context, in llama.cpp's own KV cache and in pages: what `bench_concurrency.py` compares.

No sampling and no scheduler: tokens in, logits out. MemoryError: the budget has no room for more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paged_side import Model

from pagedrun.errors import EngineError
from pagedrun.kv import Budget, PageManager
from pagedrun.kv.ids import ConversationId
from pagedrun.native.context import NativeContext
from pagedrun.native.frames import ContextMemory, _Memory
from pagedrun.native.paging import open_paged
from pagedrun.step import Chunk, Slot, StepPlan

NO_ROOM = "no room in the KV cache"


def context_memory(model: Model, context: Any) -> tuple[int, ContextMemory]:
    """Bytes of KV cache (but for pages) and recurrent states, and of all that a context takes, by llama.cpp."""
    found = _Memory()
    model.door.c.get_memory(context, ctypes.byref(found))
    kept = found.device_context + found.host_context
    return int(kept), ContextMemory(found.device_compute, found.host_compute)


@dataclass
class Many:
    """Conversations 0, 1, ... of a context of llama.cpp's own, each in its slot.

    lengths: tokens that each has. kept: bytes of KV cache and states that were taken when it was opened; cells: tokens
    for which there is KV memory; buffers: bytes that computing takes beside them.
    """

    model: Model
    n_slots: int
    budget: int
    lengths: list[int] = field(default_factory=list)
    kept: int = 0
    cells: int = 0
    buffers: int = 0

    def open(self, n_cells: int, *, unified: bool) -> None:
        """The context. MemoryError when it takes more than the budget."""
        params = self.model.placement.context_params
        self.model.placement.set_seq_len(n_cells // self.n_slots, self.n_slots)
        params.n_ctx, params.kv_unified = n_cells, unified
        try:
            self.context = NativeContext(self.model.native, params)
        finally:
            params.kv_unified = False
        self._weigh()
        self.cells = n_cells
        if self.kept > self.budget:
            self.close()
            raise MemoryError(f"{self.n_slots} slots take {self.kept:,} bytes")

    def begin(self, tokens: Sequence[int]) -> None:
        """A conversation more, that reads these tokens. On MemoryError there is none of it."""
        self.lengths.append(0)
        try:
            self.read(len(self.lengths) - 1, tokens)
        except MemoryError:
            self.undo()
            raise

    def undo(self) -> None:
        """The last conversation is gone."""
        self.lengths.pop()
        self.context.forget(Slot(len(self.lengths)))

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        """A conversation goes on by these tokens, a batch at a time."""
        size = self.model.batch
        for at in range(0, len(tokens), size):
            self.step({slot: tuple(tokens[at : at + size])})

    def step(self, tokens: dict[int, tuple[int, ...]]) -> None:
        """Some conversations go on together, by slot, in ascending order."""
        chunks = tuple(Chunk(Slot(s), self.lengths[s], t, sample=True) for s, t in tokens.items())
        outputs = self.context.batch.fill(StepPlan(chunks))
        try:
            self.context.decode()
        except EngineError as e:
            if NO_ROOM in str(e):
                raise MemoryError(str(e)) from e
            raise
        for index in outputs.values():
            self.context.logits(index)
        for slot, given in tokens.items():
            self.lengths[slot] += len(given)

    @property
    def stored(self) -> int:
        """Tokens that are in the KV memory, those that conversations share once."""
        return sum(self.lengths)

    @property
    def taken(self) -> int:
        """Tokens for which KV memory is taken."""
        return self.cells

    def clear(self) -> None:
        """All conversations are gone."""
        for slot in range(len(self.lengths)):
            self.context.forget(Slot(slot))
        self.lengths.clear()

    def close(self) -> None:
        """Free the context."""
        self.context.close()

    def _weigh(self) -> None:
        self.kept, compute = context_memory(self.model, self.context.pointer)
        self.buffers = compute.device + compute.host


class Slots(Many):
    """llama-server -np N -c N*slot: each conversation has a slot to itself."""

    def __init__(self, model: Model, n_slots: int, budget: int, slot: int) -> None:
        super().__init__(model, n_slots, budget)
        self.open(n_slots * slot, unified=False)


class Unified(Many):
    """llama-server --kv-unified: one pool for all, as large as the budget allows beside the states."""

    def __init__(self, model: Model, n_slots: int, budget: int, state: int) -> None:
        super().__init__(model, n_slots, budget)
        n_cells = int((budget - n_slots * state) / model.token_bytes) // 256 * 256
        if n_cells <= 0:
            raise MemoryError(f"{n_slots} states take more than the budget")
        self.open(n_cells, unified=True)


class Pages(Many):
    """pagedrun: windows of a slot's size each, and pages for what is left of the budget beside the states.

    common: tokens that all have in common; they are stored once.
    """

    def __init__(self, model: Model, n_slots: int, budget: int, slot: int, page_size: int, common: int = 0) -> None:
        super().__init__(model, n_slots, budget)
        self.common = common
        model.placement.set_seq_len(slot, n_slots)
        layout = model.layout(page_size)
        params = model.placement.context_params
        self.context, frames = open_paged(model.native, params, model.door, layout, n_kv_reserve=0)
        if frames is None:
            raise RuntimeError("this model's KV cache cannot be paged")
        self.frames = frames
        self._weigh()
        if self.kept > budget:
            self.close()
            raise MemoryError(f"{n_slots} states take {self.kept:,} bytes")
        memory, none = Budget(budget - self.kept), Budget(0)
        self.manager = PageManager(frames.geometry, frames, gpu_memory=memory, swap_space=none)
        self.cells = int(self.manager.residency.device.most * frames.geometry.tokens_per_page)
        self.conversations: list[ConversationId] = []
        self.state = b""

    def begin(self, tokens: Sequence[int]) -> None:
        slot, shared = len(self.lengths), 0
        if self.common and self.conversations:
            child = self.manager.fork(self.conversations[0], self.common)
            if child is None:
                raise MemoryError("no page is left for a fork")
            shared = self.common
        else:
            child = self.manager.open()
        self.conversations.append(child)
        self.lengths.append(shared)
        try:
            self._read(slot, tokens)
        except MemoryError:
            self.undo()
            raise

    def undo(self) -> None:
        super().undo()
        self.manager.free(self.conversations.pop())

    def _read(self, slot: int, tokens: Sequence[int]) -> None:
        if not self.manager.bind(self.conversations[slot], slot):
            raise MemoryError("no page is left")
        if shared := self.lengths[slot]:
            if self.state and not self.context.load(Slot(slot), self.state):
                raise RuntimeError("llama.cpp refuses a state")
            self.frames.bind(Slot(slot), shared)
        elif self.common:
            self.read(slot, tokens[: self.common])
            self.state = b"" if self.model.can_rewind else self.context.save(Slot(slot))
            shared = self.common
        self.read(slot, tokens[shared:])

    def step(self, tokens: dict[int, tuple[int, ...]]) -> None:
        for slot, given in tokens.items():
            if not self.manager.append(self.conversations[slot], len(given)):
                raise MemoryError("no page is left")
        self.manager.flush()
        super().step(tokens)
        for slot, given in tokens.items():
            self.manager.commit(self.conversations[slot], len(given))

    @property
    def stored(self) -> int:
        return self.manager.stats().tokens

    @property
    def taken(self) -> int:
        """In pages, of those frames that exist."""
        return round(self.manager.stats().device.created * self.frames.geometry.tokens_per_page)

    def clear(self) -> None:
        super().clear()
        for conversation in self.conversations:
            self.manager.free(conversation)
        self.conversations.clear()
        self.manager.trim()
