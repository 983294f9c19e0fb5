"""pagedrun's plan against what llama.cpp does by itself, and against placements by hand, in 6, 8 and 12 GiB of VRAM.

    python scripts/bench_plan.py 35b.gguf --name 35b [--gib 6 8 12] [--depths 0 32768 131072] [--whole]
    python scripts/bench_plan.py 35b.gguf --name 35b-4k --gib 6 --context 4096 --depths 0 --whole
    python scripts/bench_plan.py tiny.gguf --cpu --depths 0 4096 --gib 6 --name tiny          to try the script

Each candidate is a process of its own (plan_side.py says what they are), for a context as long as the plan's. One after
the other is started in so much free VRAM, and fills its context; then they decode in turn, a few tokens each, so that
what drifts on a machine drifts for all. Depth is written, not computed. The deepest is where the context is all but
full: it ends with the tokens that are measured.

--context    tokens that all candidates are made for; 0: what the plan chooses
--whole      gpu_memory is the whole size; else pagedrun leaves 512 MiB, as it does without flags

A size that is done is kept in results/plan-NAME.rows.json, and a further run goes on with the next.
Passes (exit 0) if plans stay inside their size and take what was predicted, and at each depth they decode as fast as
the best of llama.cpp's with batches as large, ties being within 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bench
from vram_ballast import Ballast

TIE = 0.02
NO_ROOM = 3  # exit code of a candidate that does not fit
MOST = 120.0  # seconds that an answer may take
DECODED, LEAST_DECODED = 8, 2  # tokens of a turn; of one that is slow
SLOW = 2.0  # times as long as the plan's
PREFILLED = 2048
OUT_OF_MEMORY = ("out of memory", "failed to allocate", "unable to allocate", "cudaMalloc failed")
HERE = Path(__file__).parent
PLAN, USUAL = "plan", "usual"


class NotDoneError(Exception):
    """A candidate could not be measured."""


class Candidate:
    """A process that has loaded a model its own way, and measures when it is asked to."""

    def __init__(self, name: str, of: tuple[int, int], args: argparse.Namespace, files: ExitStack) -> None:
        """of: tokens of the context and of a batch. Raises NotDoneError, with what it said."""
        self.name = name
        command = [
            sys.executable, __file__, str(args.model), "--child", name, "--of", str(of[0]), "--batch", str(of[1]),
            "--context", str(args.context), "--kv-type", args.kv_type, "--threads", str(args.threads),
            *(["--cpu"] if args.cpu else []), *(["--whole"] if args.whole else []),
        ]  # fmt: skip
        self._log = bench.RESULTS / f".{name.replace(':', '-')}.log"
        errors = files.enter_context(self._log.open("w"))
        files.callback(self._log.unlink, missing_ok=True)
        pipe, environment = subprocess.PIPE, os.environ | {"GGML_NO_BACKTRACE": "1"}  # a debugger may wait for ever
        self._process = files.enter_context(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, text=True)
        )
        files.callback(self._process.kill)
        self.found = self._answer()

    def ask(self, do: str, depth: int, n: int) -> dict[str, Any]:
        """What it measured. Raises NotDoneError."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, "depth": depth, "n": n}), file=self._process.stdin, flush=True)
        except BrokenPipeError as e:
            raise NotDoneError(self._why()) from e
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(MOST, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {"why": self._why()}
        if "why" in answer:
            raise NotDoneError(answer["why"])
        return answer

    def _why(self) -> str:
        code, errors = self._process.wait(), self._log.read_text()
        memory = any(text in errors for text in OUT_OF_MEMORY)
        return "does not fit: memory ran out" if memory else f"exit code {code}: {errors[-2000:]}"


def size_of(gib: float, args: argparse.Namespace, ballast: Ballast | None) -> dict[str, Any]:
    """All candidates in one size: what each found, or why it did not."""
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as files:
        running: list[Candidate] = []

        def start(name: str, *of: int) -> dict[str, Any]:
            if ballast is not None:
                ballast.leave(int(gib * 2**30))
            try:
                candidate = Candidate(name, (of[0], of[1]), args, files)
                running.append(candidate)
                rows[name] = dict(candidate.found)
            except NotDoneError as e:
                rows[name] = {"why": str(e)}
            print(f"{gib:g} GiB, {name}: {rows[name]}", file=sys.stderr, flush=True)
            return rows[name]

        plan = start(PLAN, args.context or max(args.depths), 0)
        if "why" in plan:
            raise RuntimeError(plan["why"])
        context = min(plan["context"], args.context or max(args.depths))
        for name in around(plan["experts"], plan["layers"]):
            start(name, context, plan["batch"])
        if ballast is not None:
            ballast.leave(2 << 30)  # nobody who watches what is free is to give memory up
        for depth in args.depths:
            take_turns(running, max(min(depth, context - args.ahead), 0), depth, rows, args.rounds)
    return {"rows": rows, "context": context}


def around(experts: int, layers: int) -> Iterator[str]:
    """Candidates beside a plan that leaves the experts of so many of the layers in RAM."""
    yield from (f"ncmoe:{n}" for n in (experts, experts + 2, experts - 1) if 0 <= n <= layers)
    yield from (USUAL, "fit")


def take_turns(running: list[Candidate], at: int, depth: int, rows: dict[str, Any], rounds: int) -> None:
    """Decode in turn, and read prompts, at a depth."""
    first = running[0]
    for what, times, n_tokens in (("decode", rounds, DECODED), ("prefill", 1, PREFILLED)):
        taken: dict[str, list[float]] = {c.name: [] for c in running}
        for _ in range(times):
            for candidate in running:
                mine = taken[candidate.name]
                slow = bool(mine) and mine[-1] > SLOW * taken[first.name][-1]
                answer = candidate.ask(what, at, LEAST_DECODED if slow else n_tokens)
                mine.append(answer["seconds"])
                if "cold" in answer:
                    rows[candidate.name][f"cold {depth}"] = answer["cold"]
        for name, seconds in taken.items():
            rows[name][f"{what} {depth}"] = 1 / statistics.median(seconds)
            if what == "decode":
                pairs = zip(seconds, taken[first.name], strict=True)
                rows[name][f"ratio {depth}"] = statistics.median(theirs / ours for theirs, ours in pairs)
        print(f"{what} {depth}: {taken}", file=sys.stderr, flush=True)


def name_of(candidate: str, row: dict[str, Any]) -> str:
    """As the table says it."""
    kind, _, number = candidate.partition(":")
    if kind == PLAN:
        return "pagedrun"
    if kind == "fit":
        return "llama.cpp, --fit"
    return f"llama.cpp, -ncmoe {row.get('experts', number)}" + (", batches of 512" if kind == USUAL else "")


def shown(gib: str, candidate: str, row: dict[str, Any], depths: list[int]) -> dict[str, Any]:
    """One line of the table."""
    line: dict[str, Any] = {"GiB": gib, "": name_of(candidate, row), "experts in RAM": row.get("experts", "-")}
    line["batch"] = row.get("batch", "-")
    cold = row.get(f"cold {max(depths)}")
    line |= {"KV in RAM": "-" if cold is None else f"{cold:.0%}"}
    for what in ("decode", "prefill"):
        line |= {f"{what} {depth:,}": row.get(f"{what} {depth}", "-") for depth in depths}
    return line | {"peak MiB": row.get("peak MiB", "-"), "load s": row.get("load s", "-"), "note": row.get("why", "")}


def verdicts(gib: str, rows: dict[str, dict[str, Any]], depths: list[int]) -> Iterator[tuple[bool, str]]:
    """At each depth the plan against the best of llama.cpp's, turn by turn; small batches, which read prompts at half
    the speed, for information.
    """
    for depth in depths:
        key = f"ratio {depth}"
        others = {name: row[key] for name, row in rows.items() if name != PLAN and key in row}
        best = min((name for name in others if name != USUAL), key=others.__getitem__)
        text = f"{gib} GiB, {depth:,} tokens: pagedrun decodes {others[best]:.3f} times as fast as "
        text += f"{name_of(best, rows[best])}, the best of llama.cpp's"
        if USUAL in others:
            text += f", and {others[USUAL]:.3f} times as fast as {name_of(USUAL, rows[USUAL])}"
        yield others[best] >= 1 - TIE, text


def report(args: argparse.Namespace, kept: bench.Kept) -> bool:
    """Write what there is; whether all of it is as it should be."""
    lines, memory, notes, fine = [], [], [], True
    for gib in (f"{g:g}" for g in args.gib):
        if gib not in kept.rows:
            notes.append(f"{gib} GiB: not measured yet")
            fine = False
            continue
        rows, context = kept.rows[gib]["rows"], kept.rows[gib]["context"]
        lines += [shown(gib, name, row, args.depths) for name, row in rows.items()]
        notes.append(f"{gib} GiB: contexts of {context:,} tokens")
        for good, text in verdicts(gib, rows, args.depths):
            notes.append(text + ("" if good else " (slower)"))
            fine &= good
        if "memory" in rows[PLAN]:
            memory.append({"GiB": gib, "": "pagedrun"} | rows[PLAN]["memory"])
            fine &= rows[PLAN]["memory"]["within"] and rows[PLAN]["peak MiB"] <= float(gib) * 1024
    if lines:
        notes += [
            f"{args.model.name}, {args.kv_type}; {args.rounds} turns of {DECODED} tokens each, without sampling, of "
            "which medians are shown; ratios are medians of those turn by turn",
            "pagedrun has the whole size" if args.whole else "pagedrun leaves 512 MiB free, as it does without flags",
            "peak MiB: as the driver says, with a full context; --fit: with the settings of llama-server; "
            "-ncmoe: weights in RAM are pinned",
            kept.note,
        ]
        title = f"The plan against llama.cpp's own placements ({args.name})"
        bench.write(f"plan-{args.name}", title, lines, notes=notes)
    if memory:
        bench.write(f"plan-{args.name}-memory", f"Plans against the driver ({args.name})", memory)
    return fine


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gib", type=float, nargs="+", default=[6, 8, 12])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 32_768, 131_072])
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--report", action="store_true", help="measure nothing, write what was kept")
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    from spill_side import AHEAD

    args.ahead = AHEAD
    if args.child:
        from plan_side import Wish, child

        return child(args.child, Wish(args.model, args.of, args))
    kept = bench.Kept(f"plan-{args.name}")
    if not args.report:
        if not args.cpu:
            from pagedrun import machine
            from pagedrun.planning import EngineConfig, machine_facts

            machine_facts(args.model, EngineConfig(), machine.gpus(), probe=True)  # what it finds is remembered
        ballast = None if args.cpu else Ballast()
        for gib in args.gib:
            began = time.perf_counter()
            kept.row(f"{gib:g}", lambda g=gib: size_of(g, args, ballast))  # type: ignore[misc]
            print(f"{gib:g} GiB: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return 0 if report(args, kept) else 1


if __name__ == "__main__":
    sys.exit(main())
