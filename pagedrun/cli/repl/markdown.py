"""Markdown on a terminal, printable block by block while it is still being written."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markdown import CodeBlock, Markdown
from rich.syntax import Syntax
from rich.text import Text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# Follows the terminal's own colours, light or dark, where rich's default paints a black box.
_CODE_THEME = "ansi_dark"


class _Code(CodeBlock):
    """Code without the blank lines that rich puts around it for the sake of a background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 2))


class _Markdown(Markdown):
    """rich's markdown; a text that it cannot show is shown as it is."""

    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code}  # noqa: RUF012 - rich's own form

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.markup = text
        self.parsed = _parser().parse(text)
        for token in _every(self.parsed):
            if token.type == "softbreak":
                token.type = "hardbreak"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            segments = list(super().__rich_console__(console, options))
        except Exception:  # what a model writes must not end the chat
            segments = [Text(self.markup)]
        yield from segments


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # rich leaves HTML out, and link definitions are invisible by nature; as text they are seen.
    return MarkdownIt().enable(["strikethrough", "table"]).disable(["html_block", "html_inline", "reference"])


def rendered(text: str) -> RenderableType:
    """`text` as rich shows markdown, except that HTML stays visible and a line break stays one."""
    try:
        return _Markdown(text)
    except Exception:  # see above: the parser has limits of its own
        return Text(text)


def finished_length(text: str) -> int:
    """How many characters at the front of `text` are whole blocks that no further text can change.

    The last block is never finished, and neither is the last line: "#" may become a heading or a "#tag".
    """
    whole_lines = text[: text.rfind("\n") + 1]
    try:
        tokens = _parser().parse(whole_lines)
    except Exception:  # see above; the text is then simply shown at the end
        return 0
    starts = [t.map[0] for t in tokens if t.level == 0 and t.nesting >= 0 and t.map]
    if len(starts) < 2:
        return 0
    lines = whole_lines.split("\n")[: starts[-1]]
    return sum(len(line) + 1 for line in lines)


def preview(text: str, rows: int, width: int) -> str:
    """The end of an unfinished block, at least as much as `rows` rows show, so that redrawing it stays cheap.

    An open code fence keeps its first line, without which the rest would be read as something else.
    """
    lines = text.split("\n")
    if len(lines) > 2 * rows:
        first = [lines[0]] if lines[0].lstrip().startswith(("```", "~~~")) else []
        text = "\n".join(first + lines[-rows:])
    return text[-4 * rows * width :] if len(text) > 8 * rows * width else text


def _every(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _every(token.children or [])
