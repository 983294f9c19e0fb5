"""Results on stdout: rows as aligned columns for people, objects as JSON for programs. UTF-8, whatever the locale.

NAME          SIZE  WHERE
smollm2   93.8 MiB  pagedrun
qwen3-8b   4.7 GiB  Ollama
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pagedrun.cli import console
from pagedrun.errors import OutputError

_GAP = "  "
_TITLES = "1"  # bold


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """A line of titles and a line for each row; no lines at all without rows. The columns in `right` end flush.

    Lines are as long as they have to be: names must stay whole, to be copied. Raises OutputError.
    """
    if not rows:
        return
    table = [list(titles), *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines = [_line(cells, titles, widths, right) for cells in table]
    if console.use_colour(sys.stdout):
        lines[0] = f"\x1b[{_TITLES}m{lines[0]}\x1b[0m"
    print_text("\n".join(lines))


def print_json(value: Any) -> None:
    """One JSON value, indented. Raises OutputError."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_text(text: str) -> None:
    """`text` and the end of its line, on stdout. What is from outside has been made `printable` before.

    Raises OutputError.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    with console.writing_stdout():
        # File names may hold bytes that are no UTF-8: Python keeps them as surrogates, which nothing can print.
        sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


def print_path(path: Path) -> None:
    """A path and the end of its line, on stdout. Raises OutputError."""
    # A name may hold bytes that are no text: into a pipe they go as they are.
    if sys.stdout is None or console.is_terminal(sys.stdout):
        print_text(console.printable(str(path)))
        return
    with console.writing_stdout():
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")
        sys.stdout.buffer.flush()


def _one_line(text: str) -> str:
    return " ".join(console.printable(text).split())


def _width(text: str) -> int:
    """Columns on a terminal: some scripts take two for a character."""
    from rich.cells import cell_len

    return cell_len(text)


def _line(cells: Sequence[str], titles: Sequence[str], widths: Sequence[int], right: Collection[str]) -> str:
    padded = []
    for cell, title, width in zip(cells, titles, widths, strict=True):
        fill = " " * (width - _width(cell))
        padded.append(fill + cell if title in right else cell + fill)
    return _GAP.join(padded).rstrip()
