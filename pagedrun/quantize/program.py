"""Another program as a child: its output piece by piece as it comes, and its end with ours.

A child has a process group of its own, which is killed as a whole. An abort in llama.cpp must not start a debugger:
with two threads that abort at once, that one never ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_TAIL = 400

#: What every child of llama.cpp's gets beside its environment.
QUIET_ABORT = {"GGML_NO_BACKTRACE": "1"}

# Becomes the program, which the system then ends with us, however we end (PR_SET_PDEATHSIG, SIGKILL).
_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"

# Lines; bars that are drawn over with carriage returns; and llama-imatrix's "[1]10.2,[2]9.8,", which grows a line.
_ENDS = re.compile(rb"[\r\n]+|(?<=\d,)(?=\[)|(?<=\d,)$")


def run(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], on_piece: Callable[[str], None]
) -> tuple[int, str]:
    """Run `command`, a path and its arguments, without input.

    Returns its exit status and the end of its output, both streams together.
    """
    tail: deque[str] = deque(maxlen=_TAIL)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _WITH_US, *command],
        cwd=cwd,
        env={**env, **QUIET_ABORT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as child:
        try:
            assert child.stdout is not None
            for piece in _pieces(child.stdout):
                tail.append(piece)
                on_piece(piece)
            return child.wait(), "\n".join(tail)
        finally:
            kill_group(child)


def kill_group(child: subprocess.Popen[Any]) -> None:
    """End a child that was started with `start_new_session`, and all that it started."""
    # What it started may have outlived it: so also when it has ended.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    pending = b""
    while block := os.read(stream.fileno(), 1 << 16):
        *whole, pending = _ENDS.split(pending + block)
        yield from (piece.decode("utf-8", "replace") for piece in whole if piece)
    if pending:
        yield pending.decode("utf-8", "replace")
