"""Colour, control characters and progress: what reaches which stream."""

from __future__ import annotations

import io
import sys
import time

import pytest

from pagedrun.cli import console
from pagedrun.errors import PagedrunError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch):
    """Makes stderr a terminal. To be called in the test itself: pytest sets stderr anew after the fixtures."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def make() -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def test_errors_are_coloured_on_a_terminal_only(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    console.show_error(PagedrunError("it broke", hint="mend it"))
    assert terminal.getvalue() == "\x1b[31;1merror:\x1b[0m it broke\n\x1b[1mhint:\x1b[0m  mend it\n"
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    console.show_error(PagedrunError("it broke", hint="mend it"))
    console.note("noted")
    console.warn("beware")
    assert plain.getvalue() == "error: it broke\nhint:  mend it\nnoted\nwarning: beware\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_declined(open_terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    terminal = open_terminal()
    monkeypatch.setenv(variable, value)
    console.show_error(PagedrunError("it broke"))
    assert terminal.getvalue() == "error: it broke\n"


def test_a_stderr_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        console.note("nobody hears this")


def test_control_characters_do_not_pass(open_terminal) -> None:
    terminal = open_terminal()
    assert console.printable("a\x1b[31mb\x07\x9bc\x7f\rd\te\nf\u200bé") == "a[31mbcd\te\nf\u200bé"
    console.show_error(PagedrunError("name\x1b]0;owned\x07"))
    assert "\x1b]" not in terminal.getvalue()


def test_progress_is_silent_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0)
    with console.ByteProgress("loading") as progress:
        progress(1, 2)
    assert stream.getvalue() == ""


def test_progress_that_is_quick_is_not_shown(open_terminal) -> None:
    terminal = open_terminal()
    with console.ByteProgress("loading") as progress:
        progress(1, 2)
        progress(2, 2)
    assert terminal.getvalue() == ""


def test_progress_that_takes_long_shows_label_and_bytes(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0)
    with console.ByteProgress("loading [bold]x") as progress:
        progress(1 << 20, 4 << 20)
        time.sleep(0.3)  # rich draws in a thread of its own
    shown = terminal.getvalue()
    assert "loading [bold]x" in shown and "1.0/4.0 MiB" in shown
    assert shown.endswith("\x1b[2K") or "\x1b[2K" in shown.splitlines()[-1]  # and is erased at the end


def test_what_holds_progress_up_is_said_in_its_place(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0)
    with console.ByteProgress("m.gguf") as progress:
        progress(1 << 20, 4 << 20)
        progress.status("connection lost; again in 2.0 s")
        progress.note("a line\x1b[31m that [bold]stays")
        time.sleep(0.3)  # rich draws in a thread of its own
    shown = terminal.getvalue()
    assert "\nconnection lost; again in 2.0 s" in shown
    assert "a line[31m that [bold]stays" in shown


def test_what_holds_progress_up_is_whole_on_a_narrow_terminal(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    monkeypatch.setattr(console, "_PROGRESS_DELAY_S", 0)
    monkeypatch.setenv("COLUMNS", "40")
    with console.ByteProgress("M-GGUF Q4_K_M") as progress:
        progress(1 << 20, 4 << 20)
        progress.status("the server has a problem (503); again in 16.0 s")
        time.sleep(0.3)
    shown = terminal.getvalue()
    assert "the server has a problem (503); again \nin 16.0 s" in shown or (
        "the server has a problem (503); again in\n16.0 s" in shown
    )


def test_in_a_pipe_what_holds_it_up_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    at = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: at[0])
    with console.ByteProgress("m.gguf") as progress, console.waiting("looking for m") as say:
        for seconds, text in (
            (0, "lost; again in 1.0 s"),
            (1, ""),
            (1, "lost; again in 2.0 s"),
            (6, "lost; again in 4 s"),
        ):
            at[0] = seconds
            progress.status(text)
            say(text)
        at[0] = 60
        progress.status("lost; again in 4 s")  # nothing new
    assert stream.getvalue().splitlines() == [
        "m.gguf: lost; again in 1.0 s",
        "looking for m: lost; again in 1.0 s",
        "m.gguf: lost; again in 4 s",
        "looking for m: lost; again in 4 s",
    ]


def test_a_line_that_goes_away_is_never_wider_than_the_terminal(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    with console.waiting("looking for a long name") as say:
        say("a reason that is long")
        say("")
    assert [line.removeprefix("\x1b[K") for line in terminal.getvalue().split("\r") if line] == [
        "looking for a long…",
        "a reason that is l…",
        "looking for a long…",
        "",
    ]


def test_a_wait_has_a_line_that_goes_away(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal()
    with pytest.raises(PagedrunError), console.waiting("asking"):
        raise PagedrunError("no")
    assert "asking…" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with console.waiting("asking"):
        pass
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("typed", "default", "answer"),
    [
        ("\n", True, True),
        ("\n", False, False),
        ("y\n", False, True),
        ("YES\n", False, True),
        ("n\n", True, False),
        ("", True, False),
        ("what?\n", True, False),
    ],
)
def test_a_question_takes_enter_for_its_default(
    open_terminal, monkeypatch: pytest.MonkeyPatch, typed: str, default: bool, answer: bool
) -> None:
    terminal = open_terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert console.can_ask()
    assert console.confirm("Download?", default=default) is answer
    assert terminal.getvalue().startswith(f"Download? [{'Y/n' if default else 'y/N'}] ")
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert not console.can_ask()


def test_a_question_that_is_interrupted_ends_its_line(open_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Terminal):
        def readline(self, *_: object) -> str:
            raise KeyboardInterrupt

    terminal = open_terminal()
    monkeypatch.setattr(sys, "stdin", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        console.confirm("Download?", default=True)
    assert terminal.getvalue() == "Download? [Y/n] \n"
