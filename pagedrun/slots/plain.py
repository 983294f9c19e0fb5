"""Slots over llama.cpp's own KV cache, without pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import KvStats


class PlainSlots:
    """llama.cpp's own KV cache: each slot has its memory for good."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def max_tokens(self) -> int:
        """Whatever fits the context."""
        return self._runner.limits.max_seq_len

    def resume(self, slot: Slot, common: int) -> int:
        """As far back as the model can go."""
        return self._runner.trim(slot, common)

    def awake(self, slot: Slot) -> bool:
        """Always."""
        return True

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """There always is."""
        return True

    def ready(self) -> None:
        """Nothing to wait for."""

    def computed(self, slot: Slot, n_tokens: int) -> None:
        """Nothing to note."""

    def next_stop(self, length: int) -> int | None:
        """No stops."""
        return None

    def remember(self, slot: Slot) -> None:
        """Nothing is kept beside the slot itself."""

    def pause(self, slot: Slot) -> None:
        """Never needed."""

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Never asleep."""
        return True

    def held(self, slot: Slot, n_tokens: int) -> int:
        """All of them."""
        return n_tokens

    def expect(self, slots: Sequence[Slot]) -> None:
        """Never."""

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """What is not kept is forgotten at once."""
        if not keep:
            self._runner.trim(slot, 0)

    def drop(self, slot: Slot) -> None:
        """Forget it."""
        self._runner.trim(slot, 0)

    def in_the_way(self, slot: Slot) -> bool:
        """Never asked."""
        return True

    def stats(self) -> KvStats | None:
        """None."""
        return None
