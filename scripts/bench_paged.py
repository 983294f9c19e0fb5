"""The paged KV cache against llama.cpp's own, for page sizes: speed, and how much of the memory holds tokens.

    python scripts/bench_paged.py MODEL.gguf --gpu --page-sizes 16,128,512 --depths 0,32768 --name 8b
    python scripts/bench_paged.py MODEL.gguf --page-sizes 64,256 --depths 0,1024 --pool 0.25      on the CPU

    decode, prefill   tokens per second at a depth: medians of both sides, and of the ratios round by round; the sides
                      take turns and read the same tokens up to the depth
    full              conversations of log-uniform lengths are computed until no frame is left for the next: tokens
                      stored of those that the frames could hold
    operations        on frames and windows, per decoded token
    pages ms          what deciding about pages and telling the store takes per decoded token, with 1 and with 8
                      conversations

Every row that is done is kept in results/paged-NAME.rows.json, and a further run goes on with the next: delete the file
to begin again. The table comes when all rows are there.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import bench
from paged_side import Model, Paged, Stock, tokens_of

SEED = 1
SHORTEST, LONGEST = 200, 16_000
DECODED, PREFILLED = 64, 2048


def speed(side: Stock, depth: int, n: int, batch: int) -> float:
    """Tokens per second of `n` tokens in batches, from `depth` on."""
    tokens = tokens_of(SEED + 1, n)
    began = time.perf_counter()
    for at in range(0, n, batch):
        side.step(tuple(tokens[at : at + batch]), depth + at)
    taken = time.perf_counter() - began
    side.reset(depth)
    return n / taken


def speeds(model: Model, page_size: int, depth: int, rounds: int) -> dict[str, Any]:
    """Decode and prefill, stock and paged."""
    n_cells = depth + 2 * PREFILLED
    memory = math.ceil(1.2 * n_cells * model.token_bytes) + (256 << 20)
    with contextlib.ExitStack() as stack:
        stock = stack.enter_context(contextlib.closing(Stock(model, n_cells)))
        paged = stack.enter_context(contextlib.closing(Paged(model, model.layout(page_size), n_cells, memory)))
        start = max(depth, 1)  # a recurrent state of nothing cannot be saved
        for side in (stock, paged):
            side.feed(tokens_of(SEED, start), 0)
            side.mark()
            speed(side, start, 8, 1)  # warm
            speed(side, start, PREFILLED, model.batch)
        figures: dict[str, list[float]] = {}
        paged.pages_s, paged.steps, n_ops = 0.0, 0, paged.store.n_ops
        for i in range(rounds):
            for name, side in (("stock", stock), ("paged", paged))[:: 1 if i % 2 else -1]:
                figures.setdefault(f"{name} decode", []).append(speed(side, start, DECODED, 1))
        pages_ms, n_ops = paged.pages_s / paged.steps * 1e3, paged.store.n_ops - n_ops
        n_steps = paged.steps
        for i in range(rounds):
            for name, side in (("stock", stock), ("paged", paged))[:: 1 if i % 2 else -1]:
                figures.setdefault(f"{name} prefill", []).append(speed(side, start, PREFILLED, model.batch))
    row: dict[str, Any] = {}
    for what in ("decode", "prefill"):
        ours, theirs = figures[f"paged {what}"], figures[f"stock {what}"]
        row |= {
            f"{what} stock": statistics.median(theirs),
            f"{what} paged": statistics.median(ours),
            f"{what} ratio": bench.ratio(ours, theirs),
        }
    return row | {"operations": n_ops / n_steps, "pages ms at 1": pages_ms}


def lengths() -> list[int]:
    """Of conversations, log-uniform."""
    rng = random.Random(SEED)
    return [round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST)))) for _ in range(100_000)]


def utilisation(model: Model, page_size: int, pool: int) -> dict[str, Any]:
    """Compute conversations until the pool is full."""
    layout = model.layout(page_size)
    with contextlib.closing(Paged(model, layout, LONGEST + model.batch, pool)) as side:
        n_conversations = 0
        with contextlib.suppress(MemoryError):
            for n in lengths():
                side.feed(tokens_of(n, n), 0)
                side.another()
                n_conversations += 1
        stats = side.manager.stats()
        return {
            "layers in a slab": layout.layers_per_slab or "-",
            "tokens a page": round(side.frames.geometry.tokens_per_page, 1),
            "full": round(stats.utilisation, 4),
            "conversations": n_conversations,
        }


def management(model: Model, page_size: int, n_slots: int = 8, n_steps: int = 500) -> float:
    """Milliseconds per step of eight conversations, none of which computes anything, over real frames."""
    memory = math.ceil(n_slots * 4096 * model.token_bytes) + (256 << 20)
    with contextlib.closing(Paged(model, model.layout(page_size), 4096, memory, n_slots=n_slots)) as side:
        manager = side.manager
        running = [side.conversation, *(manager.open() for _ in range(n_slots - 1))]
        for slot, c in enumerate(running[1:], 1):
            manager.bind(c, slot)
        times = []
        for _ in range(n_steps):
            began = time.perf_counter()
            for c in running:
                manager.append(c, 1)
            manager.flush()
            for c in running:
                manager.commit(c, 1)
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.fmean(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--page-sizes", default="128", help="tokens, with commas")
    parser.add_argument("--depths", default="0,32768")
    parser.add_argument("--pool", type=float, default=4.0, help="GiB of pages to fill")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    kept = bench.Kept(f"paged-{args.name}")
    batch = 2048 if args.gpu else 512
    model = Model(args.model, gpu=args.gpu, kv_types=(args.kv_type,) * 2, batch=batch, threads=args.threads)

    rows = []
    for page_size in map(int, args.page_sizes.split(",")):
        full = kept.row(f"{page_size} full", lambda p=page_size: utilisation(model, p, int(args.pool * 2**30)))
        eight = kept.row(f"{page_size} eight", lambda p=page_size: {"pages ms at 8": management(model, p)})
        for depth in map(int, args.depths.split(",")):
            measured = kept.row(f"{page_size} {depth}", lambda p=page_size, d=depth: speeds(model, p, d, args.rounds))
            rows.append({"page_size": page_size, **full, "depth": f"{depth:,}", **measured, **eight})
    notes = [
        f"{args.model.name}, {args.kv_type}, {model.token_bytes:,.0f} bytes of KV per token; tokens per second",
        f"{args.rounds} rounds in turn, medians; {DECODED} tokens decoded, {PREFILLED:,} read in batches of {batch:,}",
        f"conversations of {SHORTEST} to {LONGEST:,} tokens, log-uniform, seed {SEED}, in {args.pool:g} GiB of pages",
    ]
    bench.write(f"paged-{args.name}", f"Paged and stock KV cache ({args.name})", rows, notes=notes)


if __name__ == "__main__":
    main()
