"""Writing an answer to stdout: bytes as they are into a pipe, without control characters onto a terminal."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from pagedrun.cli import console
from pagedrun.errors import OutputError

# Below this a status line would only flicker.
_STATUS_DELAY_S = 1.0


class AnswerOutput:
    """stdout for one answer, and a status line on stderr while nothing comes; a context manager.

    Text is UTF-8 whatever the locale says. Raises BrokenPipeError when the reader has left, OutputError when
    stdout cannot be written otherwise.
    """

    def __init__(self, status: str) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed")
        self._terminal = console.is_terminal(sys.stdout)
        self._waiting: list[str] = []
        self._ends_line = True
        self._status = _Status(status)

    def __enter__(self) -> AnswerOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.clear()

    def wait(self, status: str) -> None:
        """Nothing to write yet: what is going on."""
        self._status.show(status)

    def add(self, text: str, *, now: bool) -> None:
        """More of the answer, to be written now or at the end."""
        if now:
            self._write(text)
        else:
            self._waiting.append(text)

    def replace(self, text: str) -> None:
        """Write this in place of what was kept back."""
        self._waiting = [text]

    def finish(self) -> None:
        """Write what was kept back; on a terminal, end the line, so that the shell's prompt starts a new one."""
        if self._waiting:
            self._write("".join(self._waiting))
        if self._terminal and not self._ends_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._status.clear()
        shown = console.printable(text) if self._terminal else text
        self._ends_line = shown.endswith("\n") if shown else self._ends_line
        with console.writing_stdout():
            sys.stdout.buffer.write(shown.encode("utf-8", "replace"))
            sys.stdout.buffer.flush()


class _Status:
    """A dim line on stderr, when it is a terminal and the wait is long enough; erased when something comes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._shown = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_STATUS_DELAY_S, self._draw)
        self._timer.daemon = True
        if console.is_terminal(sys.stderr):
            self._timer.start()

    def show(self, text: str) -> None:
        with self._lock:
            changed, self._text = text != self._text, text
            shown = self._shown
        if shown and changed:
            self._draw()

    def clear(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._shown:
                console.erase_line()
            self._shown = False

    def _draw(self) -> None:
        with self._lock:
            console.status_line(f"{self._text} ...")
            self._shown = True
