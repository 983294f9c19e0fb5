"""Damage GGUF files in every way known to hurt readers, and do with each what `pagedrun show` does.

    .venv/bin/python scripts/fuzz_gguf.py [FILES ...] [--runs 10000] [--seed 0]

Each run has to end with the file shown, or refused with a ModelError. A run is a failure that takes more than 5 s of
the processor, raises anything else, or takes more memory than the file is long (and 8 MiB for windows and output): it
is printed with the seed that repeats it, and the exit code is 1. The address space is limited too. A small file with a
bit of everything is damaged in five of six runs; FILES (whose good headers may be large) in the others.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import bench

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from pagedrun.errors import ModelError  # noqa: E402
from tests.gguf_models import write_varied  # noqa: E402
from tests.gguf_mutations import DAMAGE, Base, mutate, show_all, take_apart  # noqa: E402

LIMIT_S = 5
ALLOWANCE = 8 << 20
ADDRESS_SPACE = 2 << 30  # libraries are most of it


class HangError(Exception):
    """A run that did not end in time."""


@dataclass
class Tally:
    """Of one kind of damage. beyond: the most memory that one run took beyond the length of its file, in bytes."""

    ends: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    beyond: int = -sys.maxsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = write_varied(folder / "base.gguf")
        for path in (small, *args.files):
            show_all(path)  # all good ones are shown
        bases = [take_apart(path) for path in (small, *args.files)]
        guard()
        tallies = fuzz(bases, args.runs, args.seed, folder / "m.gguf")
    report(tallies, args.runs, len(args.files))
    sys.exit(any(t.ends["failed"] for t in tallies.values()))


def guard() -> None:
    """A run that hangs is interrupted; one that allocates without bound gets a MemoryError."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {LIMIT_S} s")

    signal.signal(signal.SIGPROF, hang)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def fuzz(bases: list[Base], runs: int, seed: int, path: Path) -> dict[str, Tally]:
    tallies = {kind: Tally() for kind in DAMAGE}
    kinds = list(DAMAGE)
    for number in range(runs):
        rng = random.Random(f"{seed}/{number}")
        kind = kinds[number % len(kinds)]
        large = len(bases) > 1 and number % 6 == 5
        mutate(rng.choice(bases[1:]) if large else bases[0], kind, rng, path)
        one_run(tallies[kind], path, f"--seed {seed}, run {number}, {kind}")
    return tallies


def one_run(tally: Tally, path: Path, name: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        show_all(path)
        end = "shown"
    except ModelError:
        end = "refused"
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        end = "failed"
        print(f"FAILED: {name}: {e!r}", file=sys.stderr)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - began
        beyond = tracemalloc.get_traced_memory()[1] - path.stat().st_size
        tracemalloc.stop()
    if beyond > ALLOWANCE and end != "failed":
        end = "failed"
        print(f"FAILED: {name}: {beyond:,} bytes of memory beyond the file's", file=sys.stderr)
    tally.ends[end] += 1
    tally.slowest, tally.beyond = max(tally.slowest, took), max(tally.beyond, beyond)


def report(tallies: dict[str, Tally], runs: int, files: int) -> None:
    rows: list[dict[str, Any]] = [
        {
            "damage": kind,
            "runs": tally.ends.total(),
            "shown": tally.ends["shown"],
            "refused": tally.ends["refused"],
            "failed": tally.ends["failed"],
            "slowest, ms": tally.slowest * 1e3,
            "memory beyond the file's length, KiB": max(tally.beyond, 0) / 1024,
        }
        for kind, tally in tallies.items()
    ]
    notes = [
        f"{runs:,} runs on damaged copies of a small file with a bit of everything, and of {files} others",
        "times are with tracemalloc on, which is several times slower",
    ]
    bench.write("fuzz-gguf", "`pagedrun show` on damaged GGUF files", rows, notes=notes)


if __name__ == "__main__":
    main()
