"""How long until pagedrun is there: importing it, its help, and the first token from a cold process start.

    .venv/bin/python scripts/bench_startup.py [--rounds 10]

llama.cpp's own completion program stands beside the first token: same library, model (in the page cache) and prompt.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import bench

from pagedrun import hub
from pagedrun.runtime.store import find_runtime

PROMPT = "The capital of France is"


def seconds(command: Sequence[str]) -> float:
    """Until the first byte on stdout, or the end of a command that prints nothing."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        took = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    model = str(hub.fetch_default_model())
    python = sys.executable
    llama = str(find_runtime().bin / "llama-completion")
    commands = {
        'python -c "import pagedrun"': [python, "-c", "import pagedrun"],
        "pagedrun --help": [python, "-m", "pagedrun", "--help"],
        "pagedrun complete, first token": [
            python, "-m", "pagedrun", "complete", "--raw", "-m", model, "-n", "8", "--temp", "0", PROMPT,
        ],
        "llama-completion, first token": [
            llama, "-m", model, "-no-cnv", "--no-display-prompt", "-n", "8", "--temp", "0", "-p", PROMPT,
        ],
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(seconds(command))
    rows = [
        {"command": n, "median ms": statistics.median(t) * 1e3, "slowest ms": max(t) * 1e3} for n, t in times.items()
    ]
    bench.write("startup", "Start-up", rows, notes=[f"{rounds} rounds in turn"])


if __name__ == "__main__":
    main()
