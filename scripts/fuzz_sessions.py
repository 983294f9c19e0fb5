"""Kill processes that save sessions, cut their power, fail their disks, and look at what is left.

    .venv/bin/python scripts/fuzz_sessions.py [--runs 500] [--seed 0] [--folder FOLDER] [--gib 1]

So many runs of each kind; what a run is, and what is asked of it, is in tests/session_runs.py. A run that went wrong is
printed with its seed, and the exit code is 1. Then one conversation of --gib is written and read in FOLDER (on the disk
that is to be measured), with checksums, as sessions are: writing ends when all is on the device, reading goes around
the page cache.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import bench
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from pagedrun.sessions import Contents, Session, aligned, save
from pagedrun.sessions.format import digest_of
from tests.session_files import SMALL
from tests.session_runs import KINDS, Run

PAGE = 2 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a temporary folder otherwise")
    parser.add_argument("--gib", type=float, default=1.0, help="of the conversation whose speed is measured")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # damage is what this is about
    began, rows, wrong = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for kind in KINDS:
            runs = fuzz(Path(name), kind, options.runs, options.seed)
            wrong += sum(bool(r.wrong) for r in runs)
            rows.append(row(kind, runs))
        took = time.monotonic() - began
        notes = [
            "right: a reader finds a state that was saved, whole, and none older than the last that its writer called "
            "saved; a clear error leaves the old state; nothing is left over",
            "killed: SIGKILL at a random moment of a process that saves in a loop. two writers: two of them, of one "
            "name. power cut: what was not synced is lost, or comes in any order, in blocks of 512 bytes; 40 moments a "
            "run. fault: an operation fails (disk full, I/O error), or all from it on; then a bit of a page flips",
            f"{took:.0f} s",
            speed(Path(name), options.gib),
            checksums(),
        ]
    bench.write("fuzz-sessions", "Sessions under kills, power cuts and disks that fail", rows, notes=notes)
    return int(wrong > 0)


def fuzz(folder: Path, kind: str, n: int, seed: int) -> list[Run]:
    runs: list[Run] = []
    for number in range(seed, seed + n):
        runs.append(KINDS[kind](folder, number))
        if runs[-1].wrong:
            print(f"seed {number}: {runs[-1]}", file=sys.stderr)
        elif sys.stderr.isatty():
            print(f"\r{kind} {len(runs)}/{n} ", end="", file=sys.stderr)
    return runs


def row(kind: str, runs: list[Run]) -> dict[str, object]:
    ends = Counter(r.outcome for r in runs)
    return {
        "kind": kind,
        "runs": len(runs),
        "right": sum(not r.wrong for r in runs),
        "wrong": sum(bool(r.wrong) for r in runs),
        "ends": ", ".join(f"{count} {end}" for end, count in ends.most_common()),
    }


def speed(folder: Path, gib: float) -> str:
    """GB/s of one conversation in pages of 2 MiB."""
    identity = replace(SMALL, page_bytes=PAGE, row_bytes=2048, n_stripes=1)
    rng = np.random.default_rng(0)
    some = [rng.integers(0, 256, PAGE, dtype=np.uint8) for _ in range(8)]
    n = max(round(gib * 2**30 / PAGE), 8)
    conversation = Contents(identity=identity, tokens=range(n * PAGE // 2048), page=lambda i: some[i % 8])
    path, took = folder / "speed.kv", []
    began = time.perf_counter()
    save(path, conversation)
    took.append(time.perf_counter() - began)
    buffer = aligned(8, PAGE)
    with Session(path, identity) as session:
        began = time.perf_counter()
        for first in range(0, n, 8):
            assert session.read_pages(first, buffer[: n - first]) == min(8, n - first)
        took.append(time.perf_counter() - began)
    path.unlink()
    write, read = (n * PAGE / t / 1e9 for t in took)
    return (
        f"{n * PAGE / 2**30:.3g} GiB in pages of 2 MiB, with checksums: written at {write:.2f} GB/s, read at {read:.2f}"
    )


def checksums() -> str:
    """GB/s of what a page's checksum could be."""
    data = np.random.default_rng(0).integers(0, 256, PAGE, dtype=np.uint8)
    rates = {}
    for name, of in (("crc32", zlib.crc32), ("blake2b", lambda d: digest_of(d.data))):
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5:
            of(data)
            n += 1
        rates[name] = n * PAGE / (time.perf_counter() - began) / 1e9
    return "checksums of a page in memory, GB/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())


if __name__ == "__main__":
    sys.exit(main())
