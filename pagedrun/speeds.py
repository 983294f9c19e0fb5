"""How fast this machine's memories are: measured once, in about two seconds, and remembered in the cache folder.

machine.json   {"ram": bytes a second, "disk": {device: ...}, "gpu": {"NAME, DRIVER": {"pcie", "vram", "cuda"}}}
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedrun.machine import Gpu, driver_version
from pagedrun.paths import cache_dir
from pagedrun.plan.machine import MachineFacts

_PIECE = 64 << 20
_MOST_THREADS = 16
_DISK_BYTES = 256 << 20
_SECONDS = 60


def remembered(file: Path | None = None) -> dict[str, Any]:
    """What was measured on this machine; empty where nothing was."""
    with suppress(OSError, ValueError):
        found = json.loads((file or _file()).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def measure(known: Mapping[str, Any], gpu: Gpu | None, threads: int, path: Path) -> dict[str, Any]:
    """`known` with what was missing in it, written to the cache folder as far as that can be done.

    path: a file whose disk is meant.
    """
    found = {"disk": {}, "gpu": {}} | dict(known)
    if "ram" not in found:
        found["ram"] = ram_rate(threads)
    device = str(path.stat().st_dev)
    if device not in found["disk"] and (rate := disk_rate(path)):
        found["disk"] = found["disk"] | {device: rate}
    if gpu is not None and _key(gpu) not in found["gpu"] and (figures := _gpu_figures()):
        found["gpu"] = found["gpu"] | {_key(gpu): figures}
    if found != known:
        with suppress(OSError):
            remember(found)
    return found


def remember(found: Mapping[str, Any], file: Path | None = None) -> None:
    """Write it, all at once."""
    target = file or _file()
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{os.getpid()}")
    aside.write_text(json.dumps(found, indent=1))
    aside.replace(target)


def apply(facts: MachineFacts, found: Mapping[str, Any], gpu: Gpu | None, path: Path) -> MachineFacts:
    """The facts with what was measured in place of what is assumed."""
    figures = found.get("gpu", {}).get(_key(gpu), {}) if gpu is not None else {}
    measured: dict[str, float] = {name: figures[name] for name in ("pcie", "vram") if name in figures}
    if "ram" in found:
        measured["ram"] = found["ram"]
    if rate := found.get("disk", {}).get(str(path.stat().st_dev)):
        measured["disk"] = rate
    speeds = replace(facts.speeds, **measured, measured=frozenset(measured))
    return replace(facts, speeds=speeds, cuda=int(figures.get("cuda") or facts.cuda))


def ram_rate(threads: int) -> float:
    """Bytes a second that so many threads read together."""
    import numpy as np

    n = max(min(threads, _MOST_THREADS), 1)
    data = [np.ones(_PIECE // 8, np.uint64) for _ in range(n)]

    def read(piece: Any) -> None:
        for _ in range(4):
            piece.max()

    with ThreadPoolExecutor(n) as pool:
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            list(pool.map(read, data))
            best = min(best, time.perf_counter() - began)
    return 4 * n * _PIECE / best


def disk_rate(path: Path) -> float:
    """Bytes a second of reading the file past the cache; 0 where that cannot be done."""
    piece = 8 << 20
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return 0.0
    try:
        with mmap.mmap(-1, piece) as buffer:
            began, done = time.perf_counter(), 0
            while done < min(_DISK_BYTES, path.stat().st_size - piece):
                done += os.preadv(file, [buffer], done)
            return done / (time.perf_counter() - began)
    except OSError:
        return 0.0
    finally:
        os.close(file)


def _gpu_figures() -> dict[str, float]:
    program = [sys.executable, "-m", "pagedrun.native.probe"]
    try:
        ran = subprocess.run(program, capture_output=True, timeout=_SECONDS, check=True, text=True)
        figures: dict[str, float] = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return figures


def _key(gpu: Gpu) -> str:
    return f"{gpu.name}, {driver_version() or '?'}"


def _file() -> Path:
    return cache_dir() / "machine.json"
