"""What is kept and shown of llama.cpp's log."""

from __future__ import annotations

import pytest

from pagedrun.native.library import LogBuffer


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
