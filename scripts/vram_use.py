"""What the driver says is used on the GPU, while tokens are written and after they are gone.

    python scripts/vram_use.py MODEL.gguf [--window 262144] [--name 8b]

The window is that of one conversation; llama.cpp's own cache would take all of it at once.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import bench
from paged_side import Model, Paged, tokens_of

STEPS = (0, 1024, 4096, 8192, 16_384, 32_768)
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--window", type=int, default=262_144)
    parser.add_argument("--page-size", type=int, default=0)
    parser.add_argument("--name", default="gpu")
    args = parser.parse_args()
    model = Model(args.model, gpu=True, kv_types=("f16", "f16"), batch=512, threads=0)
    memory = math.ceil(1.1 * STEPS[-1] * model.token_bytes) + 64 * MIB
    side = Paged(model, model.layout(args.page_size), args.window, memory)
    side.feed(tokens_of(1, 512), 0)  # the kernels' own memory
    side.mark()
    side.another()
    rows: list[dict[str, Any]] = []
    length, before = 0, 0

    def note(what: str) -> None:
        n_bytes = side.manager.stats().device.n_bytes
        rows.append(
            {
                "": what,
                "tokens": f"{side.manager.stats().tokens:,}",
                "KV of them MiB": side.manager.stats().tokens * model.token_bytes / MIB,
                "pages MiB": n_bytes / MIB,
                "driver MiB": (bench.in_use(gpu=True) - before) / MIB,
            }
        )

    side.manager.free(next(iter(side.manager.conversations)))
    side.manager.trim()
    before = bench.in_use(gpu=True)
    for n in STEPS:
        side.feed(tokens_of(n, n - length), length)
        length = n
        note("written")
    side.manager.free(side.conversation)
    note("freed, kept for the next conversation")
    side.manager.trim()
    note("given back")
    whole = args.window * model.token_bytes / MIB
    notes = [f"{args.model.name}; a window of {args.window:,} tokens, of which stock llama.cpp takes {whole:,.0f} MiB"]
    bench.write(f"vram-{args.name}", "VRAM in use, by the driver, since the context was made", rows, notes=notes)


if __name__ == "__main__":
    main()
