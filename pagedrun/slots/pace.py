"""How fast stages are filled: as attention needs them, and no faster.

What copies reads RAM, and so do the experts that are computed there at the same time. On an H200's host a kernel of 16
blocks copied a quarter of 128K tokens long before it was needed, and decoding fell to 0.62 of its speed; 4 blocks were
in time as well, at 0.91 (scripts/results/spill-35b.md).

    blocks    2   3   4   6   8   12   16        of the kernel that copies
              <- nobody waits    attention waits ->
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

BLOCKS = (2, 3, 4, 6, 8, 12, 16)
#: Shares of the time that attention may wait: below, copying can be slower; above, it has to be faster.
LITTLE, MUCH = 0.01, 0.05
#: Steps between two looks. The native side's figures are of whole steps.
EVERY = 16
#: Looks after one that made copying faster, before it may be slower again: else it would go to and fro.
_PATIENCE = 12
_HEADROOM = 1.15


@dataclass(slots=True)
class Pace:
    """Chooses the blocks. Called before every step.

    cold_bytes: what a step reads through stages now. waited: seconds that attention waited since it was last asked.
    choose: tells the native side. rate: bytes a second of 16 blocks; of fewer: of 4, times their number. step_s: what a
    step takes when nothing is cold; 0: not known. most: blocks that may copy; `rate` is of these where they are fewer.
    """

    cold_bytes: Callable[[], int]
    waited: Callable[[], float]
    choose: Callable[[int], None]
    rate_of_4: float
    rate: float
    step_s: float = 0.0
    most: int = BLOCKS[-1]
    blocks: int = 0
    _offset: int = 0
    _patience: int = 0
    _steps: int = 0
    _since: float = 0.0

    def __call__(self, *, decoding: bool = True) -> None:
        """A step is about to run. While prompts are read nobody waits, which says nothing of the steps that come then.

        Raises what the callables do.
        """
        if not decoding:
            self._steps, self._since = 0, 0.0
            return
        self._steps += 1
        if self._steps % EVERY != 1:
            return
        cold = self.cold_bytes()
        if not cold:
            self._offset = 0
            return
        now = time.perf_counter()
        waited = self.waited()
        if self.blocks and self._since:
            self.adjust(waited / max(now - self._since, 1e-9), cold)
        self._since = now
        self._tell(cold)

    def adjust(self, share: float, cold: int) -> None:
        """Attention waited for a share of the time."""
        at = self._guess(cold) + self._offset
        self._patience = max(self._patience - 1, 0)
        if share > MUCH and at < len(self._choices) - 1:
            self._offset += 1
            self._patience = _PATIENCE
        elif share < LITTLE and at > 0 and not self._patience:
            self._offset -= 1

    @property
    def _choices(self) -> tuple[int, ...]:
        return (*(n for n in BLOCKS if n < self.most), self.most)

    def _tell(self, cold: int) -> None:
        choices = self._choices
        blocks = choices[min(max(self._guess(cold) + self._offset, 0), len(choices) - 1)]
        if blocks != self.blocks:
            self.blocks = blocks
            self.choose(blocks)

    def _guess(self, cold: int) -> int:
        """The fewest blocks, as an index, that move so many bytes in a step's time."""
        choices = self._choices
        if not self.step_s or not self.rate_of_4:
            return len(choices) - 1
        wanted = _HEADROOM * cold / self.step_s
        rates = (min(self.rate_of_4 * n / 4, self.rate) for n in choices)
        return next((i for i, rate in enumerate(rates) if rate >= wanted), len(choices) - 1)
