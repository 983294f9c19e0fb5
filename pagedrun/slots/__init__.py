"""The scheduler's view of KV memory: what the slots hold between and during requests.

protocol    what a scheduler asks
plain       over llama.cpp's own KV cache
paged       over pagedrun.kv, with settings
stops       where snapshots are taken, for models that cannot go back
resting     conversations without a slot, which paged ones are taken from
pace        how fast cold pages are copied
pressure    memory of the GPU that other programs need
"""

from __future__ import annotations

from pagedrun.slots.paged import PagedSlots
from pagedrun.slots.plain import PlainSlots
from pagedrun.slots.protocol import Slots
from pagedrun.slots.settings import PagedSettings

__all__ = ["PagedSettings", "PagedSlots", "PlainSlots", "Slots"]
