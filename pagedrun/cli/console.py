"""What commands say to people: errors, notes and progress, all on stderr.

stdout belongs to data; only commands whose result is the point write there. Colour needs a terminal and no
NO_COLOR. rich is imported only once a progress bar is really drawn.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from pagedrun import units
from pagedrun.errors import OutputError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from pagedrun.errors import PagedrunError

#: How often -v was given: llama.cpp's own log, and tracebacks of unexpected errors, go to stderr.
verbose = 0

_RED, _YELLOW, _DIM, _BOLD = "31;1", "33;1", "2", "1"

# A bar that lives for less than this would only flicker (and cost rich's import).
_PROGRESS_DELAY_S = 0.5

# A speed says nothing when the last bytes came longer ago.
_FRESH_S = 3.0

# Where nobody watches, what holds something up is said once in a while.
_SAID_EVERY_S = 5.0

# A command in a hint.
_COMMANDS = re.compile(
    r"\bpagedrun(?= (?:setup|doctor|chat|complete|embed|serve|ps|stop|pull|search|list|show|plan|path|verify|rm|"
    r"quantize|sessions)\b)"
)

# C0 and C1 controls except tab and newline: what a terminal could take as a command.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def set_verbose(value: int) -> int:
    """Switch -v on (never off: the option may be given at two places); used as a typer callback."""
    global verbose  # noqa: PLW0603 - one process is one command line
    verbose = max(verbose, value)
    return value


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False when it is closed or absent."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def use_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """`text` without control characters other than tab and newline, so that it cannot drive the terminal."""
    return _CONTROLS.sub("", text)


def note(text: str = "") -> None:
    """One line for the user on stderr, dim on a terminal."""
    _write(_styled(text, _DIM))


def warn(text: str) -> None:
    """One line the user should not miss, on stderr."""
    _write(f"{_styled('warning:', _YELLOW)} {text}")


def show_error(error: PagedrunError) -> None:
    """`error: MESSAGE` and, if there is one, `hint:  HINT` on stderr."""
    show_problem(error.message, error.hint)


def show_problem(message: str, hint: str = "") -> None:
    """The two lines of every error."""
    _write(f"{_styled('error:', _RED)} {printable(message)}")
    if hint:
        _write(f"{_styled('hint:', _BOLD)}  {printable(typed(hint))}")


def can_ask() -> bool:
    """Whether somebody is there to answer `confirm`."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def confirm(question: str, *, default: bool) -> bool:
    """Ask on stderr; Enter is the default, the end of the input a no. Only where `can_ask`."""
    _write(f"{printable(question)} [{'Y/n' if default else 'y/N'}] ", end="")
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        _write("")
        raise
    if not line:
        _write("")
        return False
    return line.strip().lower() in ("y", "yes") or (default and not line.strip())


def status_line(text: str) -> None:
    """Write a dim line that `erase_line` takes away again. For a stderr that is a terminal."""
    width = max(shutil.get_terminal_size().columns - 1, 1)  # a line that wraps would not go away
    shown = printable(text)
    _write(f"\r\x1b[K{_styled(shown if len(shown) <= width else f'{shown[: width - 1]}…', _DIM)}", end="")


def erase_line() -> None:
    """Take a status line away."""
    _write("\r\x1b[K", end="")


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """A line on a terminal for as long as the block takes. The block may say what holds it up, "" for nothing more."""
    if not is_terminal(sys.stderr):
        yield _Said(text)
        return
    status_line(f"{text}…")
    try:
        yield lambda why: status_line(why or f"{text}…")
    finally:
        erase_line()


class _Said:
    """What holds something up, as lines of a log: only now and then, and not twice in a row."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._text = ""
        self._at = -_SAID_EVERY_S

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text and text != self._text and now - self._at >= _SAID_EVERY_S:
            note(printable(f"{self._label}: {text}"))
            self._text, self._at = text, now


def abandon_stdout() -> None:
    """Send what stdout still holds nowhere: Python would try to write it once more on the way out, and complain."""
    _abandon(sys.stdout)


def settle_stderr() -> None:
    """Before the end: where stderr does not take what it still holds, Python would make its own exit code of that."""
    try:
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    with suppress(AttributeError, OSError, ValueError), open(os.devnull, "w") as null:  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Around every write to stdout. Raises OutputError for one that fails; BrokenPipeError, as no failure, stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as e:
        abandon_stdout()
        raise OutputError(f"cannot write the answer: {e.strerror}") from e


def typed(text: str) -> str:
    """`text` with its commands as the user has to type them: a checkout's launcher is not on the PATH."""
    launcher = os.environ.get("PAGEDRUN_LAUNCHER")
    return _COMMANDS.sub(lambda _: launcher, text) if launcher else text


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and use_colour(sys.stderr) else text


def _write(line: str, end: str = "\n") -> None:
    """Text to stderr. A stderr that is gone must not turn a finished command into a failed one."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(line + end)
        sys.stderr.flush()


class ByteProgress:
    """A progress bar of bytes on stderr; shown only on a terminal, and unless `at_once` only if it takes a while.

    Call it with (bytes done, bytes in total), from one thread at a time; it is a context manager.
    """

    def __init__(self, label: str, *, at_once: bool = False) -> None:
        self._label = label
        self._delay_s = 0.0 if at_once else _PROGRESS_DELAY_S
        self._status = ""
        self._said = _Said(label)
        self._done, self._total = 0, 0
        self._began = self._heard = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ByteProgress:
        if not self._delay_s:
            self._started()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Report how far it is. `total` 0 means unknown."""
        self._done, self._total, self._heard = done, total, time.monotonic()
        if self._started() and self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total or None)

    def status(self, text: str) -> None:
        """What is happening in place of plain progress, "" for that again; speed and time left begin anew.

        Without a terminal it is a line now and then.
        """
        changed, self._status = text != self._status, text
        if not is_terminal(sys.stderr):
            self._said(text)
        elif self._started() and changed and self._bar is not None and self._task is not None:
            self._bar.reset(self._task, completed=self._done, total=self._total or None)

    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is None:
            note(text)
        else:
            self._bar.console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _started(self) -> bool:
        """Whether there is a bar; draws it once it is due."""
        due = self._bar is None and time.monotonic() - self._began >= self._delay_s
        if due and is_terminal(sys.stderr):
            self._start()
        return self._bar is not None

    def _start(self) -> None:
        from rich.console import Console, RenderableType
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Speed(ProgressColumn):
            """Bytes a second, in the units of everything else; nothing while nothing comes."""

            def render(column, task: Task) -> Text:  # noqa: N805 - `self` is the progress
                is_fresh = time.monotonic() - self._heard < _FRESH_S
                return Text(f"{units.size(task.speed)}/s" if task.speed and is_fresh else "")

        class Bar(Progress):
            """With a line below that says what holds it up; beside the bar a narrow terminal would cut it."""

            def get_renderables(bar) -> Iterable[RenderableType]:  # noqa: N805
                yield from super().get_renderables()
                if self._status:
                    yield Text(printable(self._status))

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            DownloadColumn(binary_units=True),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(printable(self._label), completed=self._done, total=self._total or None)
        self._bar.start()
