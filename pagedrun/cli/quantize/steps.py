"""A bar for work that is counted in steps, on stderr: shown only on a terminal, and only if it takes long enough."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from pagedrun.cli.console import is_terminal, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY_S = 0.5  # what is over sooner would only flicker


class StepProgress:
    """Call it with (steps done, steps in all), and what is being done; from one thread. A context manager."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> StepProgress:
        return self

    def __call__(self, done: int, total: int, detail: str = "") -> None:
        """Report how far it is."""
        if self._bar is None and time.monotonic() - self._began >= _DELAY_S and is_terminal(sys.stderr):
            self._start()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total or None, detail=printable(detail))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(printable(self._label), total=None, detail="")
        self._bar.start()
