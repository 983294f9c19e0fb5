"""What is kept and shown of llama.cpp's log."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from pagedrun.native.library import Library, LogBuffer
from pagedrun.native.vocabulary import load_vocabulary

DEBUG, INFO, CONT = 1, 2, 5


def log_callback(library: Library) -> Any:
    """Where libllama's lines go now."""
    kind = library.llama.llama_log_callback
    callback, data = kind(), ctypes.c_void_p()
    library.llama.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    return callback


def test_lines_that_quote_answers_are_neither_kept_nor_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogBuffer()
    log.verbose = True
    for line in (
        b"llama_context: n_ctx = 512\n",
        b"Grammar still awaiting trigger after token 1517 (` secret`)\n",
        b"Grammar triggered on token 7 (`secret`)",
        b"Grammar triggered on regex: 'secret'\n",
        None,
        b"\xff\n",
    ):
        log.write(0, line, None)
    assert log.text() == capsys.readouterr().err == "llama_context: n_ctx = 512\n\ufffd\n"


def test_lines_for_whoever_debugs_come_when_asked_for(
    library: Library, smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for verbose in (False, True):
        with load_vocabulary(smollm2, verbose=verbose):
            found.append(library.log.text())
    library.log.verbose = False
    quiet, whole = found
    assert "vocab type" in quiet and "vocab type" in whole  # what the rest looks like
    assert "is not marked as EOG" not in quiet and "is not marked as EOG" in whole
    assert capsys.readouterr().err == whole


def test_a_line_that_goes_on_is_kept_or_dropped_as_a_whole(library: Library) -> None:
    write = log_callback(library)
    library.log.clear()
    for level, text in ((DEBUG, b"for nobody"), (CONT, b" at all\n"), (INFO, b"for"), (CONT, b" all\n")):
        write(level, text, None)
    assert library.log.text() == "for all\n"
    library.log.clear()
