"""The part of the terminal that is redrawn: the unfinished end of an answer, below what is printed for good.

finished blocks          scroll away like any output
──────────────────
the tail  (redrawn)      never taller than the screen, so that it can always be erased completely
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.segment import Segment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_CLEAR_BELOW = "\x1b[0J"


class LiveRegion:
    """A tail under permanent output. Each update is one write, so nothing flickers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []  # of the rows on screen, in cells

    def update(self, *, permanent: RenderableType | None = None, tail: RenderableType | None = None) -> None:
        """Print `permanent` where the tail was, and `tail` (cut to its last rows) below it."""
        before = self._widths
        text = self._erase()
        self._widths = []
        if permanent is not None:
            text += self._text(self._lines(permanent), end="\n")
        if tail is not None:
            lines = self._lines(tail)[-max(self._console.height - 1, 1) :]
            self._widths = [Segment.get_line_length(line) for line in lines]
            text += self._text(lines, end="")
        if text or before:
            self._console.file.write(text)
            self._console.file.flush()

    def _lines(self, renderable: RenderableType) -> list[list[Segment]]:
        """Rows of at most the terminal's width, without the blanks that rich fills them up with."""
        options = self._console.options.update(height=None)
        return [_trimmed(line) for line in self._console.render_lines(renderable, options, pad=False)]

    def _text(self, lines: list[list[Segment]], *, end: str) -> str:
        segments: list[Segment] = []
        for n, line in enumerate(lines):
            segments += [Segment.line(), *line] if n else line
        with self._console.capture() as captured:
            self._console.print(_Line(segments), soft_wrap=True)
        return captured.get() + end

    def _erase(self) -> str:
        if not self._widths:
            return ""
        # A terminal that became narrower since has wrapped the rows that are too long for it.
        width = max(self._console.width, 1)
        rows = sum(max(1, math.ceil(w / width)) for w in self._widths)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}{_CLEAR_BELOW}"


class _Line:
    """Segments that are laid out already."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    def __rich_console__(self, *_: object) -> list[Segment]:
        return self._segments


def _trimmed(line: list[Segment]) -> list[Segment]:
    """A row without blanks at its end, so that copied text has none and a narrower terminal need not wrap them."""
    line = list(line)
    while line:
        text, style, _ = line[-1]
        if style and (style.bgcolor or style.underline or style.reverse):
            break  # a blank that can be seen
        if kept := text.rstrip(" "):
            line[-1] = Segment(kept, style)
            break
        line.pop()
    return line
