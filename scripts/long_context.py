"""A long context in little VRAM: it runs, and its logits are those of a run whose pages are all in VRAM.

    python scripts/long_context.py 35b.gguf --gib 6 --tokens 262144 --name 35b
    python scripts/long_context.py 35b.gguf --gib 6 --tokens 204800 --window 1048576 --rope-scaling yarn --swap 32GiB \\
        --only small --name 35b-1m
    python scripts/long_context.py tiny.gguf --cpu --gib 0.1 --tokens 16384 --name tiny         to try the script

    small   as every command loads a model, with gpu_memory of so many GiB, in what scripts/vram_ballast.py leaves
    large   the same plan, but a budget for pages in which all of them stay in VRAM, on the whole card

Each is a process of its own. Both read the same random tokens, all but the last 64, and go on with 32 that are given;
what is compared is a checksum of the raw logits after the prompt and after each of these. --window: of the context,
where it is longer than what is read. Passes (exit 0) if small had pages in RAM, and all logits are equal to the bit.

What was measured is kept in results/long-NAME.rows.json, and a further run goes on with the other one.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import bench
import numpy as np

HERE = Path(__file__).parent
MIB = 1 << 20
SPARE, GIVEN = 64, 32  # tokens of the window that the prompt leaves; those that follow it
LAST = 8  # batches at the end of the prompt
EVERY = 5.0  # seconds between two words about how far it is
SIDES = ("small", "large")


def child(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """Load the model, read and go on. The row."""
    from plan_check import loaded
    from plan_side import Served, Watch

    from pagedrun import machine

    watch = Watch(cpu=args.cpu)
    gpus = [] if args.cpu else machine.gpus()
    began = time.perf_counter()
    with all_on_the_device() if side == "large" else nullcontext(), loaded(args.model, config(args), gpus) as found:
        service, plan = found
        seconds = time.perf_counter() - began
        if (longest := service.limits.max_seq_len) < args.tokens - SPARE + GIVEN:
            raise SystemExit(f"{side}: a conversation can have no more than {longest:,} tokens in so much memory")
        served = Served.of(service)
        row = run(side, served, args, watch)
        stats, params = served.slots.stats(), service._engine.runner.limits
        return row | {
            "load s": seconds,
            "context": longest,
            "vram": plan.vram if plan is not None else 0,
            "pages": stats.pages,
            "cold": stats.spill.cold,
            "staged": stats.spill.staged,
            "why": stats.spill.reason,
            "swap MiB": stats.host.n_bytes / MIB,
            "peak MiB": watch.peak / MIB,
            "same": {
                "settings": dataclasses.asdict(plan.settings) if plan is not None else {},
                "pages": dataclasses.asdict(served.slots._manager.geometry),
                "limits": dataclasses.asdict(params),
                "buffers": stats.buffer_bytes,
            },
        }


def config(args: argparse.Namespace) -> Any:
    """As a user would write it. --vram: what the other one had, of which its plan was made."""
    from pagedrun.config import EngineConfig, n_bytes

    given: dict[str, Any] = {"rope_scaling": args.rope_scaling} if args.rope_scaling else {}
    given |= {"swap_space": n_bytes(args.swap, "--swap")} if args.swap else {}
    return EngineConfig(
        gpu_memory=args.vram or int(args.gib * 2**30),
        max_seq_len=args.window or args.tokens,
        gpu_layers=0 if args.cpu else -1,
        kv_type=args.kv_type,
        threads=args.threads,
        **given,
    )


@contextmanager
def all_on_the_device() -> Iterator[None]:
    """Page managers that are made meanwhile get a budget for twice the pages there can be; nothing else changes."""
    from pagedrun import load
    from pagedrun.kv import Budget

    make = load.PageManager

    def roomy(geometry: Any, store: Any, *, gpu_memory: Any, **more: Any) -> Any:
        every = geometry.n_slots * geometry.n_pages * geometry.frame_bytes
        return make(geometry, store, gpu_memory=Budget(max(gpu_memory.limit, 2 * every)), **more)

    load.PageManager = roomy  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        load.PageManager = make  # type: ignore[misc]


def run(side: str, served: Any, args: argparse.Namespace, watch: Any) -> dict[str, Any]:
    """Read the prompt and go on: speeds, and what the logits were."""
    from paged_side import tokens_of

    prompt, given = tokens_of(1, args.tokens - SPARE), tokens_of(2, GIVEN)
    taken: list[tuple[int, float]] = []
    said = time.perf_counter()
    for at in range(0, len(prompt), served.batch):
        tokens = tuple(prompt[at : at + served.batch])
        taken.append((len(tokens), timed(served, tokens, at)))
        if time.perf_counter() - said > EVERY or at + len(tokens) == len(prompt):
            said = time.perf_counter()
            watch.note()
            print(
                f"{side}: {at + len(tokens):,} of {len(prompt):,} tokens, {rate(taken[-LAST:]):,.0f} tok/s, "
                f"{served.cold:.0%} in RAM, peak {watch.peak / MIB:,.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
    logits = [seen(served.context.logits(taken[-1][0] - 1))]
    steps = []
    for i, token in enumerate(given):
        steps.append((1, timed(served, (token,), len(prompt) + i)))
        logits.append(seen(served.context.logits(0)))
    watch.note()
    return {"prompt": rate(taken), "last": rate(taken[-LAST:]), "decode": rate(steps), "logits": logits}


def timed(served: Any, tokens: tuple[int, ...], at: int) -> float:
    """Seconds of a step."""
    began = time.perf_counter()
    served.step(tokens, at)
    return time.perf_counter() - began


def rate(taken: list[tuple[int, float]]) -> float:
    """Tokens a second."""
    return sum(n for n, _ in taken) / sum(seconds for _, seconds in taken)


def seen(logits: np.ndarray) -> dict[str, Any]:
    """What is kept of raw logits, shape (n_vocab,): the checksum of all, and the largest with their tokens."""
    top = np.argsort(-logits, kind="stable")[:5]
    return {
        "sha256": hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest(),
        "top": [[int(t), float(logits[t])] for t in top],
        "finite": bool(np.isfinite(logits).all()),
    }


def start(side: str, vram: int, args: argparse.Namespace) -> dict[str, Any]:
    """The row of a child. Raises SystemExit where it fails, so that nothing is kept."""
    ballast = [sys.executable, str(HERE / "vram_ballast.py"), f"{args.gib:g}", "--"]
    command = [sys.executable, __file__, *sys.argv[1:], "--child", side, "--vram", str(vram)]
    done = subprocess.run(
        [*(ballast if side == "small" and not args.cpu else []), *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # a debugger that is started to print one may wait for ever
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{side}: exit code {done.returncode}")
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def compared(small: dict[str, Any], large: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether they had the same settings and the same logits; and what there is to say of it."""
    unequal = [name for name in small["same"] if small["same"][name] != large["same"][name]]
    notes = [f"NOT THE SAME: {name}: {small['same'][name]}, {large['same'][name]}" for name in unequal]
    pairs = list(zip(small["logits"], large["logits"], strict=True))
    differ = [i for i, (a, b) in enumerate(pairs) if a["sha256"] != b["sha256"]]
    notes.append(f"{len(pairs) - len(differ)} of {len(pairs)} logits vectors equal to the bit")
    if differ:
        same_token = sum(a["top"][0][0] == b["top"][0][0] for a, b in pairs)
        both = ((dict(a["top"]), dict(b["top"])) for a, b in pairs)
        apart = max((abs(a[t] - b[t]) for a, b in both for t in a.keys() & b.keys()), default=float("nan"))
        notes.append(
            f"the first that differ are of step {differ[0]} (0: after the prompt); the largest is of the same token in "
            f"{same_token} of {len(pairs)}; of the five largest none is apart by more than {apart:.3g}"
        )
    if large["cold"]:
        notes.append(f"NOT AS IT SHOULD BE: {large['cold']} pages of the run with room for all were in RAM")
    return not (unequal or differ or large["cold"]), notes


def shown(side: str, row: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    return {
        "": f"{args.gib:g} GiB" if side == "small" else "all pages in VRAM",
        "context": f"{row['context']:,}",
        "pages": row["pages"],
        "share in RAM": f"{row['cold'] / row['pages']:.0%}",
        "of them staged": f"{row['staged'] / row['cold']:.0%}" if row["cold"] else "-",
        "prompt tok/s": row["prompt"],
        f"its last {LAST} batches": row["last"],
        "decode tok/s": row["decode"],
        "peak MiB": row["peak MiB"] or "-",
        "swap MiB": row["swap MiB"],
        "load s": row["load s"],
    }


def report(rows: dict[str, dict[str, Any]], args: argparse.Namespace, measured: str) -> bool:
    """Write the table; whether all is as it should be. measured: when."""
    first = next(iter(rows.values()))
    settings, limits = first["same"]["settings"], first["same"]["limits"]
    fine = all(one["finite"] for row in rows.values() for one in row["logits"])
    notes = [] if fine else ["NOT AS IT SHOULD BE: logits that are not finite"]
    if len(rows) == len(SIDES):
        equal, found = compared(*(rows[side] for side in SIDES))
        fine, notes = fine and equal, notes + found
    scaled = f", positions scaled by {args.rope_scaling}" if args.rope_scaling else ""
    notes += [
        f"{args.model.name}, {args.kv_type}; {args.tokens - SPARE:,} tokens read and {GIVEN} given ones after them, "
        f"in a window of {args.window or args.tokens:,}{scaled}; batches of {limits['max_batch_tokens']:,}",
        "share in RAM: of the pages, read from there in every step; swap: RAM for pages; peak: by the driver",
        measured,
    ]
    if settings:
        notes.append(f"routed experts of {len(settings['ram_experts'])} layers in RAM")
    bench.write(
        f"long-{args.name}",
        f"A context of {args.tokens:,} tokens in {args.gib:g} GiB ({args.name})",
        [shown(side, row, args) for side, row in rows.items()],
        notes=notes,
    )
    return fine


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gib", type=float, default=6, help="gpu_memory; without a GPU: of RAM for buffers and pages")
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--window", type=int, default=0, help="max_seq_len; 0: as many as --tokens")
    parser.add_argument("--rope-scaling", default="")
    parser.add_argument("--swap", default="", help="swap_space")
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--vram", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tokens <= 2 * SPARE or (args.window and args.window < args.tokens):
        parser.error(f"--tokens are more than {2 * SPARE}, and no more than --window")
    return args


def main() -> int:
    args = arguments()
    if args.child:
        print(json.dumps(child(args.child, args)))
        return 0
    kept = bench.Kept(f"long-{args.name}")
    case = f"{args.gib:g} GiB, {args.tokens:,} of {args.window or args.tokens:,}, {args.kv_type}"
    rows: dict[str, dict[str, Any]] = {}
    for side in (args.only,) if args.only else SIDES:
        vram = rows["small"]["vram"] if "small" in rows else 0
        rows[side] = kept.row(f"{side} {case}", lambda s=side, v=vram: start(s, v, args))  # type: ignore[misc]
        if side == "small" and not rows[side]["cold"]:
            print("small: all pages fitted, so that nothing was read from RAM: give fewer --gib", file=sys.stderr)
            return 1
    return 0 if report(rows, args, kept.note) else 1


if __name__ == "__main__":
    sys.exit(main())
