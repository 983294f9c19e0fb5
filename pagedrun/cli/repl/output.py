"""Where the chat writes: answers and what commands are asked to show on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pagedrun.cli import console as messages
from pagedrun.cli.repl.render import AnswerView, LiveView, PlainView
from pagedrun.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """stdout as the chat uses it: `rich` on a terminal that can move its cursor, plain elsewhere."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputError("standard output is closed")
        self._console: Console | None = None
        if messages.is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            self._console = Console()

    def view(self, *, show_thinking: bool) -> AnswerView:
        """A place for the next answer."""
        if self._console is None:
            return PlainView(sys.stdout, thinking=sys.stderr if show_thinking else None)
        return LiveView(self._console, show_thinking=show_thinking)

    def line(self, text: str) -> None:
        """What a command was asked to show."""
        self.table([(text,)])

    def table(self, rows: Iterable[Sequence[str]]) -> None:
        """Rows in columns, which wrap on a narrow terminal."""
        cells = [[messages.printable(cell) for cell in row] for row in rows]
        if self._console is None:
            with messages.writing_stdout():
                sys.stdout.write("".join(line + "\n" for line in _columns(cells)))
                sys.stdout.flush()
        elif cells:
            from rich.table import Table
            from rich.text import Text

            grid = Table.grid(padding=(0, 2))
            for _ in cells[0]:
                grid.add_column(overflow="fold")
            for row in cells:
                grid.add_row(*(Text(cell) for cell in row))
            self._console.print(grid)


def _columns(rows: list[list[str]]) -> Iterable[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
