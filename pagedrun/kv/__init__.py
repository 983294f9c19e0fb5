"""The KV cache as virtual memory: conversations are address spaces, their pages lie in frames of two tiers, or on disk.

    conversation 1   | page 0 | page 1 | page 2 |          what a conversation has, shared where tokens are the same
                         |        |        |
    frames           | 17     | 4      | 9  |   | 30 |     device: gpu_memory        host: swap_space
                         |        |        |
    window of slot 0 | 17     | 4      | 9      |  -  | -  what the model reads and writes: a range of addresses

validate    checks everything against everything
keeping     pages that outlive the process: read while their conversation goes on, and taken in again
forgetting  conversations that rest in the way of others
sharing     tokens that two conversations computed are there once
manager     PageManager, what the scheduler talks to: open, append, commit, truncate, fork, bind, unbind, spill
stats       figures
memory      what a manager is made of; flush, recall, prefetch, shrink and grow
spill       conversations that are bound and do not fit: which of their pages are read from the host, and how
settings    what is asked of spilling
prefetch    bringing pages to the device before they are needed
snapshots   states of recurrent layers, by conversation: which are kept
prefix      which resting conversation begins like a prompt
stages      memory through which pages of the host are read
cost        what reading them costs, by what was measured
residency   which tier pages are on: room on the device, promote, demote
lower       the tiers below: room on the host, write back
sinking     pages to the disk and from it
disk        the spill file
policy      who has to leave: clock, lru, lfu, working-set
table       pages, reference counts; conversations
transfers   copies that wait or are in flight, and what may not happen before they have arrived
windows     what each slot's window shows, and what the store was told of it
pool        frames of a tier: made, free, owned
budget      one account of bytes
store       the door to the native side: operations, FrameStore, FrameError
geometry    how tokens lie in pages
layout      how large pages are, by what the hardware can map
ids         numbers that stand for things

Each imports from those below it only. Nothing here knows a model or a C function, and but for `prefix`
no token; all work is by page, in arrays. It needs NumPy, so it is imported late.
"""

from __future__ import annotations

from pagedrun.kv.budget import Account, Budget
from pagedrun.kv.cost import MODES as SPILL_MODES
from pagedrun.kv.cost import Mix, Rates, Space, choose
from pagedrun.kv.disk import DiskSpace
from pagedrun.kv.forgetting import could_be_bound, first_in_the_way
from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.ids import ConversationId, FrameId, PageId, Tier
from pagedrun.kv.keeping import Adopted, Held
from pagedrun.kv.manager import PageManager
from pagedrun.kv.policy import POLICIES
from pagedrun.kv.prefetch import PREFETCH_MODES
from pagedrun.kv.prefix import PrefixCache
from pagedrun.kv.settings import SpillSettings
from pagedrun.kv.sharing import share
from pagedrun.kv.snapshots import Place, Snapshot, SnapshotStore
from pagedrun.kv.stats import DiskStats, KvStats, PrefetchStats, SpillStats, SwapStats, TierStats
from pagedrun.kv.store import FrameError, FrameStore, Op
from pagedrun.kv.validate import BrokenInvariant, validate

__all__ = [
    "POLICIES",
    "PREFETCH_MODES",
    "SPILL_MODES",
    "Account",
    "Adopted",
    "BrokenInvariant",
    "Budget",
    "ConversationId",
    "DiskSpace",
    "DiskStats",
    "FrameError",
    "FrameId",
    "FrameStore",
    "Held",
    "KvStats",
    "Mix",
    "Op",
    "PageGeometry",
    "PageId",
    "PageManager",
    "Place",
    "PrefetchStats",
    "PrefixCache",
    "Rates",
    "Snapshot",
    "SnapshotStore",
    "Space",
    "SpillSettings",
    "SpillStats",
    "SwapStats",
    "Tier",
    "TierStats",
    "choose",
    "could_be_bound",
    "first_in_the_way",
    "share",
    "validate",
]
