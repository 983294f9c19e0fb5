"""How fast single tokens are decoded with different number formats of the KV cache, stock and paged, in one run.

    python scripts/bench_kv_types.py MODEL.gguf --gpu --depth 32768 --name 8b

All contexts exist at once and take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
from pathlib import Path
from typing import Any

import bench
from bench_paged import DECODED, SEED, speed
from paged_side import Model, Paged, Stock, tokens_of

PAIRS = "q8_0+q8_0,q8_0+q4_0,q4_0+q4_0"
Sides = dict[tuple[str, str], Stock]


def opened(stack: contextlib.ExitStack, model: Model, pair: str, page_size: int, depth: int) -> Sides:
    """Both sides of a pair, with `depth` tokens read and everything warm."""
    n_cells = depth + 2 * model.batch
    memory = math.ceil(1.2 * n_cells * model.token_bytes) + (256 << 20)
    sides: Sides = {
        (pair, "stock"): stack.enter_context(contextlib.closing(Stock(model, n_cells))),
        (pair, "paged"): stack.enter_context(
            contextlib.closing(Paged(model, model.layout(page_size), n_cells, memory))
        ),
    }
    for side in sides.values():
        side.feed(tokens_of(SEED, depth), 0)
        side.mark()
        speed(side, depth, 8, 1)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--pairs", default=PAIRS, help="keys+values, with commas")
    parser.add_argument("--page-size", type=int, default=128)
    parser.add_argument("--depth", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="cpu")
    args = parser.parse_args()
    pairs = args.pairs.split(",")
    batch = 2048 if args.gpu else 512
    sides: Sides = {}
    figures: dict[tuple[str, str], list[float]] = {}
    token_bytes: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for pair in pairs:
            keys, values = pair.split("+")
            model = Model(args.model, gpu=args.gpu, kv_types=(keys, values), batch=batch, threads=0)
            token_bytes[pair] = model.token_bytes
            sides |= opened(stack, model, pair, args.page_size, args.depth)
        for number in range(args.rounds):
            for key in list(sides)[:: -1 if number % 2 else 1]:
                figures.setdefault(key, []).append(speed(sides[key], args.depth, DECODED, 1))
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        stock, paged = figures[pair, "stock"], figures[pair, "paged"]
        rows.append(
            {
                "keys + values": pair,
                "KV bytes a token": f"{token_bytes[pair]:,.0f}",
                "decode stock": statistics.median(stock),
                "decode paged": statistics.median(paged),
                "ratio": bench.ratio(paged, stock),
                f"of {pairs[0]}": bench.ratio(paged, figures[pairs[0], "paged"]),
            }
        )
    notes = [
        f"{args.model.name} at {args.depth:,} tokens, {DECODED} tokens decoded; tokens per second",
        f"{args.rounds} rounds in turn, medians; page_size {args.page_size}",
    ]
    bench.write(f"kv-types-{args.name}", f"Number formats of the KV cache ({args.name})", rows, notes=notes)


if __name__ == "__main__":
    main()
