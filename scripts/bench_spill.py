"""A long conversation of which a part is in RAM: how fast it goes on, against llama.cpp with all of it in VRAM.

    python scripts/vram_ballast.py 6 -- python scripts/bench_spill.py 35b.gguf --ram-experts 40 --name 35b
    python scripts/bench_spill.py tiny.gguf --cpu --depth 2048 --name tiny        to try the script
    ... --links 12,25,0        only decoding, with copies as slow as of links of so many GB/s (spill_links.py)

    in RAM          share of the conversation's pages that every step reads from the host
    decode          tokens per second, 1 at a time; prefill: of the next 2,048 tokens
    of VRAM         ratio to llama.cpp with its whole KV cache in VRAM, the faster of two: before and after these rows
    limit           what no spilling can pass: the slower of a step with all in VRAM and of moving the cold bytes once
    waited          how long attention waited for copies, of a step's time
    blocks          of the kernel that copies, as the engine chose them in the end (pagedrun/slots/pace.py)

Depth is written, not computed: rows of zeros, whose attention costs what any other costs. llama.cpp with its KV cache
in RAM (offload_kqv off) is measured at 0 and 16,384 tokens and carried on in a straight line.

Every row that is done is kept in results/spill-NAME.rows.json, and a further run goes on with the next.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench
import spill_links
from paged_side import Model, tokens_of
from spill_side import PREFILLED, Deep, Spilled, Way, opened

from pagedrun.native.frames import Copier, Route, Staging
from pagedrun.slots.pace import Pace

DECODED = 32
SHALLOW = 16_384  # where llama.cpp is measured with its KV cache in RAM
WARM = 192  # tokens until the copies have found their pace


def seconds(side: Deep, depth: int, batch: int, n: int, rounds: int) -> float:
    """Median seconds of a batch of so many tokens, of which `n` are computed from `depth` on."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        side.feed(tokens_of(1, n), depth) if batch > 1 else [side.step((100 + i,), depth + i) for i in range(n)]
        taken.append((time.perf_counter() - began) * batch / n)
        side.reset(depth)
    return statistics.median(taken)


def speeds(side: Deep, depth: int, rounds: int, *, prefill: bool = True) -> dict[str, float]:
    """Seconds of a step that decodes, and of one that reads 2,048 tokens."""
    seconds(side, depth, 1, WARM if isinstance(side, Spilled) and side.way.mode == "auto" else 8, 1)
    found = {"decode": seconds(side, depth, 1, DECODED, rounds)}
    if prefill:
        seconds(side, depth, PREFILLED, PREFILLED, 1)
        found["prefill"] = seconds(side, depth, PREFILLED, PREFILLED, rounds)
    return found


def stock(model: Model, depth: int, rounds: int) -> dict[str, Any]:
    """llama.cpp with its KV cache in VRAM."""
    with contextlib.closing(Deep(model, depth)) as side:
        return speeds(side, depth, rounds)


def in_ram(model: Model, depth: int, rounds: int) -> dict[str, Any]:
    """llama.cpp with its KV cache, and so attention, in RAM: decoding, in a straight line through two depths."""
    points = []
    for at in (0, min(SHALLOW, depth)):
        with contextlib.closing(Deep(model, at, offload=False)) as side:
            points.append(speeds(side, at, rounds, prefill=False)["decode"])
    first, last = points
    return {"decode": first + (last - first) * depth / min(SHALLOW, depth), "decode at 16K": last}


def spilled(model: Model, depth: int, rounds: int, way: Way) -> dict[str, Any]:
    """pagedrun with a share of the pages in RAM. Long batches that read it directly are slow: one format does."""
    prefill = way.mode != "zero-copy" or model.config.kv_types[0] == "f16"
    with contextlib.closing(Spilled(model, depth, way)) as side:
        found: dict[str, Any] = speeds(side, depth, rounds, prefill=prefill)
        stats = side.manager.stats()
        spill = stats.spill
        found |= {"cold": spill.cold, "staged": spill.staged, "pages": stats.pages, "why": spill.reason}
        found["cold bytes"] = spill.cold * side.frames.geometry.frame_bytes
        rates = {r.name.lower(): side.frames.bandwidth(r) for r in Route}
        if isinstance(side.pace, Pace):
            found["blocks"] = side.pace.blocks
        elif spill.staged:
            staging = way.staging or Staging(decode=side.bus.staging().decode)
            if way.staging is not None:
                side.frames.staging(replace(staging, timing=True))
            side.frames.spill_stats()
            alone = seconds(side, depth, 1, DECODED, 1)
            found["waited"] = side.frames.spill_stats().waited_s / (alone * DECODED)
    return found | {"rates": rates}


def row(way: str, found: dict[str, Any], base: dict[str, float]) -> dict[str, Any]:
    """One line of the table."""
    shown: dict[str, Any] = {"": way, "in RAM": "-", "of them staged": "-"}
    limit = math.nan
    if "cold" in found:
        shown["in RAM"] = f"{found['cold'] / found['pages']:.0%}"
        shown["of them staged"] = f"{found['staged'] / found['cold']:.0%}" if found["cold"] else "-"
        best = max(found["rates"]["kernel"], found["rates"]["engine"])
        limit = 1 / max(base["decode"], found["cold bytes"] / best if best else 0)
    shown |= {"decode": 1 / found["decode"], "of VRAM": base["decode"] / found["decode"]}
    shown |= {"limit": "-" if math.isnan(limit) else limit}
    shown |= {"of limit": "-" if math.isnan(limit) else 1 / found["decode"] / limit}
    shown |= {"prefill": "-", "prefill of VRAM": "-"}
    if "prefill" in found:
        shown["prefill"] = PREFILLED / found["prefill"]
        shown["prefill of VRAM"] = base["prefill"] / found["prefill"]
    shown["waited"] = f"{found['waited']:.0%}" if "waited" in found else "-"
    return shown | {"blocks": found.get("blocks", "-")}


def ways(args: argparse.Namespace, kv_type: str) -> Iterator[Way]:
    """What is measured for a format of the KV cache."""
    for share in map(float, args.shares.split(",")):
        for mode in args.modes.split(",") if share else ["auto"]:
            yield Way(share, mode)
    for text in args.staged.split() if kv_type == args.kv_types.split(",")[0] else []:
        share, decode, prefill, blocks = text.split(",")
        staging = Staging(decode=Copier[decode.upper()], prefill=Copier[prefill.upper()], blocks=int(blocks))
        yield Way(float(share), "staged", staging)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--kv-types", default="f16,q8_0,q4_0")
    parser.add_argument("--depth", type=int, default=131_072)
    parser.add_argument("--shares", default="0,0.25,0.5,1")
    parser.add_argument("--modes", default="auto,zero-copy", help="of spilling")
    parser.add_argument("--staged", default="", help="rows of the first format: SHARE,DECODE,PREFILL,BLOCKS ...")
    parser.add_argument("--ram-experts", type=int, default=0, help="layers whose routed experts are in RAM")
    parser.add_argument("--links", default="", help="GB/s, with commas; 0: as it is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    if args.links:
        spill_links.run(args)
        return
    kept, rows = bench.Kept(f"spill-{args.name}"), []
    for kv_type in args.kv_types.split(","):
        model = opened(args, kv_type)
        found = {
            "llama.cpp, all in VRAM": kept.row(f"{kv_type} stock", lambda m=model: stock(m, args.depth, args.rounds))
        }
        step = found["llama.cpp, all in VRAM"]
        for way in (replace(w, step_s=step["decode"], prefill_s=step["prefill"]) for w in ways(args, kv_type)):
            measured = kept.row(f"{kv_type} {way}", lambda m=model, w=way: spilled(m, args.depth, args.rounds, w))
            found[f"pagedrun {way.cold:.0%}, {way.how}"] = measured
        again = kept.row(f"{kv_type} stock again", lambda m=model: stock(m, args.depth, args.rounds))
        base = {name: min(again[name], found["llama.cpp, all in VRAM"][name]) for name in again}
        found["llama.cpp, once more"] = again
        if kv_type == "f16":
            ram = kept.row(f"{kv_type} in RAM", lambda m=model: in_ram(m, args.depth, args.rounds))
            found["llama.cpp, KV cache in RAM, extrapolated"] = ram
        rows += [{"KV": kv_type} | row(name, measured, base) for name, measured in found.items()]
        model.native.close()
    rates = next((found["rates"] for found in kept.rows.values() if "rates" in found), {})
    notes = [
        f"{args.model.name} at {args.depth:,} tokens; routed experts of {args.ram_experts} layers in RAM",
        "GB/s: " + ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in rates.items()),
        f"medians of {args.rounds} rounds; {DECODED} tokens decoded, {PREFILLED:,} read in one batch",
        kept.note,
    ]
    bench.write(
        f"spill-{args.name}", f"A conversation of {args.depth:,} tokens, partly in RAM ({args.name})", rows, notes=notes
    )


if __name__ == "__main__":
    main()
