"""Many conversations in one budget of KV memory: how many run together, and how fast all of them are.

    python scripts/bench_concurrency.py 8b.gguf --gpu --budget 4 --name 8b
    python scripts/bench_concurrency.py 35b.gguf --gpu --budget 2 --name 35b
    python scripts/bench_concurrency.py tiny.gguf --budget 0.03 --tokens 512 --common 384 --slot 2048 --name cpu

    pagedrun     pages; any conversation may grow to a slot's size
    slots        llama.cpp with a slot of 8,192 tokens for each, as `llama-server -np N -c N*8192`
    unified      llama.cpp with one pool for all, as `llama-server --kv-unified`
    alike        the same with pages, where all conversations begin with the same 1,536 of their 2,048 tokens;
                 llama-server computes and stores these for each, so that "unified" is what they are compared with
                 (a program that knows can have its rows shared: llama_memory_seq_cp)

The budget pays for the KV cache and for recurrent states, on all sides, by llama.cpp's own account of the context, and
not for buffers of computing. (An engine whose pages may spill keeps a stage's bytes of it, less than a page, for that.)
How many run together is found by doing it: contexts are opened for one more and one more, each conversation reads all
of its tokens but the last, and all compute that one in one step, until a context or a batch is refused.

    together      conversations of so many tokens, until the next is refused
    held          tokens of them that are stored, of the tokens for which memory is taken then
    tok/s at n    n of them decode together, at a depth between the common beginning and the end: medians. The sides
                  take turns; ratios are medians of those round by round

Exit code 1: a model that is all attention holds less than 3 times the conversations of slots, 0.95 times those of the
pool, 3 times those where they begin alike, or is slower than 0.95 of either at some number of conversations.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from concurrency_side import Many, Pages, Slots, Unified, context_memory
from paged_side import Model, tokens_of

from pagedrun.native.context import NativeContext

MIB = 1 << 20
COUNTS = (1, 2, 4, 8, 16)
OWN = 64  # tokens after the common beginning that are read; what follows is decoded
WARM = 2
FLOORS = {"pagedrun / slots": 3.0, "pagedrun / unified": 0.95, "alike / unified": 3.0}  # times as many together
SPEED = 0.95
ALL = "all"


@dataclass(frozen=True)
class Kind:
    """A way to hold conversations. most: how many by arithmetic, with which trying begins."""

    name: str
    open: Callable[[int], Many]
    most: int


def kinds(model: Model, args: argparse.Namespace) -> list[Kind]:
    """All four."""
    budget, slot, page = int(args.budget * 2**30), args.slot, args.page_size
    state, one = state_bytes(model), model.token_bytes * args.tokens
    alike = model.token_bytes * (args.tokens - args.common)
    return [
        Kind("pagedrun", lambda n: Pages(model, n, budget, slot, page), int(budget / (one + state))),
        Kind("slots", lambda n: Slots(model, n, budget, slot), int(budget / (model.token_bytes * slot + state))),
        Kind("unified", lambda n: Unified(model, n, budget, state), int(budget / (one + state))),
        Kind(
            "alike",
            lambda n: Pages(model, n, budget, slot, page, args.common),
            int((budget - model.token_bytes * args.common) / (alike + state)),
        ),
    ]


def state_bytes(model: Model) -> int:
    """What a slot's recurrent states take: two contexts that differ by one slot."""
    if model.can_rewind:
        return 0
    sizes = []
    for n in (1, 2):
        model.placement.set_seq_len(256, n)
        with contextlib.closing(NativeContext(model.native, model.placement.context_params)) as context:
            sizes.append(context_memory(model, context.pointer)[0])
    return sizes[1] - sizes[0] - round(256 * model.token_bytes)


def prompt(i: int, args: argparse.Namespace) -> list[int]:
    """A conversation's tokens: a beginning that all have, and its own."""
    return tokens_of(0, args.common) + tokens_of(i + 1, args.tokens - args.common)


def attempt(kind: Kind, n: int, args: argparse.Namespace) -> dict[str, Any]:
    """Up to `n` conversations in a context for so many: how many run together, and what memory holds then."""
    try:
        side = kind.open(n)
    except MemoryError as e:
        return {"together": 0, "why": str(e)}
    with contextlib.closing(side):
        why, done = "", 0
        try:
            for i in range(n):
                side.begin(prompt(i, args)[:-1])
                done += 1
        except MemoryError as e:
            why = str(e)
        try:
            side.step({s: (100 + s,) for s in range(done)})
        except MemoryError as e:
            return {"together": done - 1, "why": str(e)}
        return {
            "together": done,
            "why": why,
            "stored": side.stored,
            "taken": side.taken,
            "kept MiB": side.kept / MIB,
            "buffers MiB": side.buffers / MIB,
        }


def count(kind: Kind, args: argparse.Namespace) -> dict[str, Any]:
    """The most that run together: one more is tried, and refused."""
    n = max(kind.most, 1)
    best, found = None, attempt(kind, n, args)
    while found["together"] == n:
        best, n = found, n + 1
        found = attempt(kind, n, args)
    refused = found["why"]
    while best is None:
        n -= 1
        if n == 0:
            raise SystemExit(f"{kind.name}: not one conversation fits: {refused}")
        found = attempt(kind, n, args)
        best, refused = (found, refused) if found["together"] == n else (None, found["why"])
    return best | {"why": refused}


def speeds(all_kinds: list[Kind], together: dict[str, int], args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step for each side and number of conversations, round by round."""
    with contextlib.ExitStack() as stack:
        sides = {k.name: stack.enter_context(contextlib.closing(k.open(together[k.name]))) for k in all_kinds}
        for name, side in sides.items():
            for i in range(together[name]):
                side.begin(prompt(i, args)[: args.common + OWN])
        n_steps = steps(args)
        taken: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
        for n in (*COUNTS, ALL):
            for i in range(args.rounds):
                for name in list(sides)[:: 1 if i % 2 else -1]:
                    many = together[name] if n == ALL else int(n)
                    if many <= together[name]:
                        seconds = decode(sides[name], many, n_steps, args.clock)
                        taken[name].setdefault(str(n), []).append(seconds / many)
        return {"steps": n_steps - WARM, "seconds": taken}


def steps(args: argparse.Namespace) -> int:
    """Steps of a round, so that no conversation becomes longer than it may."""
    return int(args.tokens - args.common - OWN) // (len(COUNTS) + 1) // args.rounds


def decode(side: Many, n: int, n_steps: int, clock: Callable[[], float]) -> float:
    """Seconds of a step in which the first `n` conversations go on by a token each."""
    began = clock()
    for i in range(n_steps):
        if i == WARM:
            began = clock()
        side.step({s: (100 + (s * 31 + i) % 1000,) for s in range(n)})
    return (clock() - began) / (n_steps - WARM)


def table(counts: dict[str, dict[str, Any]], taken: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """A row for each side, then one for each comparison."""
    rows = []
    for name, found in counts.items():
        speed = {n: 1 / statistics.median(s) for n, s in taken[name].items()}
        rows.append(
            {
                "": name,
                "together": found["together"],
                "held": f"{found['stored'] / found['taken']:.1%}",
                "tokens stored": f"{found['stored']:,}",
                "of all": f"{found['of all']:,}",
                "states, slots MiB": round(found["kept MiB"]),
                "buffers MiB": round(found["buffers MiB"]),
                **{f"tok/s at {n}": speed.get(str(n), "-") for n in (*COUNTS, ALL)},
            }
        )
    for ours, theirs in (pair.split(" / ") for pair in FLOORS):
        both = {n: compared(taken, ours, theirs, str(n)) for n in COUNTS}
        row: dict[str, Any] = dict.fromkeys(rows[0], "-") | {"": f"{ours} / {theirs}"}
        row["together"] = counts[ours]["together"] / counts[theirs]["together"]
        rows.append(row | {f"tok/s at {n}": r if r else "-" for n, r in both.items()})
    return rows


def compared(taken: dict[str, dict[str, list[float]]], ours: str, theirs: str, n: str) -> float | None:
    """How many times as fast, at an equal number of conversations; None: one of them has no room for so many."""
    if n not in taken[ours] or n not in taken[theirs]:
        return None
    return bench.ratio(taken[theirs][n], taken[ours][n])


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """Floors that a model without recurrent layers stays below."""
    ratios = {row[""]: row for row in rows}
    below = [f"{k}: {ratios[k]['together']:.3g} conversations" for k, f in FLOORS.items() if ratios[k]["together"] < f]
    for k in FLOORS:
        below += [
            f"{k}: {ratios[k][f'tok/s at {n}']:.3g} of the speed at {n}"
            for n in COUNTS
            if isinstance(r := ratios[k][f"tok/s at {n}"], float) and r < SPEED
        ]
    return below


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--budget", type=float, default=4.0, help="GiB for the KV cache and recurrent states")
    parser.add_argument("--tokens", type=int, default=2048, help="of a conversation")
    parser.add_argument("--common", type=int, default=1536, help="of these, with which all begin")
    parser.add_argument("--slot", type=int, default=8192, help="tokens that a conversation may grow to")
    parser.add_argument("--page-size", type=int, default=0, help="tokens; 0: 128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    args.page_size = args.page_size or 128
    alone = args.gpu or args.threads != 1  # one thread's time does not depend on who else works here
    args.clock = time.perf_counter if alone else time.process_time
    if steps(args) <= WARM:
        parser.error(f"--tokens has to be more, by {OWN + (len(COUNTS) + 1) * args.rounds * (WARM + 1)}, than --common")
    kept = bench.Kept(f"concurrency-{args.name}")
    batch = 2048 if args.gpu else 512
    model = Model(args.model, gpu=args.gpu, kv_types=("f16", "f16"), batch=batch, threads=args.threads)
    args.dense = model.can_rewind
    every = kinds(model, args)
    counts = {k.name: kept.row(k.name, lambda k=k: count(k, args)) for k in every}
    together = {name: found["together"] for name, found in counts.items()}
    for found in counts.values():
        found["of all"] = found["together"] * args.tokens
    speed = kept.row("speeds", lambda: speeds(every, together, args))
    rows = table(counts, speed["seconds"])
    below = missed(rows) if args.dense else []
    state = "" if args.dense else f", and {state_bytes(model) / MIB:.3g} MiB of recurrent state for each conversation"
    notes = [
        f"{args.model.name}, f16; {args.budget:g} GiB for {model.token_bytes:,.0f} bytes of KV per token{state}",
        f"conversations of {args.tokens:,} tokens, in slots or windows of {args.slot:,}; alike: the first "
        f"{args.common:,} are the same; pages of about {args.page_size} tokens",
        f"{args.rounds} rounds in turn, {speed['steps']} steps each, medians; all: with as many as run together"
        + ("" if alone else "; seconds of CPU time, of one thread"),
        *(f"{name}: one more is refused: {found['why']}" for name, found in counts.items()),
        *(f"below the floor: {what}" for what in below),
        kept.note,
    ]
    bench.write(f"concurrency-{args.name}", f"Conversations in one budget ({args.name})", rows, notes=notes, raw=speed)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
