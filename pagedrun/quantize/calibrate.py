"""An importance matrix of a model over some text, by llama.cpp's llama-imatrix."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from pagedrun.errors import ModelError, ModelFileError, PagedrunError
from pagedrun.native.imatrix import load_imatrix
from pagedrun.quantize import program
from pagedrun.quantize.child import OUT_OF_MEMORY, gave_up
from pagedrun.quantize.job import written_aside
from pagedrun.runtime.store import Runtime

PROGRAM = "llama-imatrix"

_CHUNKS = re.compile(r"computing over (\d+) chunks")
_CHUNK = re.compile(r"\[(\d+)\]")
_NO_MEMORY = re.compile(r"(?:unable|failed) to allocate|out of memory|bad_alloc", re.IGNORECASE)
_NOT_LOADED = re.compile(r"error loading model: (?!llama_model_loader: failed)(?:error loading model \w+: )?(.+)")

OnChunk = Callable[[int, int], None]


def calibrate(
    runtime: Runtime, model: Path, text: Path, output: Path, *, replace: bool, threads: int, on_chunk: OnChunk
) -> None:
    """Write the importance matrix of `model` over the file `text` to `output`, a .gguf.

    The text has been found long enough (`compare.tokens_of`). replace: also where a file is there. on_chunk gets
    (chunks done, in all), of 512 tokens each. Raises RuntimeLibraryError when the runtime has no llama-imatrix,
    UsageError, ModelError, ModelFileError.
    """
    tool = runtime.program(PROGRAM)
    with written_aside(output, replace=replace) as aside:
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
        raise _failure(Path(command[command.index("-m") + 1]).name, status, tail)


def _failure(model: str, status: int, log: str) -> PagedrunError:
    if _NO_MEMORY.search(log):
        return ModelError(f"there is not enough memory to run {model}", hint="close other programs")
    if reasons := _NOT_LOADED.findall(log):
        return ModelFileError(f"{model} cannot be run: {reasons[-1].strip()}", hint="it is not whole: fetch it again")
    if status < 0:
        reason = gave_up(-status, log)
        return ModelError(f"{PROGRAM} on {model}: {reason}", hint=OUT_OF_MEMORY if status == -signal.SIGKILL else "")
    lines = [line for line in log.splitlines() if "error" in line.lower() or "failed" in line.lower()]
    return ModelError(f"{PROGRAM} on {model}: {lines[-1].strip() if lines else f'it ended with status {status}'}")
