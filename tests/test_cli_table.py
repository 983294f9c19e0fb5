"""Tables: aligned, one line a row whatever is in it, colour on a terminal only."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from pagedrun.cli.table import print_json, print_table
from pagedrun.errors import OutputError


class Stdout(io.TextIOWrapper):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")
        self._is_terminal = terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch):
    """Replaces stdout, in the test itself: pytest sets it anew after the fixtures."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def make(*, terminal: bool = False) -> Stdout:
        stream = Stdout(terminal=terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return make


ROWS = [("smollm2", "93.8 MiB", "pagedrun"), ("模型", "1 B", "")]


def test_columns_are_aligned_also_where_characters_are_wide(stdout) -> None:
    out = stdout()
    print_table(("NAME", "SIZE", "WHERE"), ROWS, right=("SIZE",))
    assert out.text == "NAME         SIZE  WHERE\nsmollm2  93.8 MiB  pagedrun\n模型          1 B\n"


def test_only_a_terminal_gets_bold_titles(stdout, monkeypatch: pytest.MonkeyPatch) -> None:
    out = stdout(terminal=True)
    print_table(("NAME",), [("m",)])
    assert out.text == "\x1b[1mNAME\x1b[0m\nm\n"
    out = stdout(terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("NAME",), [("m",)])
    assert out.text == "NAME\nm\n"


def test_whatever_a_cell_holds_a_row_is_one_line(stdout) -> None:
    out = stdout()
    print_table(("NAME", "X"), [("a\nb\tc\x1b[31m", "\udcff")])
    assert out.text == "NAME       X\na b c[31m  ?\n"


def test_no_rows_are_no_output_and_json_is_json(stdout) -> None:
    out = stdout()
    print_table(("NAME",), [])
    assert out.text == ""
    value: dict[str, Any] = {"name": "模型", "size": None}
    print_json(value)
    assert json.loads(out.text) == value and "模型" in out.text


def test_a_stdout_that_is_closed_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        print_json(1)
