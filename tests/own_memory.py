"""What Linux says of this process's memory."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path


def own_memory(process: int | str = "self") -> int:
    """Bytes of RAM that this process, or another, takes and no file has: its heap, and frames of pages, each once
    however often it is mapped.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return (kib["Pss_Anon"] + kib["Pss_Shmem"]) << 10


def settled_memory() -> int:
    """The same, when what is free in the heap has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return own_memory()
