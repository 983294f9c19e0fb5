"""Slots over llama.cpp's own KV cache, without pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pagedrun.slots.protocol import Trunk, Weight
from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import KvStats, SpillStats


class PlainSlots:
    """llama.cpp's own KV cache: each slot has its memory for good, and what a request computed stays there."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._resting: dict[Slot, Sequence[int]] = {}  # tokens of free slots

    @property
    def max_tokens(self) -> int:
        """Whatever fits the context."""
        return self._runner.limits.max_seq_len

    @property
    def stride(self) -> int:
        """All memory is there."""
        return 1

    def choose(self, free: Iterable[Slot], tokens: Sequence[int]) -> Slot:
        """The one whose tokens share the longest beginning with the prompt; the oldest of equals."""
        return max(free, key=lambda slot: common_prefix(self._resting.get(slot, ()), tokens))

    def resume(self, slot: Slot, tokens: Sequence[int]) -> int:
        """As far back as the model can go."""
        common = common_prefix(self._resting.pop(slot, ()), tokens)
        return self._runner.trim(slot, min(common, len(tokens) - 1))

    def known(self, tokens: Sequence[int]) -> int:
        """As good as none."""
        return 0

    def trunk(self, tokens: Sequence[int], running: Mapping[Slot, Sequence[int]]) -> Trunk | None:
        """Memory of slots is not shared."""
        return None

    def branch(self, slot: Slot, tokens: Sequence[int], trunk: Trunk) -> int:
        """There are none."""
        return self.resume(slot, tokens)

    def fits(self, n_tokens: int, coming: Mapping[Slot, int], *, slot: Slot | None = None, shared: int = 0) -> bool:
        """Always."""
        return True

    def weight(self, slot: Slot) -> Weight:
        """Never asked."""
        return Weight(0, 0)

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

    def next_stop(self, slot: Slot, length: int) -> int | None:
        """No stops."""
        return None

    def part_at(self, slot: Slot, n_tokens: int) -> None:
        """No stops."""

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

    def foresee(self, prompts: Sequence[Sequence[int]]) -> None:
        """Nothing comes from anywhere."""

    def rest(self, slot: Slot, tokens: Sequence[int], *, keep: bool) -> None:
        """What is not kept is forgotten at once."""
        if keep:
            self._resting[slot] = tokens
        else:
            self._runner.trim(slot, 0)

    def drop(self, slot: Slot) -> None:
        """Never needed."""

    def forget_one(self, *, all_of_it: bool = False) -> bool:
        """Nothing is in anybody's way."""
        return False

    def refusal(self) -> str:
        """All memory is there."""
        return ""

    def stats(self) -> KvStats | None:
        """None."""
        return None

    def spilled(self) -> SpillStats | None:
        """None."""
        return None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two lists. Doubling slices: list comparison runs at C speed."""
    limit = min(len(a), len(b))
    low, size = 0, 64
    while low < limit:
        high = min(low + size, limit)
        if a[low:high] == b[low:high]:
            low, size = high, size * 2
        elif size > 1 and high - low > 1:
            size = (high - low) // 2
        else:
            break
    return low
