"""Kill an engine while it saves conversations, and look whether anything wrong is ever served from what is left.

    .venv/bin/python scripts/kill_sessions.py [MODEL.gguf ...] [--kills 500] [--faults 50] [--name cpu]

A process loads a model, goes on with three named sessions and any number of automatic entries, and saves them while it
answers; it is killed with SIGKILL at a random moment, a third of the times just after a save began. Then, every time:
each named file must be whole, and not older than what its writer was told is saved. The next process restores every
file that is new, answers from it, and answers again with everything computed anew. It computes one token at a time, so
that roundings are the same both ways: tokens, and the log probabilities of the likeliest at each place, must be equal
to the bit. And so that this means something, one page gets the contents of another: the differences that this makes
are in the notes.

Faults: a disk that is full in the middle of a save; a page flipped; a file truncated, of another version, of another
model. What is asked is the same: that answers are right, and that sessions that are refused say why.

Without MODEL: SmolLM2, and a tiny model with recurrent layers, in turns. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
from kill_side import NAMES, Engine
from session_faults import faults

WRONG_PAGES = 12
_IN_SAVE_S = 0.1
_SIDE = Path(__file__).with_name("kill_side.py")


def kill(model: Path, folder: Path, seed: int, longest_s: float) -> dict[str, Any]:
    """One process from its start to its end; what it found, and what is wrong."""
    command = [sys.executable, str(_SIDE), "--seed", str(seed), "--folder", str(folder), str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    until = random.Random(-seed).choice(("ready", "saving", "saved"))
    for line in process.stdout:
        lines.append(json.loads(line))
        if until in lines[-1]:
            break
    time.sleep(random.Random(seed).uniform(0, _IN_SAVE_S if until == "saving" else longest_s))
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    lines += [json.loads(line) for line in rest.split("\n")[:-1] if line]
    wrong = [] if any("ready" in line for line in lines) else ["it did not start"]
    last = {line["saved"]: line["number"] for line in lines if "saved" in line}
    wrong += [w for name in NAMES if (w := wrong_with(folder / "named" / f"{name}.kv", last.get(name, -1)))]
    wrong += [f"{line['failed']}: {line['why']}" for line in lines if "failed" in line]
    return {"lines": lines, "wrong": wrong, "saves": sum("saved" in line for line in lines)}


def wrong_with(path: Path, at_least: int) -> str:
    """What is wrong with a named file of which the save of that number was done; "" for nothing."""
    from pagedrun.errors import SessionError, SessionNotFoundError
    from pagedrun.sessions import Session

    try:
        with Session(path) as session:
            if not session.check().whole:
                return f"{path.name} is damaged"
            number = int(session.meta.note)
            return f"{path.name} has save {number}, and {at_least} was done" if number < at_least else ""
    except SessionNotFoundError:
        return f"{path.name} is gone" if at_least >= 0 else ""
    except SessionError as e:
        return e.message


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--faults", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--seconds", type=float, default=1e9, help="no kills after so long")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds until the kill, at most")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a temporary folder otherwise")
    parser.add_argument("--name", default="cpu")
    args = parser.parse_args()
    began, rows, wrong = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        models = args.models or default_models(Path(name))
        of_wrong = []
        for i, model in enumerate(models):
            engine = Engine(model, Path(name) / f"wrong-{i}")
            engine.keeper.automatic = False
            wrong_page = engine.of_wrong_pages(WRONG_PAGES)
            engine.service.close()
            wrong += sum(not d for d in wrong_page)
            of_wrong.append(f"{min(wrong_page):.3g} to {max(wrong_page):.3g}")
            seeds = range(i, args.kills, len(models))
            row, bad = kills(model, Path(name) / str(i), args, seeds)
            rows.append(row)
            wrong += bad
        for kind, ends, problems in faults(models, Path(name), args.faults):
            wrong += len(problems)
            print(*problems, sep="\n", file=sys.stderr)
            rows.append({
                "": kind, "model": "in turns", "runs": args.faults, "saves done": "-", "files verified": args.faults,
                "tokens restored": "-", "largest difference": "-", "wrong": len(problems),
                "ends": ", ".join(f"{n} {end}" for end, n in ends.most_common()),
            })  # fmt: skip
    notes = [
        "wrong: a named session is damaged, or older than what its writer was told is saved; or an answer from a file "
        "differs from one with all computed, in a token or the log probability of a likely one",
        f"the differences that a wrong page made, in {WRONG_PAGES} tries (1e+09: other tokens): " + "; ".join(of_wrong),
        f"{time.monotonic() - began:.0f} s; killed within {_IN_SAVE_S} s of the beginning of a save, or within "
        f"{args.longest} s of the end of one or of being ready",
    ]
    bench.write(f"kill-sessions-{args.name}", "Sessions of a killed engine", rows, notes=notes)
    return int(wrong > 0)


def kills(model: Path, folder: Path, args: argparse.Namespace, seeds: range) -> tuple[dict[str, Any], int]:
    """All kills of one model; its row, and how many were wrong."""
    saves = verified = restored = wrong = 0
    largest = 0.0
    end = time.monotonic() + args.seconds / max(len(args.models), 2)
    done = 0
    for seed in seeds:
        if time.monotonic() > end:
            break
        done += 1
        found = kill(model, folder, args.seed + seed, args.longest)
        for line in (line for line in found["lines"] if "verified" in line):
            verified += 1
            restored += line["restored"]
            largest = max(largest, line["difference"])
            if line["difference"]:
                found["wrong"].append(f"{line}")
        saves += found["saves"]
        wrong += bool(found["wrong"])
        for what in found["wrong"]:
            print(f"seed {args.seed + seed}: {what}", file=sys.stderr, flush=True)
        if done % 25 == 0:
            print(
                f"{model.name}: {done} of {len(seeds)}, {saves} saves, {verified} verified, {wrong} wrong",
                file=sys.stderr,
            )
    row = {"": "killed", "model": model.name, "runs": done, "saves done": saves, "files verified": verified}
    row |= {"tokens restored": restored, "largest difference": largest, "wrong": wrong}
    return row | {"ends": f"{done} killed"}, wrong


def default_models(folder: Path) -> list[Path]:
    """SmolLM2, and one with recurrent layers."""
    from pagedrun import hub
    from pagedrun.catalog import load_catalog

    tiny = folder / "tiny-qwen35moe.gguf"
    script = Path(__file__).with_name("random_model.py")
    subprocess.run([sys.executable, str(script), str(tiny), "--tiny"], check=True, capture_output=True)
    return [hub.locate(load_catalog().default).path, tiny]


if __name__ == "__main__":
    sys.exit(main())
