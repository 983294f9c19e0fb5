"""The text that `complete` is asked about: PROMPT, --file and standard input, put together in a fixed order.

    PROMPT, then each --file in the order given, then standard input; "-" in PROMPT's place puts standard input first

With a chat template the parts are separated by a blank line and lose the line breaks around them; raw, every
byte counts: the parts are joined as they are.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from pagedrun.cli import console
from pagedrun.errors import RequestError, UsageError
from pagedrun.paths import expanded
from pagedrun.units import count, size

# More than the longest context can hold, and little enough to be read without thinking about memory.
MAX_BYTES = 64 << 20

_STDIN = "standard input"


def assemble(prompt: str | None, files: Sequence[Path], *, raw: bool) -> str:
    """The whole prompt. Reads standard input unless it is a terminal (then only for "-").

    Raises UsageError when there is nothing to ask, RequestError for input that is empty, not text, or endless.
    """
    parts: list[str] = []
    if prompt == "-":
        parts.append(_text(_read_stdin(), _STDIN, raw=raw))
    elif prompt is not None:
        parts.append(_text(os.fsencode(prompt), "PROMPT", raw=raw))
    parts += [_text(_read_file(path), str(path), raw=raw) for path in files]
    if prompt != "-" and stdin_is_given():
        parts.append(_text(_read_stdin(), _STDIN, raw=raw))
    if not parts:
        raise UsageError("there is no prompt", hint='pagedrun complete "PROMPT", or send the text to standard input')
    return "".join(parts) if raw else "\n\n".join(part.strip("\r\n") for part in parts)


def stdin_is_given() -> bool:
    """Whether somebody sends something: a pipe, a file or a socket, but neither a terminal nor /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    if console.is_terminal(sys.stdin):
        console.note("reading the prompt from the terminal; Ctrl-D ends it")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _read_file(path: Path) -> bytes:
    try:
        with expanded(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as e:
        raise UsageError(f"--file: cannot read {path}: {e.strerror or e}") from e


def _text(data: bytes, source: str, *, raw: bool) -> str:
    n_bytes = count(len(data), "byte")
    if len(data) > MAX_BYTES:
        raise RequestError(f"{source} has more than {size(MAX_BYTES)}, more than any context holds")
    if not data:
        raise RequestError(f"{source} is empty", hint=_empty_hint(source))
    if b"\0" in data:
        raise RequestError(f"{source} is not text: byte {data.index(0) + 1:,} of {n_bytes} is NUL")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise RequestError(
            f"{source} is not UTF-8 text: byte {e.start + 1:,} of {n_bytes} is 0x{data[e.start]:02x}",
            hint="convert it first, for example with: iconv -t UTF-8",
        ) from e
    if raw:
        return text
    if not text.strip():
        raise RequestError(f"{source} has nothing but white space ({n_bytes})")
    return text.removeprefix("\ufeff")  # a byte order mark is no part of the text


def _empty_hint(source: str) -> str:
    return "where nothing is to be read, use: < /dev/null" if source == _STDIN else ""
