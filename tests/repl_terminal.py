"""A program in a real pseudo-terminal, and what a person would see on its screen."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pyte

ROOT = Path(__file__).resolve().parent.parent
ENTER, ALT_ENTER, CTRL_C, CTRL_D, TAB, UP = "\r", "\x1b\r", "\x03", "\x04", "\t", "\x1b[A"


class _Screen(pyte.HistoryScreen):
    """Answers the program's questions about the cursor, as terminals do."""

    reply: Any = None

    def write_process_input(self, data: str) -> None:
        if self.reply:
            self.reply(data)


class Terminal:
    """Runs `python ARGS` on a screen of cols x rows."""

    def __init__(self, *args: str, env: dict[str, str], cols: int = 80, rows: int = 24) -> None:
        self.screen = _Screen(cols, rows, history=5000, ratio=0.5)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""
        base = {"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
        self.child = pexpect.spawn(
            sys.executable,
            list(args),
            env=base | env,
            cwd=str(ROOT),
            dimensions=(rows, cols),
            encoding="utf-8",
            timeout=30,
        )
        self.child.delaybeforesend = None
        self.screen.reply = self.child.send

    def send(self, text: str) -> None:
        self.child.send(text)

    def paste(self, text: str) -> None:
        """As a terminal does it in bracketed paste mode."""
        self.child.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, cols: int, rows: int) -> None:
        self.screen.resize(rows, cols)
        self.child.setwinsize(rows, cols)

    def pump(self, seconds: float = 0.05) -> None:
        """Take in what the program writes for that long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                text = self.child.read_nonblocking(65536, timeout=left)
            except (pexpect.TIMEOUT, pexpect.EOF):
                if not self.child.isalive():
                    return
                continue
            self.raw += text
            self._stream.feed(text)

    @property
    def shown(self) -> str:
        """The screen, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    @property
    def text(self) -> str:
        """Everything that can be scrolled to."""
        above = ["".join(line[x].data for x in range(self.screen.columns)).rstrip() for line in self.screen.history.top]
        return "\n".join([*above, self.shown])

    def wait_for(self, pattern: str, *, times: int = 1, timeout: float = 20) -> None:
        """Until the pattern is there that many times; fails with the screen's contents."""
        until = time.monotonic() + timeout
        while len(re.findall(pattern, self.text, re.MULTILINE)) < times:
            if time.monotonic() > until:
                raise AssertionError(f"no {pattern!r} in:\n{self.text}\n--- raw end:\n{self.raw[-400:]!r}")
            self.pump()

    def wait_for_exit(self, timeout: float = 20) -> int:
        until = time.monotonic() + timeout
        while self.child.isalive():
            assert time.monotonic() < until, f"still running:\n{self.text}"
            self.pump()
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus

    def close(self) -> None:
        self.child.close(force=True)
