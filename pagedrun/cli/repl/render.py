"""Showing an answer while it is made: markdown on a terminal, the bare text anywhere else.

The loop calls `add` for what comes, `tick` now and then so that clocks move, and `close` at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol, TextIO

from pagedrun import units
from pagedrun.cli import console as messages

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pagedrun.cli.generate import AnswerDelta

_FRAME_S = 0.08
_LOAD = 5  # a frame that took t seconds is followed by none for 5 t: drawing must not slow down generating
_PATIENCE_S = 0.5  # how long nothing happens before the screen says what it is waiting for


class AnswerView(Protocol):
    """Where an answer appears."""

    def add(self, delta: AnswerDelta) -> None:
        """Show some more."""
        ...

    def tick(self) -> None:
        """Nothing new, but time has passed."""
        ...

    def stopping(self) -> None:
        """The user does not want more; the end may take a step."""
        ...

    def close(self) -> None:
        """The answer is over: show what is left and leave the cursor on a new line."""
        ...


class PlainView:
    """The answer's text as it comes, and nothing else. Thinking, if wanted, goes to `thinking`."""

    def __init__(self, out: TextIO, *, thinking: TextIO | None = None) -> None:
        self._out = out
        self._thinking = thinking
        self._ends = {"out": "\n", "thinking": "\n"}
        # A terminal (a dumb one, or with a pipe as input) must not be driven by what a model writes.
        self._clean: Callable[[str], str] = messages.printable if messages.is_terminal(out) else str

    def add(self, delta: AnswerDelta) -> None:
        """Write it at once."""
        if delta.reasoning and self._thinking:
            self._write(self._thinking, "thinking", messages.printable(delta.reasoning))
        if delta.content:
            self._end_line(self._thinking, "thinking")
            self._write(self._out, "out", self._clean(delta.content))

    def tick(self) -> None:
        """Plain text has no clock."""

    def stopping(self) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """End the line."""
        self._end_line(self._thinking, "thinking")
        self._end_line(self._out, "out")

    def _write(self, file: TextIO, name: str, text: str) -> None:
        with messages.writing_stdout() if file is self._out else nullcontext():
            file.write(text)
            file.flush()
        self._ends[name] = text[-1:] or self._ends[name]

    def _end_line(self, file: TextIO | None, name: str) -> None:
        if file and self._ends[name] != "\n":
            self._write(file, name, "\n")


class LiveView:
    """Markdown that grows: finished blocks are printed for good, the unfinished one is redrawn below them.

    Thinking is a dim line with a clock that folds into "thought for 3.2 s", or dim text with `show_thinking`.
    """

    def __init__(
        self, console: Console, *, show_thinking: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from pagedrun.cli.repl.live import LiveRegion

        self._console = console
        self._region = LiveRegion(console)
        self._show_thinking = show_thinking
        self._clock = clock
        self._began = clock()
        self._next_frame = 0.0
        self._thinking_since: float | None = None
        self._thoughts = ""  # not yet printed
        self._text = ""  # not yet printed
        self._printed = False  # any block, so that the next one needs a blank line before it
        self._waiting_for, self._thinking = "reading the prompt", "thinking"

    def add(self, delta: AnswerDelta) -> None:
        """Take it in; draw if it is time for a frame."""
        if delta.reasoning:
            if self._thinking_since is None:
                self._thinking_since = self._clock()
            self._thoughts += _clean(delta.reasoning)
        if delta.content:
            if self._thinking_since is not None:
                self._fold()
            self._text += _clean(delta.content)
        self.tick()

    def tick(self) -> None:
        """Draw if it is time for a frame."""
        began = self._clock()
        if began >= self._next_frame:
            self._frame()
            self._next_frame = self._clock() + max(_FRAME_S, _LOAD * (self._clock() - began))

    def close(self) -> None:
        """Print what is left, for good."""
        if self._thinking_since is not None:
            self._fold()
        text = self._text.rstrip()
        self._region.update(permanent=self._block(text) if text else None)
        self._text = ""

    def stopping(self) -> None:
        """Say so where nothing else is to be seen: a step on a slow machine can take seconds."""
        self._waiting_for = self._thinking = "stopping"

    def _frame(self) -> None:
        if self._thinking_since is not None:
            self._frame_of_thinking()
        elif self._text.strip():
            self._frame_of_text()
        elif self._clock() - self._began >= _PATIENCE_S:
            self._region.update(tail=self._status(self._waiting_for, self._began))

    def _frame_of_thinking(self) -> None:
        if not self._show_thinking:
            self._region.update(tail=self._status(self._thinking, self._thinking_since or self._began))
            return
        whole, _, rest = self._thoughts.rpartition("\n")
        self._thoughts = rest
        tail = rest[-4 * self._console.height * self._console.width :]
        self._region.update(permanent=_dim(whole) if whole.strip() else None, tail=_dim(tail) if tail else None)

    def _frame_of_text(self) -> None:
        from pagedrun.cli.repl.markdown import finished_length, preview

        length = finished_length(self._text)
        permanent = None
        if length:
            permanent, self._text = self._block(self._text[:length]), self._text[length:]
            self._printed = True
        tail = preview(self._text, self._console.height, self._console.width)
        self._region.update(permanent=permanent, tail=self._block(tail) if tail.strip() else None)

    def _fold(self) -> None:
        """The end of thinking: what is left of it, and how long it took."""
        took = units.duration(self._clock() - (self._thinking_since or self._began))
        rest = self._thoughts.strip() if self._show_thinking else ""
        self._thinking_since, self._thoughts = None, ""
        self._region.update(permanent=_dim(f"{rest}\nthought for {took}".lstrip()))
        self._printed = True

    def _block(self, text: str) -> RenderableType:
        from rich.console import Group

        from pagedrun.cli.repl.markdown import rendered

        return Group("", rendered(text)) if self._printed else rendered(text)

    def _status(self, what: str, since: float) -> RenderableType:
        return _dim(f"{what}… {units.duration(self._clock() - since)}")


def _dim(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style="dim")


def _clean(text: str) -> str:
    return messages.printable(text.replace("\r\n", "\n"))
