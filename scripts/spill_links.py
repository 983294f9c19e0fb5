"""Copies as slow as those of slower links: do `auto` and the plan's formula follow what was measured? The part of
`bench_spill.py` that --links runs.

    bench_spill.py 35b.gguf --ram-experts 40 --links 12,25,0 --shares 0.25,0.5,1 --name 35b     writes results/links-35b

Copies are throttled by letting fewer blocks copy, and never the engine. What reads pages in place is as fast as ever:
at a slow link reading directly is the better way, and at a fast one staging is. One block copies 22 GB/s on an H200's
host: links below that are measured first and by themselves, with PAGEDRUN_COPY_THREADS=256 in the environment (of 512
in a block); what is kept of them is in the table of a further run with all.

    link GB/s       measured, of these blocks; for auto: those that it chose in the end, of those that it may
    share in RAM    of the pages. The memory is that of the staged row: what is read directly needs no stages, and has
                    more pages in VRAM for it
    predicted       by the plan's formula (pagedrun/kv/cost.py) from the link, and a step with all in VRAM
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import bench
from paged_side import Model
from spill_side import AHEAD, Spilled, Way, opened

from pagedrun.kv import PageManager
from pagedrun.kv.cost import with_cold
from pagedrun.native.frames import Copier, NativeFrames, Route, Staging
from pagedrun.slots.pace import BLOCKS, Pace
from pagedrun.spilling import Bus

WARM_S, MEASURED_S = 1.0, 1.5
LEAST = 5  # steps
GOOD = 0.95
FORCED = ("staged", "zero-copy")


@dataclass(frozen=True)
class Throttled(Bus):
    """A bus over which only the kernel copies, with so few blocks. kernel, engine: what these reach."""

    blocks: int = BLOCKS[-1]

    def staging(self) -> Staging:
        """Never faster."""
        return Staging(decode=Copier.KERNEL, prefill=Copier.KERNEL, blocks=self.blocks, timing=True)

    def pace(self, frames: NativeFrames, manager: PageManager) -> Pace:
        """May be slower still."""
        pace = Bus.pace(self, frames, manager)
        pace.most = self.blocks
        return pace


def throttled(frames: NativeFrames, wanted: float) -> Bus:
    """The bus with as many blocks as come nearest to so many bytes a second; 0: as it is."""
    bus = Bus.of(frames)
    if not wanted:
        return bus
    rates: dict[int, float] = {}
    for n in range(1, BLOCKS[-1] + 1):
        frames.staging(Staging(blocks=n))
        rates[n] = frames.bandwidth(Route.KERNEL)
        if rates[n] >= wanted:
            break
    n = min(rates, key=lambda n: abs(rates[n] - wanted))
    return Throttled(rates[n], rates[n], bus.zero_copy, min(rates[n] * 4 / n, bus.kernel_of_4), n)


def decode(side: Spilled, depth: int) -> float:
    """Median seconds of a step, once the copies have had time to find their pace."""
    taken: list[tuple[float, float]] = []
    side.reset(depth)
    began = time.perf_counter()
    for at in range(depth, depth + AHEAD - 1):
        before = time.perf_counter()
        side.step((100 + at % 1000,), at)
        taken.append((before - began, time.perf_counter() - before))
        if len(taken) > LEAST and taken[-LEAST][0] > WARM_S and taken[-1][0] > WARM_S + MEASURED_S:
            break
    return statistics.median([s for when, s in taken if when > WARM_S] or [s for _, s in taken[-LEAST:]])


def found(side: Spilled, depth: int) -> dict[str, Any]:
    """How a conversation is decoded, and how it lies."""
    seconds, stats = decode(side, depth), side.manager.stats()
    spill, size = stats.spill, side.frames.geometry.frame_bytes
    return {
        "decode": seconds,
        "pages": stats.pages,
        "cold": spill.cold,
        "staged": spill.staged,
        "staged bytes": spill.staged * size,
        "direct bytes": spill.zero_copy * size,
        "blocks": side.pace.blocks if isinstance(side.pace, Pace) else 0,
        "why": spill.reason,
    }


def link_of(model: Model, wanted: float) -> dict[str, Any]:
    """A link, as a row."""
    with contextlib.closing(Spilled(model, 0, Way(0.0))) as side:
        return asdict(throttled(side.frames, wanted) if model.gpu else side.bus)


def all_hot(model: Model, depth: int) -> dict[str, Any]:
    """A step with all in VRAM."""
    with contextlib.closing(Spilled(model, depth, Way(0.0))) as side:
        return found(side, depth)


def cold(model: Model, depth: int, way: Way) -> dict[str, Any]:
    """A mode at a share."""
    with contextlib.closing(Spilled(model, depth, way)) as side:
        return found(side, depth)


def bus_of(row: dict[str, Any]) -> Bus:
    """A link out of its row."""
    values = {name: value for name, value in row.items() if name in Throttled.__dataclass_fields__}
    return Throttled(**values) if "blocks" in values else Bus(**values)


def shown(bus: Bus, mode: str, row: dict[str, Any], step_s: float) -> dict[str, Any]:
    """One line of the table."""
    most = bus.blocks if isinstance(bus, Throttled) else BLOCKS[-1]
    rates = bus.rates()
    staged = row["staged bytes"] / rates.copy if rates.copy else 0.0
    direct = row["direct bytes"] / rates.zero_copy if rates.zero_copy else 0.0
    predicted = 1 / with_cold(step_s, staged=staged, direct=direct)
    return {
        "link GB/s": f"{rates.copy / 1e9:.1f}" if rates.copy else "-",
        "blocks": f"{row['blocks']} of {most}" if row["blocks"] else f"{most}",
        "share in RAM": f"{row['cold'] / row['pages']:.0%}",
        "mode": mode,
        "staged share": f"{row['staged'] / row['cold']:.0%}" if row["cold"] else "-",
        "decode": 1 / row["decode"],
        "predicted": predicted,
        "ratio": 1 / row["decode"] / predicted,
    }


def verdict(link: str, share: float, rows: dict[str, dict[str, Any]]) -> str:
    """Auto against the better of the modes that can be forced."""
    best = min(FORCED, key=lambda mode: rows[mode]["decode"])
    ratio = rows[best]["decode"] / rows["auto"]["decode"]
    return f"{link}, {share:.0%}: auto decodes {ratio:.2f} times as fast as the better mode, {best}" + (
        "" if ratio >= GOOD else " (slower)"
    )


def measured(model: Model, args: argparse.Namespace, kept: bench.Kept) -> Iterator[tuple[str, float, Bus, Any]]:
    """Link, share, bus, and the rows by mode; one link after the other."""
    step_s = kept.row("all in VRAM", lambda: all_hot(model, args.depth))["decode"]
    for link in args.links.split(","):
        bus = bus_of(kept.row(f"link {link}", lambda n=link: link_of(model, float(n) * 1e9)))
        for share in (float(s) for s in args.shares.split(",") if float(s)):
            rows: dict[str, dict[str, Any]] = {}
            for mode in (*FORCED, "auto"):
                key = f"{share:g} {mode}" if mode == "zero-copy" else f"link {link}, {share:g} {mode}"
                way = Way(share, mode, bus=bus, step_s=step_s)
                rows[mode] = kept.row(key, lambda w=way: cold(model, args.depth, w))
            yield link, share, bus, rows


def run(args: argparse.Namespace) -> None:
    """Measure, and write the table."""
    kept = bench.Kept(f"links-{args.name}")
    model = opened(args, "f16")
    groups = list(measured(model, args, kept))
    again = kept.row("all in VRAM, once more", lambda: all_hot(model, args.depth))
    model.native.close()
    step_s = min(kept.rows["all in VRAM"]["decode"], again["decode"])
    zero_copy = groups[0][2].zero_copy / 1e9
    notes = [
        f"{args.model.name}, f16, at {args.depth:,} tokens; routed experts of {args.ram_experts} layers in RAM",
        f"with all in VRAM {1 / step_s:.3g} tokens a second; reading in place: {zero_copy:.1f} GB/s at every link, so "
        "that zero-copy is measured once for each share",
        *(
            verdict(f"{bus.rates().copy / 1e9:.1f} GB/s" if float(link) else "as it is", share, rows)
            for link, share, bus, rows in groups
        ),
        kept.note,
    ]
    lines = [shown(bus, mode, row, step_s) for _, _, bus, rows in groups for mode, row in rows.items()]
    bench.write(f"links-{args.name}", f"Copies as slow as those of slower links ({args.name})", lines, notes=notes)
