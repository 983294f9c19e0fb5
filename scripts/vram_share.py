"""What the driver says is used on the GPU by conversations that share a long beginning.

    python scripts/vram_share.py MODEL.gguf --gpu --page-sizes 16,128 --name 8b

A conversation reads the beginning; others are forked from it, and each goes on with tokens of its own. For models
without recurrent layers. Without --gpu the same in RAM.
"""

from __future__ import annotations

import argparse
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import bench
from paged_side import Model, Paged, tokens_of

MIB = 1 << 20


def shared(model: Model, page_size: int, prefix: int, forks: int, own: int) -> list[dict[str, Any]]:
    """A row after the beginning was read, one after all have gone on, one after everything was freed."""
    layout = model.layout(page_size)
    n_cells = prefix + own + model.batch
    memory = math.ceil((n_cells + forks * (own + 2 * page_size)) * model.token_bytes) + 64 * MIB
    rows: list[dict[str, Any]] = []
    with closing(Paged(model, layout, n_cells, memory)) as side:
        manager = side.manager
        side.feed(tokens_of(1, model.batch), 0)  # the kernels' own memory
        side.feed(tokens_of(1, 1), model.batch)
        manager.truncate(side.conversation, 0)
        side.another()
        manager.trim()
        before = bench.in_use(gpu=model.gpu)

        def note(what: str) -> None:
            rows.append(
                {
                    "page_size": page_size,
                    "tokens a page": round(side.frames.geometry.tokens_per_page, 1),
                    "": what,
                    "tokens of all": f"{sum(c.length for c in manager.conversations.values()):,}",
                    "stored": f"{manager.stats().tokens:,}",
                    "pages MiB": manager.stats().device.n_bytes / MIB,
                    "driver MiB": (bench.in_use(gpu=model.gpu) - before) / MIB,
                }
            )

        side.feed(tokens_of(2, prefix), 0)
        parent = side.conversation
        note("one conversation")
        for number in range(forks):
            child = manager.fork(parent, prefix)
            if child is None:
                raise MemoryError("the pool is full")
            side.take(child)
            side.feed(tokens_of(3 + number, own), prefix)
        note(f"and {forks} that go on from it")
        for conversation in list(manager.conversations):
            manager.free(conversation)
        manager.trim()
        note("all freed")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--page-sizes", default="16,128", help="tokens, with commas")
    parser.add_argument("--prefix", type=int, default=8192)
    parser.add_argument("--forks", type=int, default=40)
    parser.add_argument("--own", type=int, default=8, help="tokens that each goes on by")
    parser.add_argument("--name", default="cpu")
    args = parser.parse_args()
    model = Model(args.model, gpu=args.gpu, kv_types=("f16", "f16"), batch=512, threads=0)
    rows = []
    for page_size in map(int, args.page_sizes.split(",")):
        rows += shared(model, page_size, args.prefix, args.forks, args.own)
    one = args.prefix * model.token_bytes / MIB
    notes = [
        f"{args.model.name}, f16; the KV of {args.prefix:,} tokens takes {one:,.0f} MiB, and that of {args.forks} such "
        f"conversations without sharing {args.forks * one:,.0f}",
        f"each goes on by {args.own} tokens, for which it needs a page of its own; MiB since the kernels were warm",
    ]
    bench.write(f"share-{args.name}", "VRAM of conversations that share a beginning", rows, notes=notes)


if __name__ == "__main__":
    main()
