"""Another program as a child: its output piece by piece as it comes, and its end with ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_TAIL = 400

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
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as child:
        try:
            assert child.stdout is not None
            for piece in _pieces(child.stdout):
                tail.append(piece)
                on_piece(piece)
            return child.wait(), "\n".join(tail)
        finally:
            child.kill()


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    pending = b""
    while block := os.read(stream.fileno(), 1 << 16):
        *whole, pending = _ENDS.split(pending + block)
        yield from (piece.decode("utf-8", "replace") for piece in whole if piece)
    if pending:
        yield pending.decode("utf-8", "replace")
