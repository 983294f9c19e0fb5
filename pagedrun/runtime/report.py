"""How long work tells people where it is: lines and one progress bar, all on stderr."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self


class Reporter(Protocol):
    """What setup tells its caller."""

    def note(self, text: str) -> None:
        """One line for the user."""

    def warn(self, text: str) -> None:
        """One line the user should not miss."""

    def progress(self, label: str, done: float, total: float | None) -> None:
        """`label` is at `done` of `total` (None: nobody knows). A new label replaces the one before."""


class StderrReporter:
    """Draws a bar on a terminal; elsewhere says each label once, as a line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._label = ""
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._label = ""

    def note(self, text: str) -> None:
        """One line for the user."""
        self._line(text)

    def warn(self, text: str) -> None:
        """One line the user should not miss."""
        self._line(f"warning: {text}")

    def progress(self, label: str, done: float, total: float | None) -> None:
        """Show that `label` is at `done` of `total`."""
        if not self._terminal:
            if label != self._label:
                self._line(f"{label} ...")
            self._label = label
            return
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._task = self._bar.add_task(label, total=total)
        elif label != self._label:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(label, total=total)
        self._label = label
        self._bar.update(self._task, completed=done, total=total)

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif sys.stderr is not None:
            with suppress(OSError):  # whoever reads it may have left, and the work goes on
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - this class is the way to stderr


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
