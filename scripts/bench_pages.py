"""What deciding about pages costs: milliseconds of Python per step, with a store that does nothing.

    .venv/bin/python scripts/bench_pages.py [--steps 2000]

Pages are those of the 35B with f16 KV and all layers in one slab: 2 MiB, 102.4 tokens. The goal is 0.05 ms per step at
one conversation and 0.3 ms at eight.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import bench
import numpy as np

from pagedrun.kv import Budget, PageGeometry, PageManager
from pagedrun.kv.ids import ConversationId

GEOMETRY = PageGeometry(page_bytes=2 << 20, row_bytes=20_480, n_stripes=1, n_pages=2560, n_slots=8)
CONTEXT = 32_768
LONG = 131_072


class NoStore:
    """Counts operations. Copies arrive at once, and so do frames that are ordered."""

    def __init__(self) -> None:
        self.n_ops = 0
        self.n_stocked = 0

    def apply(self, ops: np.ndarray) -> None:
        self.n_ops += len(ops)

    def stock(self, n: int) -> None:
        self.n_stocked = n

    def stocked(self) -> int:
        return self.n_stocked

    def fence(self) -> int:
        return 0

    def passed(self, fence: int) -> bool:
        return True

    def wait(self, fence: int) -> None:
        pass


def manager(store: NoStore, device_tokens: int, host_tokens: int = 0) -> PageManager:
    device, host = (Budget(GEOMETRY.pages_for(n) * GEOMETRY.frame_bytes) for n in (device_tokens, host_tokens))
    return PageManager(GEOMETRY, store, gpu_memory=device, swap_space=host)


def step(pages: PageManager, conversations: list[ConversationId], n_tokens: int, write_back: int = 0) -> None:
    """What a scheduler does in one step."""
    for c in conversations:
        if not pages.append(c, n_tokens):
            raise RuntimeError("the benchmark's memory is too small")
    pages.flush()
    pages.write_back(write_back)
    for c in conversations:
        pages.commit(c, n_tokens)


def serving(n: int, n_steps: int, per_step: int = 1, host_tokens: int = 0) -> tuple[PageManager, NoStore, Any]:
    """`n` bound conversations that have their context already, and room for the steps."""
    store = NoStore()
    pages = manager(store, 2 * n * (CONTEXT + n_steps * per_step), host_tokens)
    conversations = [pages.open() for _ in range(n)]
    for slot, c in enumerate(conversations):
        pages.bind(c, slot)
        step(pages, [c], CONTEXT)
    return pages, store, conversations


def decode(n: int, n_steps: int, write_back: int = 0) -> dict[str, Any]:
    pages, store, conversations = serving(n, n_steps, host_tokens=write_back and 2 * n * (CONTEXT + n_steps))
    what = "one token each" + (", full pages written back" if write_back else "")
    return row(what, n, store, n_steps, lambda: step(pages, conversations, 1, write_back))


def prefill(n_steps: int) -> dict[str, Any]:
    """512 tokens of a prompt at a time, to 128K and then from the start; frames are used again."""
    pages, store, conversations = serving(1, n_steps=LONG // 512, per_step=512)

    def chunk() -> None:
        if pages.length(conversations[0]) + 512 > LONG:
            pages.truncate(conversations[0], 0)
        step(pages, conversations, 512)

    return row("512 tokens of a prompt", 1, store, n_steps, chunk)


def swap(n_steps: int) -> dict[str, Any]:
    """Two conversations of 32K tokens share a device with room for one: each step binds the one that is out."""
    store = NoStore()
    pages = manager(store, CONTEXT + 200, 3 * CONTEXT)
    both = [pages.open() for _ in range(2)]
    for c in both:
        pages.bind(c, 0)
        step(pages, [c], CONTEXT)
        pages.unbind(0)
    turn = itertools.cycle(both)

    def exchange() -> None:
        pages.bind(next(turn), 0)
        pages.flush()
        pages.unbind(0)

    return row(f"change of {CONTEXT:,} tokens for as many others", 1, store, n_steps, exchange)


def row(what: str, n: int, store: NoStore, n_steps: int, do: Callable[[], None]) -> dict[str, Any]:
    for _ in range(20):
        do()
    store.n_ops = 0
    times = []
    for _ in range(n_steps):
        began = time.perf_counter()
        do()
        times.append((time.perf_counter() - began) * 1e3)
    return {
        "step": what,
        "conversations": n,
        "median ms": statistics.median(times),
        "mean ms": statistics.fmean(times),
        "99% below ms": statistics.quantiles(times, n=100)[98],
        "operations per step": store.n_ops / n_steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    n_steps = parser.parse_args().steps
    rows = [
        decode(1, n_steps),
        decode(8, n_steps),
        decode(8, n_steps, write_back=4),
        prefill(min(n_steps, 500)),
        swap(min(n_steps, 200)),
    ]
    notes = [f"contexts of {CONTEXT:,} tokens at the start", f"{n_steps:,} steps"]
    bench.write("pages", "Page management per step", rows, notes=notes)


if __name__ == "__main__":
    main()
