"""Ten thousand mutated requests on all routes, against a live server with a real model: none is a defect.

    python scripts/fuzz_server.py                                 SmolLM2, on the CPU
    python scripts/fuzz_server.py SmolLM2.gguf tiny.gguf --requests 10000

Four are sent at a time (tests/server_mutations.py makes them), and a valid one after each hundred, which has to be
answered. Whatever is wrong is named by its seed: `mutated(Random(seed))` is the request.

Some of them unload the model, and the next one has it loaded again.

Exit code 1: a status of 500, or another one that means nothing here; 429 or 503 without Retry-After; an error without a
message, or within a stream that is not the client's; a valid request that is not answered; a POST route that nothing
was sent to; tasks, requests or pages left; memory without pages grew by more than 16 MiB after the first third.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import arguments
import bench

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.server_fuzz_runs import Fuzzed, fuzz
from tests.soak_runs import MIB

ALLOWED = 16 * MIB


def rows(model: Path, n: int, seed: int) -> tuple[list[dict[str, Any]], list[str]]:
    """One for each route; and what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(model, Path(folder), n, seed, lambda text: print(text, file=sys.stderr, flush=True))
    bad = found.wrong + [f"nothing was sent to {path}" for path in sorted(found.missing)]
    bad += [f"memory grew by {found.grown / MIB:.0f} MiB"] if found.grown > ALLOWED else []
    for what in bad:
        print(what, file=sys.stderr)
    made = [row(model.name, path, counter) for path, counter in sorted(found.statuses.items())]
    return [*made, row(model.name, "all", sum(found.statuses.values(), Counter())) | {"wrong": len(bad)}], notes(found)


def row(model: str, path: str, statuses: Counter[int]) -> dict[str, Any]:
    others = sum(n for status, n in statuses.items() if status not in (200, 400, 404))
    return {
        "model": model,
        "route": path,
        "sent": statuses.total(),
        **{str(status): statuses[status] for status in (200, 400, 404)},
        "other": others,
        "wrong": "",
    }


def notes(found: Fuzzed) -> list[str]:
    return [
        f"{found.served} valid requests in between, all answered"
        if not found.wrong
        else "wrong: " + "; ".join(found.wrong[:5]),
        f"MiB of the server without pages: {found.before / MIB:.0f} before, "
        + " and ".join(f"{n / MIB:.0f}" for n in found.left)
        + " after a third and at the end",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="server")
    args = parser.parse_args()
    table: list[dict[str, Any]] = []
    said = [f"{args.requests:,} requests to each model, the first with seed {args.seed}"]
    for model in arguments.models(args):
        more, told = rows(model, args.requests, args.seed)
        table += more
        said += [f"{model.name}: {line}" for line in told]
    bench.write(f"fuzz-{args.name}", "Mutated requests to a live server", table, notes=said)
    return int(any(found["wrong"] for found in table))


if __name__ == "__main__":
    sys.exit(main())
