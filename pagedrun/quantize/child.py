"""Runs `pagedrun.native.quantizer` in a process of its own, and turns its events into progress, results and errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from pagedrun.errors import DiskFullError, ModelError, ModelFileError, PagedrunError, UsageError
from pagedrun.native.quantizer import PROGRAM, Plan, Task
from pagedrun.quantize.program import QUIET_ABORT, kill_group

#: (number of the tensor begun, how many there are, its name)
OnTensor = Callable[[int, int, str], None]

_KILLED = "it was killed"
#: What may be done about a child that was killed.
OUT_OF_MEMORY = "if it was not you: the system does so when memory runs out; close other programs"

# What llama.cpp says -> what we say. The first that matches is used.
_FAILURES: tuple[tuple[str, type[PagedrunError], str, str], ...] = (
    (
        r"unknown model architecture: '([^']*)'",
        ModelFileError,
        "its architecture {0!r} is not known to this llama.cpp",
        "newer models need a newer pagedrun",
    ),
    (
        r"not within the file bounds|failed to read|end of file|invalid magic|tensor .* has invalid|corrupted",
        ModelFileError,
        "it is truncated or damaged",
        "fetch it again, and compare its size and sha256",
    ),
    (
        r"validation failed",
        ModelFileError,
        "it holds weights that are not finite numbers",
        "it is damaged, or the conversion was: fetch or convert it again",
    ),
    (
        r"imatrix size (\d+) is different from tensor size (\d+) for (\S+)",
        UsageError,
        "the importance matrix belongs to another model: {0} values for {2}, which needs {1}",
        "make one for this model with --calibrate TEXT",
    ),
    (
        r"Missing importance matrix for tensor (\S+)",
        UsageError,
        "the importance matrix has nothing for {0}",
        "calibrate with more text, or choose a type with more bits",
    ),
    (
        r"no tensor type fallback is defined for type (\w+)",
        UsageError,
        "some of its tensors have rows of a length that {0} cannot hold",
        "choose another type",
    ),
    (
        r"regular expression|[Rr]egex|in (?:square )?bracket|parenthes|quantifier",
        UsageError,
        "--tensor-type has a pattern that is no regular expression",
        "for example --tensor-type 'ffn_down=q6_k'",
    ),
)


def dry_run(task: Task) -> Plan:
    """What quantising would make, in a fraction of a second. Raises ModelError, UsageError."""
    plan: Plan | None = None
    for event in _events(task):
        if "plan" in event:
            plan = Plan(**event["plan"])
    if plan is None:
        raise ModelError("the quantiser ended without a plan")
    return plan


def run(task: Task, on_tensor: OnTensor) -> None:
    """Quantise. Raises ModelError, UsageError, DiskFullError; the target is then unfinished."""
    done = False
    for event in _events(task):
        if "tensor" in event:
            on_tensor(event["tensor"], event["of"], event["name"])
        done = done or "done" in event
    if not done:
        raise ModelError("the quantiser ended before it was done")


def _events(task: Task) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryFile("w+") as said, _child(said) as child:
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError):  # it died at once: what it said comes below
            child.stdin.write(json.dumps({"path": sys.path, "task": asdict(task)}))
            child.stdin.close()
        for line in child.stdout:
            event = json.loads(line)
            if "error" in event:
                raise _failure(task, event["error"], event["log"])
            yield event
        if child.wait() != 0:
            said.seek(0)
            raise _failure(task, *_last_words(child.returncode, said.read()))


@contextmanager
def _child(said: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """The process; it does not outlive the block."""
    # -I: what lies in the current folder must not be imported.
    command = [sys.executable, "-I", "-c", PROGRAM]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        errors="replace",
        env={**os.environ, **QUIET_ABORT},
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            kill_group(child)


def gave_up(number: int, text: str) -> str:
    """What to say of a child of llama.cpp's that said `text` and was ended by a signal."""
    # GGML_ABORT prints where and why.
    lines = [line for line in text.splitlines() if "GGML_ASSERT" in line or re.match(r"\S+:\d+: ", line)]
    if lines:
        return f"llama.cpp gave up: {lines[0].rpartition(': ')[2]}"
    return _KILLED if number == signal.SIGKILL else f"it was ended by {signal.Signals(number).name}"


def _last_words(status: int, text: str) -> tuple[str, str]:
    if status < 0:
        return gave_up(-status, text), text
    lines = text.strip().splitlines()
    return (lines[-1] if lines else f"it ended with status {status}"), text


def _failure(task: Task, reason: str, log: str) -> PagedrunError:
    name = Path(task.parts[0]).name
    if "iostream" in reason or "basic_ios" in reason:
        return DiskFullError(
            f"{Path(task.target).parent} could not be written to: the disk is full, or refused it",
            hint="free some space, or write elsewhere with -o",
        )
    for pattern, kind, text, hint in _FAILURES:
        if match := re.search(pattern, reason) or re.search(pattern, log):
            message = text.format(*match.groups())
            return kind(message if kind is UsageError else f"{name} cannot be quantised: {message}", hint=hint)
    return ModelError(f"{name} cannot be quantised: {reason}", hint=OUT_OF_MEMORY if reason == _KILLED else "")
