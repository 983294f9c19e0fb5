"""Markdown in pieces, what is redrawn, and plain text."""

from __future__ import annotations

import io
import math
import time

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from pagedrun.cli.generate import AnswerDelta
from pagedrun.cli.repl.live import LiveRegion
from pagedrun.cli.repl.markdown import _parser, finished_length, preview, rendered
from pagedrun.cli.repl.render import LiveView, PlainView
from tests.repl_fakes import MARKDOWN

LINES = st.sampled_from(
    """text|more text|# head|#|#tag|===|---|- item|  - inner|1. one|1.|> quote|```|```python|code()|    indented
||***|***bold***|<b>x</b>|[a]: /b|[a]|*a* `b`|a ! b|--!--|1 ! 2""".replace("\n", "|").split("|")
).map(lambda line: line.replace("!", "|"))
documents = st.lists(LINES, max_size=14).map("\n".join)


def blocks(text: str) -> list[tuple[str, str, str]]:
    """What markdown makes of a text, without line numbers."""
    return [(t.type, t.tag, t.content) for t in _parser().parse(text)]


@settings(max_examples=400, deadline=None)
@given(documents, st.integers(1, 7))
def test_a_document_in_pieces_reads_like_the_whole(text: str, step: int) -> None:
    printed, pending = [], ""
    for at in range(0, len(text), step):
        pending += text[at : at + step]
        length = finished_length(pending)
        if length:
            printed.append(pending[:length])
            pending = pending[length:]
    printed.append(pending)
    assert "".join(printed) == text
    assert [b for piece in printed for b in blocks(piece)] == blocks(text)


def test_blocks_are_finished_as_soon_as_the_next_one_has_begun() -> None:
    assert finished_length("one\n") == 0
    assert finished_length("one\n\n") == 0
    assert finished_length("one\n\ntw") == 0
    assert finished_length("one\n\ntwo\n") == len("one\n\n")
    assert finished_length("- a\n- b\n\ntext\n") == len("- a\n- b\n\n")
    assert finished_length("```\na\n\nb\n") == 0


def console(cols: int = 60, rows: int = 20) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=cols, height=rows, color_system="standard")


@settings(max_examples=200, deadline=None)
@given(st.one_of(documents, st.text(max_size=200)), st.sampled_from([1, 2, 20, 80]))
def test_anything_can_be_rendered_at_any_width(text: str, cols: int) -> None:
    console(cols).print(rendered(text))


@pytest.mark.parametrize(
    "text",
    [
        "[![alt](a.png)](http://example.org)",
        "[text](http://example.org) ![alt](b.png)",
        "| ![a](b) | [c](d) |\n|---|---|\n| `x` | **y** |",
        "> - 1. ```\n>   code\n\n- [ ] todo",
        "# [a](b)\n\n" + "> " * 60 + "deep",
        "```nosuchlanguage\nx\n```",
        "[a]: http://example.org",
        "*" * 500 + "[" * 500,
    ],
)
def test_unusual_markdown_is_shown_somehow(text: str) -> None:
    c = console(40)
    c.print(rendered(text))
    assert c.file.getvalue().strip()  # type: ignore[attr-defined]


def test_what_rich_cannot_show_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("rich.markdown.Paragraph.__rich_console__", broken)
    c = console(40)
    c.print(rendered("some **text**"))
    assert "some **text**" in c.file.getvalue()  # type: ignore[attr-defined]


def test_html_and_line_breaks_stay_visible() -> None:
    c = console()
    c.print(rendered("<think>a</think>\nsecond <b>line</b>\n\n<div>\nblock\n</div>"))
    shown = c.file.getvalue()  # type: ignore[attr-defined]
    for line in ("<think>a</think>", "second <b>line</b>", "<div>", "block", "</div>"):
        assert line in [row.rstrip() for row in shown.split("\n")]


@given(st.integers(1, 200), st.integers(1, 300), st.integers(2, 50), st.integers(1, 120))
def test_a_preview_fills_the_screen_and_costs_no_more(lines: int, width: int, rows: int, cols: int) -> None:
    text = "\n".join("x" * width for _ in range(lines))
    shown = preview(text, rows, cols)
    assert text.endswith(shown)
    assert len(shown) <= 8 * rows * cols
    needed = sum(math.ceil(len(line) / cols) for line in text.split("\n"))
    assert sum(max(1, math.ceil(len(line) / cols)) for line in shown.split("\n")) >= min(needed, rows)


def test_the_preview_of_code_stays_code() -> None:
    shown = preview("```python\n" + "x = 1\n" * 100, 10, 80)
    assert shown.startswith("```python\nx = 1") and shown.count("\n") <= 11


class Played:
    """What a terminal shows of a console's output."""

    def __init__(self, cols: int, rows: int) -> None:
        self.console = console(cols, rows)
        self.screen = pyte.HistoryScreen(cols, rows, history=1000, ratio=0.5)
        self.screen.set_mode(pyte.modes.LNM)

    def rows(self) -> list[str]:
        pyte.Stream(self.screen).feed(self.console.file.getvalue())  # type: ignore[attr-defined]
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [row.rstrip() for row in [*above, *self.screen.display]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 33)), max_size=12),
    st.sampled_from([5, 8]),
)
def test_the_tail_is_erased_completely_whatever_its_size(updates: list[tuple[bool, int, int]], rows: int) -> None:
    played = Played(16, rows)
    region = LiveRegion(played.console)
    expected: list[str] = []
    for n, (permanent, lines, width) in enumerate(updates):
        block = Text(f"block {n}") if permanent else None
        expected += [f"block {n}"] if permanent else []
        region.update(permanent=block, tail=Text("\n".join("t" * width for _ in range(lines))) if lines else None)
    region.update(permanent=Text("end"))
    shown = played.rows()
    assert [row for row in shown if row] == [*expected, "end"]


def test_blanks_at_the_end_of_a_row_are_not_written() -> None:
    c = console(40)
    LiveRegion(c).update(permanent=rendered("short\n\n- item"))
    assert [line for line in c.file.getvalue().split("\n") if line.endswith(" ")] == []  # type: ignore[attr-defined]


def stream(view: LiveView | PlainView, text: str, size: int = 3, *, reasoning: bool = False) -> None:
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        view.add(AnswerDelta(reasoning=piece) if reasoning else AnswerDelta(content=piece))


@pytest.mark.parametrize("rows", [4, 10, 40])
@pytest.mark.parametrize("cols", [20, 60])
def test_a_streamed_answer_ends_up_like_the_whole_one(rows: int, cols: int) -> None:
    ticks = iter(range(10**6))
    streamed, whole = Played(cols, rows), Played(cols, rows)
    view = LiveView(streamed.console, clock=lambda: next(ticks) * 0.1)  # every tick is a frame
    stream(view, MARKDOWN)
    view.close()
    at_once = LiveView(whole.console)
    at_once.add(AnswerDelta(content=MARKDOWN))
    at_once.close()
    assert [r for r in streamed.rows() if r] == [r for r in whole.rows() if r]
    assert "The end." in streamed.rows()


def test_drawing_takes_at_most_a_sixth_of_the_time() -> None:
    now, drawn = [0.0], []

    class SlowRegion(LiveRegion):
        def update(self, **_: object) -> None:
            now[0] += 1.0  # a frame takes a second
            drawn.append(now[0])

    view = LiveView(console(), clock=lambda: now[0])
    view._region = SlowRegion(console())
    for _ in range(600):
        now[0] += 0.1
        view.add(AnswerDelta(content="word "))
    assert now[0] / 7 <= len(drawn) <= now[0] / 6 + 1


def test_thinking_that_is_shown_is_complete_and_in_order() -> None:
    played = Played(40, 10)
    ticks = iter(range(10**6))
    view = LiveView(played.console, show_thinking=True, clock=lambda: next(ticks) * 0.1)
    thoughts = "\n".join(f"thought {n}" for n in range(30))
    stream(view, thoughts, reasoning=True)
    stream(view, "answer")
    view.close()
    rows = [r for r in played.rows() if r]
    assert rows[:30] == thoughts.split("\n")
    assert rows[30].startswith("thought for ") and rows[31:] == ["answer"]


def test_thinking_that_is_cut_off_still_says_how_long_it_took() -> None:
    played = Played(40, 10)
    view = LiveView(played.console)
    stream(view, "hmm", reasoning=True)
    view.close()
    assert next(r for r in played.rows() if r).startswith("thought for ")


def test_plain_text_is_written_as_it_comes() -> None:
    out, thinking = io.StringIO(), io.StringIO()
    view = PlainView(out, thinking=thinking)
    stream(view, "hm\x1b[2J", reasoning=True)
    view.add(AnswerDelta(content="**a**"))
    assert out.getvalue() == "**a**"
    view.add(AnswerDelta(content=" \x1b[1m"))  # to a file or a pipe it goes as it is
    view.close()
    assert out.getvalue() == "**a** \x1b[1m\n"
    assert thinking.getvalue() == "hm[2J\n"


def test_plain_text_ends_with_one_newline() -> None:
    for text in ("a", "a\n"):
        out = io.StringIO()
        view = PlainView(out)
        stream(view, text)
        view.close()
        assert out.getvalue() == "a\n"


def test_a_long_answer_on_one_line_is_drawn_in_reasonable_time() -> None:
    c = console(80, 24)
    view = LiveView(c)
    began = time.perf_counter()
    stream(view, "word " * 10_000, size=50)
    view.close()
    assert time.perf_counter() - began < 5
