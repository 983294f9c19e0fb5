"""Child processes whose output goes into a log, line by line."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_LINES = 200


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit status and the last lines that it wrote."""

    status: int
    tail: str

    def last_lines(self, count: int) -> str:
        """The end of the output, indented to stand under a message."""
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in lines[-count:])


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    pass_fds: Sequence[int] = (),
) -> Result:
    """Run `command` without input; stdout and stderr together go to `on_line` and to the end of `log`.

    Raises FileNotFoundError if there is no such program.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    child = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=pass_fds,
    )
    try:
        with (log or Path("/dev/null")).open("a", encoding="utf-8") as out:
            out.write(f"\n$ {' '.join(command)}\n")
            assert child.stdout is not None
            for line in child.stdout:
                out.write(line)
                tail.append(line)
                if on_line:
                    on_line(line.rstrip("\n"))
        return Result(child.wait(), "".join(tail))
    finally:
        _stop(child)


def output_of(command: Sequence[str]) -> str | None:
    """What a short command prints, both streams; None when it cannot be run, fails, or hangs for 20 s."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout + done.stderr).strip()


def _stop(child: subprocess.Popen[str]) -> None:
    """End a child that is still running because of an exception here (Ctrl-C, a full disk)."""
    if child.stdout is not None:
        child.stdout.close()
    if child.poll() is None:
        child.terminate()
        child.wait()
