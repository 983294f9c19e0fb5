"""A command that a server answers takes nothing of the GPU that the server has. Run by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagedrun import machine
from tests.live_server import live_server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("cuda_runtime"),
]

MIB = 1 << 20
CONTEXT = 128 * MIB  # less than what CUDA takes for a process that uses the GPU
ROOT = Path(__file__).parents[1]


@contextmanager
def watched() -> Iterator[list[int]]:
    """The VRAM in use, again and again."""
    ended, seen = threading.Event(), list[int]()

    def look() -> None:
        while not ended.is_set():
            gpu = machine.gpus()[0]
            seen.append(gpu.vram - gpu.vram_free)
            ended.wait(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def completed(model: Path, folder: Path, *more: str) -> bytes:
    """The answer of `complete`."""
    command = [sys.executable, "-m", "pagedrun", "complete", "-m", str(model), "--max-seq-len", "1024"]
    command += [*more, "--raw", "-n", "16", "--temperature", "0", "one two"]
    environment = {**os.environ, "PAGEDRUN_STATE": str(folder / "state")}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def test_who_asks_a_server_leaves_the_gpu_alone(tiny_hybrid: Path, tmp_path: Path) -> None:
    args = (str(tiny_hybrid), "--max-seq-len", "1024", "--gpu-memory", "4GiB")
    with live_server(tmp_path, *args) as live:
        said = completed(tiny_hybrid, tmp_path, "--server", live.url)  # what the server keeps came with the first
        with watched() as seen:
            assert completed(tiny_hybrid, tmp_path, "--server", live.url) == said
        assert len(seen) > 10 and max(seen) - seen[0] < CONTEXT
        with watched() as seen:
            assert completed(tiny_hybrid, tmp_path, "--no-server", "--gpu-memory", "4GiB") == said
        assert max(seen) - seen[0] > CONTEXT, "this is seen where it is so"
        assert live.stop() == 0, live.log
