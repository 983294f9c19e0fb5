"""Reading forward through a file that nobody trusts: every length is held against what is left before it is used.

The file is read in windows and not mapped into memory: a mapping of a file that another program cuts short kills the
process, and a read only comes back with less.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from pagedrun.errors import ModelFileError

_WINDOW = 256 << 10  # bytes read at once

#: Texts are skipped one by one. The largest vocabulary with its merges has 780,000; a file with more than this is
#: damaged, or made to keep us busy.
MAX_TEXTS = 1 << 24

_U64 = struct.Struct("<Q")


class Cursor:
    """A place in an open file. Raises ModelFileError for whatever does not fit into the file."""

    def __init__(self, descriptor: int, path: Path, at: int = 0) -> None:
        self.path = path
        self.at = at
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._window = b""
        self._begin = 0  # where in the file the window begins
        self._texts_left = MAX_TEXTS

    def damaged(self, reason: str) -> ModelFileError:
        """The error for a file whose content makes no sense."""
        return ModelFileError(f"{self.path} is damaged: {reason}", hint="fetch the file again")

    def read(self, n_bytes: int) -> bytes:
        """The next bytes."""
        self._need(n_bytes)
        start = self.at - self._begin
        if not 0 <= start <= len(self._window) - n_bytes:
            self._fill(n_bytes)
            start = 0
        self.at += n_bytes
        return self._window[start : start + n_bytes]

    def skip(self, n_bytes: int) -> None:
        """Go on without reading."""
        self._need(n_bytes)
        self.at += n_bytes

    def number(self, code: str) -> int:
        """One whole number; `code` as in the struct module."""
        value: int = struct.unpack(f"<{code}", self.read(struct.calcsize(code)))[0]
        return value

    def skip_texts(self, count: int) -> None:
        """Go on behind `count` texts, each a length (u64) and as many bytes. 90 ns each."""
        if count > self._texts_left:
            raise self.damaged(f"an array is said to have {count:,} texts")
        self._need(count * 8)  # a text takes at least the bytes of its length: this bounds the loop before it begins
        self._texts_left -= count
        unpack = _U64.unpack_from
        while count:
            self._need(8)
            self._fill(8)
            window, at, last = self._window, 0, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self.at += at
            if self.at > self.size:
                raise self._ends_early()

    def _need(self, n_bytes: int) -> None:
        if n_bytes > self.size - self.at:
            raise self._ends_early()

    def _fill(self, n_bytes: int) -> None:
        """Make the window begin here, with at least `n_bytes` in it."""
        try:
            self._window = os.pread(self._descriptor, max(n_bytes, _WINDOW), self.at)
        except OSError as e:
            raise ModelFileError(f"cannot read {self.path}: {e.strerror}") from e
        self._begin = self.at
        if len(self._window) < n_bytes:  # it became shorter while we read
            raise self._ends_early()

    def _ends_early(self) -> ModelFileError:
        return ModelFileError(f"{self.path} is truncated or damaged: it ends too early", hint="fetch the file again")
