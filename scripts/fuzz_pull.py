"""Pull models from a hub that lies, drops connections and breaks, and see that each pull ends well.

    .venv/bin/python scripts/fuzz_pull.py [--runs 500] [--seed 0]

What a run is, and what is asked of it, is in tests/pull_runs.py. A run that went wrong is printed with its seed, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import bench

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.fake_hub import running
from tests.pull_runs import KINDS, Lab, Run

_NAMES = re.compile(r"\S*(?:127\.0\.0\.1|localhost):\d+\S*|hf:\S+|me/M-GGUF|\S+\.gguf|\b\d[\d,.]*\b|[0-9a-f]{64}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    options = parser.parse_args()
    began = time.monotonic()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as root, running() as hub:
        lab = Lab(hub, Path(root))
        for seed in range(options.seed, options.seed + options.runs):
            runs.append(lab.run(seed))
            if runs[-1].wrong:
                print(f"seed {seed}: {runs[-1]}", file=sys.stderr)
            elif sys.stderr.isatty():
                print(f"\r{len(runs)}/{options.runs}", end="", file=sys.stderr)
    rows = [row(kind, [r for r in runs if r.kind == kind]) for kind in KINDS] + [row("all", runs)]
    errors = Counter(problem(r) for r in runs if r.ends[-1].code)
    faults = Counter(f.rpartition(" ×")[0] for r in runs for f in r.faults)
    notes = [
        "right: the file has the right bytes under its name, and nothing else is left; clear error: error and hint, no "
        "file, and a pull without faults afterwards brought the right one",
        f"{sum(faults.values())} faults of {len(faults)} kinds; {time.monotonic() - began:.0f} s",
        *(f"{count} × {message}" for message, count in errors.most_common()),
    ]
    title = "`pagedrun pull` from a hub with faults"
    bench.write("fuzz-pull", title, rows, notes=notes, faults=dict(faults.most_common()))
    return int(any(r.wrong for r in runs))


def row(kind: str, runs: list[Run]) -> dict[str, object]:
    return {
        "pull": kind,
        "runs": len(runs),
        "right file": sum(r.outcome == "right file" and not r.wrong for r in runs),
        "clear error": sum(r.outcome == "clear error" and not r.wrong for r in runs),
        "wrong": sum(bool(r.wrong) for r in runs),
        "resumed": sum(r.resumed for r in runs),
    }


def problem(run: Run) -> str:
    """The error's line without what differs from run to run."""
    line = next((li for li in run.ends[-1].err.splitlines() if li.startswith("error: ")), "no error")
    return _NAMES.sub("…", line.removeprefix("error: "))


if __name__ == "__main__":
    sys.exit(main())
