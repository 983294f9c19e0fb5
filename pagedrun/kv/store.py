"""The narrow door to whatever has the memory: operations on frames and windows, in one array per step.

Python chooses the numbers of frames and decides everything; the store obeys. `pagedrun.native` has the real one.

    CREATE      frame  tier          a new frame, of zeros
    DESTROY     frame                it must not be mapped
    MAP         slot   page  frame   the page of the slot's window shows this frame, to be written to
    MAP_SHARED  slot   page  frame   the same, to be read only
    UNMAP       slot   page
    COPY        to     from          the contents of a frame
    ZERO        frame
    MAP_STAGED  cell   frame stage   cell = slot * n_pages + page: the page is read from this frame of the host through
                                     a stage, piece by piece as layers need it. A stage serves one cell at a time; what
                                     is mapped over the cell, or UNMAP, ends it

A frame of the host can be shown by MAP_SHARED if `PageGeometry.zero_copy` is true: it is read where it is. CREATE of a
stage is done when it answers.

CREATE, COPY and ZERO may go on while the store has answered already, in the order given. Until a fence made after
them has passed, this is forbidden, and `pagedrun.kv` keeps to it:

    a frame that is written to (CREATE, ZERO, COPY to)   a step reads or writes it; COPY from it
    a frame that is read (COPY from)                     a step writes to it
    both, but not after CREATE                           ZERO, COPY to, DESTROY; a page that showed it before changes

Making frames of the host may take long, so that some can be ordered: `stock(n)` has `n` made in the background, and
CREATE takes them. Each CREATE of a frame of the host counts as one of these, whether one was there or not, and even if
it fails: after a failure the store is to be told again.

    exist and ordered   | frame | frame | frame |stocked|stocked| being made | to be made |
                         <---- made by CREATE --><------------ stock(4) ------------------>

`read` and `write` are about a frame's contents, and done when they answer: the same holds for them as for a step.

A further page may show a frame at any time: MAP may follow ZERO in the same array. A step may read what is being read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedrun.errors import EngineError

#: Rows of (op, a, b, c), shape (n, 4).
Ops: TypeAlias = npt.NDArray[np.int64]


class Op(IntEnum):
    """What to do. The numbers are the native side's."""

    CREATE = 0
    DESTROY = 1
    MAP = 2
    MAP_SHARED = 3
    UNMAP = 4
    COPY = 5
    ZERO = 6
    MAP_STAGED = 7


class FrameError(EngineError):
    """An operation failed, and changed nothing. `done`: how many before it were carried out, and stay so."""

    def __init__(self, message: str, done: int, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.done = done


class FrameStore(Protocol):
    """Frames and the windows that show them."""

    def apply(self, ops: Ops) -> None:
        """Carry out operations in order. Raises FrameError at the first that fails."""
        ...

    def stock(self, n: int) -> None:
        """So many frames of the host are to be made ahead; those that are too many are gone when this answers."""
        ...

    def stocked(self) -> int:
        """How many frames of the host CREATE could take at once; may be more than were ordered."""
        ...

    def fence(self) -> int:
        """A number for everything that was asked for so far. When it has passed, so have all before it."""
        ...

    def passed(self, fence: int) -> bool:
        """Whether all of it has happened. Does not wait."""
        ...

    def wait(self, fence: int) -> None:
        """Return when all of it has happened. Raises FrameError."""
        ...

    def read(self, frame: int) -> npt.NDArray[np.uint8]:
        """A frame's contents, shape (frame_bytes,), of all stripes. Raises FrameError."""
        ...

    def write(self, frame: int, data: npt.NDArray[np.uint8]) -> None:
        """Replace a frame's contents, shape (frame_bytes,). Raises FrameError."""
        ...


def rows(op: Op | npt.NDArray[np.int64], *columns: npt.NDArray[np.int64] | int | Sequence[int]) -> Ops:
    """Operations from columns: rows(Op.COPY, to, from)."""
    ops = np.zeros((len(np.atleast_1d(columns[0])), 4), np.int64)
    ops[:, 0] = op
    for i, column in enumerate(columns, start=1):
        ops[:, i] = column
    return ops
