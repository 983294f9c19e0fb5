"""Numbers that stand for things, and arrays of them."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType, TypeAlias

import numpy as np
import numpy.typing as npt

FrameId = NewType("FrameId", int)
PageId = NewType("PageId", int)
ConversationId = NewType("ConversationId", int)

#: Arrays of frame and page numbers, shape (n,).
FrameIds: TypeAlias = npt.NDArray[np.int64]
PageIds: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

#: In arrays of frames and pages: there is none.
NONE = -1


class Tier(IntEnum):
    """Where a frame's memory is. The numbers are the native side's."""

    DEVICE = 0
    HOST = 1
    STAGE = 2  # of the device, and never a page's own: pages of the host are read through it
