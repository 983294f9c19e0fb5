"""Memory of the GPU that other programs need while we run: pages leave in time, and come back when it is free again.

free      0 ........ LOW ........ AMPLE ........
          give back        leave it      take what was given back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Below this a desktop stutters, and CUDA's own scratch memory may fail to grow, which llama.cpp does not survive.
LOW = 192 << 20
#: What is left free when memory is taken again; as far above LOW as a neighbour's next allocation may be.
AMPLE = 448 << 20
_LEAST = 16 << 20


@dataclass(frozen=True, slots=True)
class Pressure:
    """Asked now and then. free: answers the free bytes of the GPU; spare: how many there should be, without others."""

    free: Callable[[], int]
    spare: int = AMPLE

    def __call__(self) -> int:
        """Bytes to give back; below 0: so many may be taken again, of those that were given back."""
        free = self.free()
        low = min(LOW, max(self.spare // 2, _LEAST))
        ample = min(AMPLE, max(self.spare, 2 * low))
        if free < low:
            return ample - free
        return min(ample - free, 0)
