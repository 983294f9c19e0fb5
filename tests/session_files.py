"""Conversations to save, disks that fail, and what has to be true of a file whatever happened to it.

A conversation's pages follow from its tokens, as in a real one: two with the same tokens have the same bytes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from pagedrun.sessions import Contents, Disk, Identity, Session, SessionError, aligned

Judged = tuple[int, int] | str

#: Two stripes; rows and pages do not end together.
SMALL = Identity(
    model="m1",
    kv_type_k="f16",
    kv_type_v="q8_0",
    page_bytes=64,
    row_bytes=24,
    n_stripes=2,
    rope="yarn 4 of 8192",
    template="t1",
    runtime="base 1",
)
#: Pages of a whole block, which are read without a copy.
BLOCKS = replace(SMALL, page_bytes=2048, row_bytes=512)


def page_of(identity: Identity, tokens: Sequence[int], number: int) -> np.ndarray:
    """A page with the rows of all tokens in it; what no token has yet is 0."""
    page = np.zeros((identity.n_stripes, identity.page_bytes), np.uint8)
    first = number * identity.page_bytes
    for stripe in range(identity.n_stripes):
        for t in range(first // identity.row_bytes, (first + identity.page_bytes - 1) // identity.row_bytes + 1):
            if t < len(tokens):
                row = (np.arange(identity.row_bytes) * (tokens[t] * 7 + t + stripe + 1)).astype(np.uint8)
                begin = t * identity.row_bytes - first
                low, high = max(begin, 0), min(begin + identity.row_bytes, identity.page_bytes)
                page[stripe, low:high] = row[low - begin : high - begin]
    return page.reshape(-1)


def state_of(tokens: Sequence[int], position: int) -> bytes:
    """A recurrent state."""
    seed = hash(tuple(tokens[:position])) % 251
    return bytes((seed + i * 3) % 256 for i in range(40))


def contents(
    tokens: Sequence[int], snapshots: Sequence[int] = (), identity: Identity = SMALL, **more: object
) -> Contents:
    tokens = tuple(map(int, tokens))
    return Contents(
        identity=identity,
        tokens=tokens,
        page=cache(lambda i: page_of(identity, tokens, i)),
        snapshots=[(p, 40) for p in snapshots],
        snapshot=lambda p: state_of(tokens, p),
        **more,  # type: ignore[arg-type]
    )


class QuickDisk(Disk):
    """Nothing is synced, which no test of this process could see; tests of power cuts have a disk of their own."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class BadDisk(QuickDisk):
    """The operation `fail_at` of those in `ops` fails, from 1 on, with half done where it writes.

    counts: how many there were. forever: all after it fail too.
    """

    def __init__(
        self, fail_at: int = 0, error: int = errno.ENOSPC, ops: str = "write", *, forever: bool = False
    ) -> None:
        self.fail_at, self.error, self.ops, self.forever = fail_at, error, ops.split(), forever
        self.count = 0

    def _fails(self, op: str) -> bool:
        if op not in self.ops:
            return False
        self.count += 1
        return self.count == self.fail_at or (self.forever and 0 < self.fail_at < self.count)

    def _check(self, op: str) -> None:
        if self._fails(op):
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int) -> int:
        self._check("open")
        return super().open(path, flags)

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        if self._fails("write"):
            super().write(fd, data[: len(data) // 2], offset)
            raise OSError(self.error, os.strerror(self.error))
        super().write(fd, data, offset)

    def read(self, fd: int, out: memoryview, offset: int) -> int:
        self._check("read")
        return super().read(fd, out, offset)

    def sync(self, fd: int) -> None:
        self._check("sync")

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate")
        super().truncate(fd, size)

    def replace(self, old: Path, new: Path) -> None:
        self._check("replace")
        super().replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._check("sync_folder")


def pages_in(session: Session) -> np.ndarray:
    """All pages that are good."""
    out = aligned(session.meta.n_pages, session.meta.identity.frame_bytes)
    good = session.read_pages(0, out)
    return out[:good]


def rows_of(page: np.ndarray, number: int, state: Contents) -> bytes:
    """What tokens have of a page: behind the last one's row there may be rows of a longer state."""
    identity = state.identity
    used = len(state.tokens) * identity.row_bytes - number * identity.page_bytes
    return page.reshape(identity.n_stripes, -1)[:, : max(used, 0)].tobytes()


def judged(path: Path, states: Sequence[Contents], disk: Disk | None = None, *, direct: bool = True) -> Judged:
    """What a reader gets: (which of the states, its usable tokens), or the reason for which it is refused.

    AssertionError where it is none of them, or anything that is served differs from what was saved.
    """
    try:
        session = Session(path, disk=disk, direct=direct)
    except SessionError as e:
        return e.message
    with session:
        tokens = session.tokens.tolist()
        which = next((i for i, s in reversed(list(enumerate(states))) if list(s.tokens) == tokens), None)
        assert which is not None, f"tokens of no state: {tokens}"
        state = states[which]
        assert session.meta.identity == state.identity
        assert [p for p, _ in session.meta.snapshots] == [p for p, _ in state.snapshots]
        for i, page in enumerate(pages_in(session)):
            assert rows_of(page, i, state) == rows_of(state.page(i), i, state), f"page {i}"
        usable = session.usable_tokens
        assert usable == min(len(tokens), session.meta.identity.tokens_in(session.good_pages))
        for position in session.usable_snapshots:
            assert position <= usable
            data = session.read_snapshot(position)
            assert data is None or bytes(data) == state.snapshot(position)
            assert (data is None) == (position not in session.usable_snapshots)
        return which, usable
