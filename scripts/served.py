"""An engine's KV memory without its engine: what loading made for a service, tokens in, logits out."""

from __future__ import annotations

from typing import Any

from paged_side import SLOT, Stock

from pagedrun.native.frames import PagesDoor
from pagedrun.native.library import load
from pagedrun.native.runner import NativeRunner
from pagedrun.slots import PagedSlots


class Served(Stock):
    """What loading makes for a service, without the sampling: tokens in, logits out."""

    def __init__(self, runner: NativeRunner, slots: PagedSlots) -> None:
        self.slots, self.context = slots, runner._context
        self.batch = runner.limits.max_batch_tokens
        self._door = PagesDoor(load().llama._lib)
        self.slots.resume(SLOT, (0,))  # a conversation of its own

    @classmethod
    def of(cls, service: Any) -> Served:
        """A service that was loaded."""
        return cls(service._engine.runner, service._engine._slots)

    def reset(self, length: int) -> None:
        """The slot has `length` tokens: pages are taken for them as for any, but nobody computes the rows."""
        manager, conversation = self.slots._manager, self.slots._of[SLOT]
        if manager.length(conversation) > length:
            manager.truncate(conversation, length)
        while (missing := length - manager.length(conversation)) > 0:
            self._prepare(n := min(self.batch, missing))
            self.slots.computed(SLOT, n)
        self.context.forget(SLOT)
        if length and not self._door.c.bind(self.context.pointer, SLOT, length, None):
            raise RuntimeError("the slot does not hold so many tokens")

    @property
    def cold(self) -> float:
        """Share of the pages that every step reads from RAM."""
        stats = self.slots.stats()
        return stats.spill.cold / max(stats.pages, 1) if stats else 0.0

    def step(self, tokens: tuple[int, ...], start: int) -> None:
        self._prepare(len(tokens))
        super().step(tokens, start)
        self.slots.computed(SLOT, len(tokens))

    def _prepare(self, n: int) -> None:
        if not self.slots.room(SLOT, n, spill=True):
            raise MemoryError("the pages do not fit")
        self.slots.ready()
