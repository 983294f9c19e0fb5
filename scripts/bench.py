"""What every benchmark script shares: facts of the machine, medians, and a result written as JSON and as a table."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

import pagedrun.machine

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The facts that a figure means nothing without."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "")
    facts = {
        "cpu": cpu,
        "cores": psutil.cpu_count(logical=False),
        "ram_gib": round(psutil.virtual_memory().total / 2**30),
    }
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        facts["gpu"] = "; ".join(lines)
    except (OSError, subprocess.CalledProcessError):
        facts["gpu"] = ""
    return facts | {"kernel": platform.release(), "python": platform.python_version()}


def in_use(*, gpu: bool) -> int:
    """Bytes in use by anybody on the GPUs that CUDA sees, as their driver says; without `gpu`, of RAM: what this
    process has of its own, and all that is shared. RuntimeError where CUDA sees none."""
    if gpu:
        seen = pagedrun.machine.gpus()
        if not seen:
            raise RuntimeError("CUDA sees no GPU")
        return sum(one.vram - one.vram_free for one in seen)
    own, shared = (_kib(path, name) for path, name in (("self/status", "RssAnon"), ("meminfo", "Shmem")))
    return (own + shared) << 10


def own_ram() -> int:
    """Bytes of RAM that belong to this process alone: no file has them."""
    return _kib("self/status", "RssAnon") << 10


def _kib(path: str, name: str) -> int:
    lines = (Path("/proc") / path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class Kept:
    """Rows that were measured already, in results/NAME.rows.json: a further run goes on with the next."""

    def __init__(self, name: str) -> None:
        self._file = RESULTS / f"{name}.rows.json"
        self.rows: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def row(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of that name, measured unless it is there."""
        if key not in self.rows:
            began = time.perf_counter()
            self.rows[key] = measure() | {"at": _now()}
            RESULTS.mkdir(exist_ok=True)
            self._file.write_text(json.dumps(self.rows, indent=1) + "\n")
            print(f"{key} ({time.perf_counter() - began:.0f} s): {self.rows[key]}", file=sys.stderr, flush=True)
        return self.rows[key]

    def shown(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The same, without when it was measured."""
        return {name: value for name, value in self.row(key, measure).items() if name != "at"}

    @property
    def note(self) -> str:
        """When all of it was measured."""
        times = sorted(str(row.get("at", "")) for row in self.rows.values())
        return f"measured from {times[0]} to {times[-1]}" if times and times[0] != times[-1] else ""


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def write(name: str, title: str, rows: list[dict[str, Any]], *, notes: Sequence[str] = (), **more: Any) -> None:
    """Write `results/NAME.json` and `results/NAME.md`, and print the table."""
    RESULTS.mkdir(exist_ok=True)
    date = _now()
    command = shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *(_neutral(a) for a in sys.argv[1:])])
    facts = machine()
    record = {
        "title": title,
        "date": date,
        "command": command,
        "machine": facts,
        "rows": rows,
        "notes": [note for note in notes if note],
        **more,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    where = ", ".join(
        str(v) for v in (facts["cpu"], f"{facts['cores']} cores", f"{facts['ram_gib']} GiB", facts["gpu"]) if v
    )
    lines = [
        f"# {title}",
        "",
        f"{date}; {where}; `{command}`",
        "",
        *table(rows),
        "",
        *(f"- {note}" for note in notes if note),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as a Markdown table."""
    columns = list(rows[0])
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(_cell(row[c]) for c in columns) + " |" for row in rows),
    ]


def _cell(value: Any) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 10
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def _neutral(argument: str) -> str:
    """Paths of this machine do not belong into a result: only the file's name is kept."""
    return Path(argument).name if "/" in argument else argument
