"""Free places in a file, next to what has to stay.

| kept | free | kept | free     | kept |  end ...
         hole          hole              whatever fits no hole goes here
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ALIGN = 4096

#: Rows of (offset, bytes), shape (n, 2).
Extents = npt.NDArray[np.int64]


def padded(n_bytes: int) -> int:
    """Rounded up to whole blocks."""
    return -(-n_bytes // ALIGN) * ALIGN


class Places:
    """Hands out places of a file, none of which touch `kept`."""

    def __init__(self, kept: Extents) -> None:
        ordered = kept[np.argsort(kept[:, 0], kind="stable")]
        ends = np.maximum.accumulate(ordered[:, 0] + -(-ordered[:, 1] // ALIGN) * ALIGN)
        between = np.flatnonzero(ordered[1:, 0] > ends[:-1])
        self._holes = [(int(ends[i]), int(ordered[i + 1, 0])) for i in between]
        self.end = int(ends[-1]) if len(ends) else 0

    def take(self, n: int, n_bytes: int) -> npt.NDArray[np.int64]:
        """Offsets of `n` places of `n_bytes` each, neighbours wherever that can be."""
        size = padded(n_bytes)
        taken = [np.zeros(0, np.int64)]
        for i, (begin, end) in enumerate(self._holes):
            fits = min((end - begin) // size, n) if size else 0
            taken.append(begin + np.arange(fits, dtype=np.int64) * size)
            self._holes[i] = (begin + fits * size, end)
            n -= fits
        taken.append(self.end + np.arange(n, dtype=np.int64) * size)
        self.end += n * size
        return np.concatenate(taken)
