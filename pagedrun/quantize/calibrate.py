"""An importance matrix of a model over some text, by llama.cpp's llama-imatrix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from pagedrun.errors import ModelError, PagedrunError, UsageError
from pagedrun.native.imatrix import load_imatrix
from pagedrun.quantize import program
from pagedrun.quantize.job import written_aside
from pagedrun.runtime.store import Runtime

PROGRAM = "llama-imatrix"

_CHUNKS = re.compile(r"computing over (\d+) chunks")
_CHUNK = re.compile(r"\[(\d+)\]")
_TOO_SHORT = re.compile(r"tokenizes to only (\d+) tokens")
_NEEDED = re.compile(r"you need at least (\d+) tokens")
_NOT_LOADED = re.compile(r"failed to load model|failed to init|unable to (?:load|allocate)")

OnChunk = Callable[[int, int], None]


def calibrate(runtime: Runtime, model: Path, text: Path, output: Path, *, threads: int, on_chunk: OnChunk) -> None:
    """Write the importance matrix of `model` over the file `text` to `output`, a .gguf.

    on_chunk gets (chunks done, in all), of 512 tokens each. Raises RuntimeLibraryError when the runtime has no
    llama-imatrix, UsageError (the text is too short), ModelError, ModelFileError.
    """
    tool = runtime.program(PROGRAM)
    with written_aside(output) as aside:
        command = [str(tool), "-m", str(model), "-o", str(aside), "--output-format", "gguf", "-t", str(threads)]
        # The text's name alone: where it lies would be written into the matrix, and from there into the model.
        # One chunk at a time: for several the logits of a large vocabulary take gigabytes.
        _run([*command, "-f", text.name, "-b", "512"], text, on_chunk)
        load_imatrix(aside)


def _run(command: list[str], text: Path, on_chunk: OnChunk) -> None:
    # Settings meant for llama-server must not change what is computed here.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    if "OMP_WAIT_POLICY" not in env:
        env.setdefault("GOMP_SPINCOUNT", "1000")  # see pagedrun.native.library
    total = 0

    def on_piece(piece: str) -> None:
        nonlocal total
        if match := _CHUNKS.search(piece):
            total = int(match[1])
        elif total and (match := _CHUNK.match(piece)):
            on_chunk(int(match[1]), total)

    status, tail = program.run(command, cwd=text.absolute().parent, env=env, on_piece=on_piece)
    if status != 0:
        raise _failure(status, tail)


def _failure(status: int, log: str) -> PagedrunError:
    if short := _TOO_SHORT.search(log):
        needed = _NEEDED.search(log)
        return UsageError(
            f"--calibrate: the text has {int(short[1]):,} tokens, and at least {int(needed[1] if needed else 1024):,} "
            "are needed",
            hint="take a longer text: some 100 KB of what the model is to be good at",
        )
    lines = [line for line in log.splitlines() if "error" in line.lower() or "failed" in line.lower()]
    reason = lines[-1].strip() if lines else f"it ended with status {status}"
    if _NOT_LOADED.search(log) or status < 0:
        return ModelError(f"{PROGRAM} could not run the model: {reason}", hint="is there enough memory for the source?")
    return ModelError(f"{PROGRAM} failed: {reason}")
