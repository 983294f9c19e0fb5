"""pagedrun's plan against what llama.cpp does by itself, and against placements by hand, in 6, 8 and 12 GiB of VRAM.

    python scripts/bench_plan.py 35b.gguf --name 35b [--gib 6 8 12] [--depths 0 32768 131072] [--seconds 100]
    python scripts/bench_plan.py tiny.gguf --cpu --depths 0 4096 --gib 6 --name tiny          to try the script

Each candidate is a process of its own in what scripts/vram_ballast.py leaves; plan_side.py says what they are. Depth is
written, not computed. The deepest context is full: it ends with the tokens that are measured.

--seconds    for each size: a candidate is only begun while there is time. What was measured is kept in
             results/plan-NAME.rows.json, and a further run goes on with the next
Passes (exit 0) if everything was measured, plans stay inside their size and take what was predicted, and at each depth
they decode as fast as the best of llama.cpp's with a context as long, ties being within 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench

TIE = 0.02
NO_ROOM = 3  # exit code of a candidate that does not fit
NEEDED = 25.0  # seconds that a candidate is not begun without
MOST = 120.0  # seconds that one may take
OUT_OF_MEMORY = ("out of memory", "failed to allocate", "unable to allocate", "cudaMalloc failed")
TWIN = "twin"  # llama.cpp over the weights that a plan placed
HERE = Path(__file__).parent


class NotDoneError(Exception):
    """A candidate has no row to be kept."""


def candidates(depths: list[int], rows: Callable[[], dict[str, dict[str, Any]]]) -> Iterator[str]:
    """The important ones first. rows: what was measured until then, as some depend on others."""
    shallow, *between, deep = sorted(depths)
    yield "plan"
    plan = rows().get("plan", {})
    if "experts" in plan:  # there was time for the plan, and it did not fail
        layers, most = plan["experts"], plan["layers"]
        around = (layers - 2, layers + 2 if layers + 2 <= most else layers - 1)
        yield from (f"ncmoe:{n}" for n in (*(() if TWIN in rows() else (layers,)), *around) if n >= 0)
    yield f"fit:{deep}"
    yield f"plan:{least(shallow)}"
    yield f"fit:{least(shallow)}"
    yield from (f"fit:{depth}" for depth in between)


def least(depth: int) -> int:
    """The context that somebody asks for who wants so many tokens: 4,096 at least, as llama.cpp's fitting does."""
    return max(depth, 4096)


def of_size(kept: bench.Kept, gib: str) -> dict[str, dict[str, Any]]:
    """The rows of one size, by candidate; what a plan's process measured of llama.cpp is a row too."""
    rows: dict[str, dict[str, Any]] = {}
    for key, row in kept.rows.items():
        size, _, candidate = key.partition(" ")
        if size != gib:
            continue
        rows[candidate] = row
        if "twin" in row:
            rows[candidate.replace("plan", TWIN)] = row["twin"] | {"experts": row["experts"]}
    return rows


@dataclass
class Size:
    """What is measured within one size. deadline: on the monotonic clock."""

    gib: str
    args: argparse.Namespace
    kept: bench.Kept
    deadline: float

    def measure(self) -> None:
        """All candidates, as far as there is time; the important ones first."""
        for candidate in candidates(self.args.depths, lambda: of_size(self.kept, self.gib)):
            key = f"{self.gib} {candidate}"
            try:
                self.kept.row(key, lambda c=candidate: self._run(c))  # type: ignore[misc]
            except NotDoneError as e:
                print(f"{key}: {e}", file=sys.stderr, flush=True)

    def _run(self, candidate: str) -> dict[str, Any]:
        left = self.deadline - time.monotonic()
        if left < NEEDED:
            raise NotDoneError("no time left")
        args, began = self.args, time.perf_counter()
        command = [
            sys.executable, str(HERE / "bench_plan.py"), str(args.model), "--child", candidate,
            "--kv-type", args.kv_type, "--depths", *map(str, args.depths), "--rounds", str(args.rounds),
            "--threads", str(args.threads), *(["--cpu"] if args.cpu else []), *(["--whole"] if args.whole else []),
            *([] if args.twin else ["--no-twin"]),
        ]  # fmt: skip
        found, code, errors = start(command, min(left, MOST))
        row = found | {"seconds": time.perf_counter() - began}
        if code not in (0, NO_ROOM):
            if not any(text in errors for text in OUT_OF_MEMORY):
                raise NotDoneError(f"exit code {code}: {errors[-2000:]}")
            row |= {"why": "does not fit: memory ran out"}
        return row


def start(command: list[str], seconds: float) -> tuple[dict[str, Any], int, str]:
    """Run a child: what it found, its exit code, what it wrote to stderr. One that takes too long is killed: -9."""
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}  # a debugger that is started to print one may wait for ever
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=out, stderr=errors, env=environment) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        out.seek(0)
        errors.seek(0)
        found: dict[str, Any] = {}
        for line in out:
            if line.startswith("{") and line.endswith("\n"):
                found |= json.loads(line)
        text = errors.read()
    return found, process.returncode, f"{text}\nfound until then: {found}"


def within(args: argparse.Namespace) -> None:
    """The process that measures one size, in what the ballast left."""
    (gib,) = args.gib
    kept = bench.Kept(f"plan-{args.name}")
    Size(f"{gib:g}", args, kept, time.monotonic() + args.seconds).measure()


def name_of(candidate: str, row: dict[str, Any]) -> str:
    """As the table says it."""
    kind, _, number = candidate.partition(":")
    if kind == "plan":
        return "pagedrun" + (f", --max-seq-len {int(number):,}" if number else "")
    if kind == "fit":
        return f"llama.cpp, --fit for {int(number):,} tokens"
    if kind == TWIN:
        return f"llama.cpp, -ncmoe {row['experts']}, as planned, in turn with it"
    return f"llama.cpp, -ncmoe {row.get('experts', number)}" + (", the fewest" if kind == "tuned" else "")


def shown(gib: str, candidate: str, row: dict[str, Any], depths: list[int]) -> dict[str, Any]:
    """One line of the table."""
    line: dict[str, Any] = {"GiB": gib, "": name_of(candidate, row), "experts in RAM": row.get("experts", "-")}
    line |= {"context": f"{row['context']:,}" if "context" in row else "-"}
    cold = row.get(f"cold {max(depths)}")
    line |= {"KV in RAM": "-" if cold is None else f"{cold:.0%}"}
    for what in ("decode", "prefill"):
        line |= {f"{what} {depth:,}": row.get(f"{what} {depth}", "-") for depth in depths}
    return line | {"peak MiB": row.get("peak MiB", "-"), "load s": row.get("load s", "-"), "note": row.get("why", "")}


def verdicts(gib: str, rows: dict[str, dict[str, Any]], depths: list[int]) -> Iterator[tuple[bool, str]]:
    """At each depth a plan against the best of llama.cpp's whose context is as long."""
    for candidate in (c for c in rows if c.startswith("plan") and "context" in rows[c]):
        plan = rows[candidate]
        others = {
            c: r for c, r in rows.items() if not c.startswith("plan") and r.get("context", 0) >= plan["context"] - 256
        }
        for depth in depths:
            key = f"decode {depth}"
            best = max((c for c in others if key in others[c]), key=lambda c: others[c][key], default=None)
            if best is None or key not in plan:
                continue
            ratio = plan[key] / others[best][key]
            text = f"{gib} GiB, {depth:,} tokens: {name_of(candidate, plan)} decodes {ratio:.3f} times as fast"
            yield ratio >= 1 - TIE, f"{text} as {name_of(best, others[best])}, the best of llama.cpp's of that context"


def report(args: argparse.Namespace, kept: bench.Kept) -> bool:
    """Write what there is; whether all of it is as it should be."""
    lines, memory, notes, fine = [], [], [], True
    for gib in (f"{g:g}" for g in args.gib):
        rows = of_size(kept, gib)
        lines += [shown(gib, candidate, row, args.depths) for candidate, row in rows.items()]
        for good, text in verdicts(gib, rows, args.depths):
            notes.append(text + ("" if good else " (slower)"))
            fine &= good
        for candidate in (c for c in rows if "memory" in rows[c]):
            memory.append({"GiB": gib, "": name_of(candidate, rows[candidate])} | rows[candidate]["memory"])
            fine &= rows[candidate]["memory"]["within"] and rows[candidate]["peak MiB"] <= float(gib) * 1024
        missing = [c for c in candidates(args.depths, lambda rows=rows: rows) if c not in rows]  # type: ignore[misc]
        notes += [f"{gib} GiB: not measured yet: {', '.join(missing)}"] if missing else []
        fine &= not missing
    if lines:
        notes += [
            f"{args.model.name}, {args.kv_type}; the deepest context is full: it ends with what is measured",
            f"medians of {args.rounds} (plans and what is in turn with them: of {2 * args.rounds}): 32 tokens decoded, "
            "without sampling; 2,048 read",
            "pagedrun has the whole size" if args.whole else "pagedrun leaves 512 MiB free, as it does without flags",
            "KV in RAM: of the deepest context, read from there in every step",
            "peak MiB: of the driver's figures, after each measurement; --fit: with the settings of llama-server; "
            "-ncmoe: weights in RAM are pinned, and the context is as long as fits",
            kept.note,
        ]
        bench.write(
            f"plan-{args.name}", f"The plan against llama.cpp's own placements ({args.name})", lines, notes=notes
        )
    if memory:
        bench.write(f"plan-{args.name}-memory", f"Plans against the driver ({args.name})", memory)
    return fine


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gib", type=float, nargs="+", default=[6, 8, 12])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 32_768, 131_072], help="at least two")
    parser.add_argument("--seconds", type=float, default=600, help="for each size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument(
        "--whole", action="store_true", help="gpu_memory is the whole size; else pagedrun leaves 512 MiB"
    )
    parser.add_argument("--no-twin", dest="twin", action="store_false", help="llama.cpp in processes of its own only")
    parser.add_argument("--report", action="store_true", help="measure nothing, write what was kept")
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.child:
        from plan_side import Wish, child

        return child(args.child, Wish(args.model, tuple(sorted(args.depths)), args))
    if args.within:
        within(args)
        return 0
    for gib in () if args.report else args.gib:
        ballast = [] if args.cpu else [sys.executable, str(HERE / "vram_ballast.py"), f"{gib:g}", "--"]
        command = [sys.executable, __file__, *sys.argv[1:], "--gib", f"{gib:g}", "--within"]  # the last --gib counts
        subprocess.run([*ballast, *command], check=False)
    return 0 if report(args, bench.Kept(f"plan-{args.name}")) else 1


if __name__ == "__main__":
    sys.exit(main())
