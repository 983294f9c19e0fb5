"""A frame store that keeps real bytes, and forbids all that a real one may do wrong with.

The store does copies late, at random times, one after the other as a stream does. A frame that is being written holds
garbage meanwhile. Whoever breaks a rule of `pagedrun.kv.store` gets an AssertionError at once.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import numpy as np

from pagedrun.kv import FrameError, Op, PageGeometry, Tier

GARBAGE = 0xEE
GEOMETRY = PageGeometry(page_bytes=24, row_bytes=10, n_stripes=2, n_pages=8, n_slots=3)
GEOMETRIES = {
    "rows straddle pages": GEOMETRY,
    "rows end with pages": PageGeometry(page_bytes=32, row_bytes=8, n_stripes=1, n_pages=6, n_slots=3),
    "rows are longer than pages": PageGeometry(page_bytes=8, row_bytes=12, n_stripes=3, n_pages=9, n_slots=2),
}

FOUR = GEOMETRIES["rows end with pages"]  # four tokens to a page

_COLUMNS = {Op.DESTROY: 1, Op.ZERO: 1, Op.MAP: 3, Op.MAP_SHARED: 3}  # of the others: 2


class FakeStore:
    """fail_creates: numbers of those CREATEs that fail, from 1 on; fail_ops: the same of all other operations."""

    def __init__(self, geometry: PageGeometry, *, seed: int | None = None) -> None:
        self.geometry = geometry
        self.frames: dict[int, np.ndarray] = {}
        self.tiers: dict[int, Tier] = {}
        self.windows: dict[tuple[int, int], tuple[int, bool]] = {}
        self.log: list[list[tuple[int, ...]]] = []
        self.waits = 0
        self.broken = False  # by a rule that was broken: nothing can be said of what follows
        self.fail_creates: set[int] = set()
        self.fail_ops: set[int] = set()
        self.n_creates = self.n_ops = 0
        self._random = None if seed is None else random.Random(seed)  # None: nothing arrives until it is waited for
        self._queue: deque[tuple[Op, int, int]] = deque()
        self._asked = self._done = 0
        self._reading: Counter[int] = Counter()
        self._writing: Counter[int] = Counter()
        self._created: set[int] = set()  # being cleared for the first time

    # the protocol

    def apply(self, ops: np.ndarray) -> None:
        assert ops.dtype == np.int64 and ops.shape == (len(ops), 4)
        self.log.append([tuple(op) for op in ops.tolist()])
        for done, (op, a, b, c) in enumerate(ops.tolist()):
            if self._fails(Op(op)):
                raise FrameError(f"a test lets {Op(op).name} fail", done)
            self.broken = True
            getattr(self, f"_{Op(op).name.lower()}")(a, b, c)
            self.broken = False

    def fence(self) -> int:
        return self._asked

    def passed(self, fence: int) -> bool:
        self.drift()
        return self._done >= fence

    def wait(self, fence: int) -> None:
        self.waits += self._done < fence
        while self._done < fence:
            self._finish()

    # what a step does

    def read(self, slot: int, n_pages: int) -> np.ndarray:
        """The first pages of a slot's window, shape (n_stripes, bytes)."""
        size = self.geometry.page_bytes
        seen = np.zeros((self.geometry.n_stripes, n_pages * size), np.uint8)
        for page in range(n_pages):
            if (slot, page) in self.windows:
                frame, _ = self.windows[slot, page]
                assert not self._writing[frame], f"frame {frame} is read while it is written"
                assert self.tiers[frame] == Tier.DEVICE
                seen[:, page * size : (page + 1) * size] = self.frames[frame]
        return seen

    def write(self, slot: int, start: int, data: np.ndarray) -> None:
        """Write bytes from `start` on, data of shape (n_stripes, bytes)."""
        size = self.geometry.page_bytes
        for page in range(start // size, -(-(start + data.shape[1]) // size)):
            frame, writable = self.windows[slot, page]
            assert writable, f"page {page} of slot {slot} is read only"
            assert not self._writing[frame] and not self._reading[frame], f"frame {frame} is used by a copy"
            begin, end = max(start, page * size), min(start + data.shape[1], (page + 1) * size)
            self.frames[frame][:, begin - page * size : end - page * size] = data[:, begin - start : end - start]

    def drift(self) -> None:
        """Some of the copies happen, or none."""
        if self._random:
            for _ in range(self._random.randrange(len(self._queue) + 1)):
                self._finish()

    def told(self) -> list[list[tuple[Any, ...]]]:
        """The arrays of operations since this was last asked, without columns that mean nothing."""
        log, self.log = self.log, []
        return [[(Op(op).name, *rest[: _COLUMNS.get(Op(op), 2)]) for op, *rest in ops] for ops in log]

    def count(self, tier: Tier) -> int:
        return sum(t == tier for t in self.tiers.values())

    # operations

    def _fails(self, op: Op) -> bool:
        if op == Op.CREATE:
            self.n_creates += 1
            return self.n_creates in self.fail_creates
        self.n_ops += 1
        return self.n_ops in self.fail_ops

    def _create(self, frame: int, tier: int, _: int) -> None:
        assert frame >= 0 and frame not in self.frames
        self.frames[frame] = np.zeros((self.geometry.n_stripes, self.geometry.page_bytes), np.uint8)
        self.tiers[frame] = Tier(tier)
        self._ask(Op.CREATE, frame)

    def _destroy(self, frame: int, _: int, __: int) -> None:
        self._must_be_idle(frame)
        assert frame not in {f for f, _ in self.windows.values()}, f"frame {frame} is mapped"
        if frame in self._created:
            self.wait(self._asked)
        del self.frames[frame], self.tiers[frame]

    def _map(self, slot: int, page: int, frame: int, writable: bool = True) -> None:
        assert 0 <= slot < self.geometry.n_slots and 0 <= page < self.geometry.n_pages and frame in self.frames
        before = self.windows.get((slot, page))
        assert before != (frame, writable), "nothing changes"
        if before:
            self._must_be_idle(before[0])
        self.windows[slot, page] = (frame, writable)
        shown = [w for f, w in self.windows.values() if f == frame]
        assert len(shown) == 1 or not any(shown), f"frame {frame} can be written to and is shown twice"

    def _map_shared(self, slot: int, page: int, frame: int) -> None:
        self._map(slot, page, frame, False)

    def _unmap(self, slot: int, page: int, _: int) -> None:
        if (slot, page) in self.windows:
            self._must_be_idle(self.windows.pop((slot, page))[0])
        else:
            assert self.fail_ops, "nothing changes"

    def _copy(self, to: int, from_: int, _: int) -> None:
        self._must_be_idle(to)
        assert not self._writing[from_], f"frame {from_} is copied while it is written"
        self._ask(Op.COPY, to, from_)

    def _zero(self, frame: int, _: int, __: int) -> None:
        self._must_be_idle(frame)
        self._ask(Op.ZERO, frame)

    def _must_be_idle(self, frame: int) -> None:
        assert frame in self.frames, f"there is no frame {frame}"
        assert frame in self._created or not self._writing[frame], f"frame {frame} is being written"
        assert not self._reading[frame], f"frame {frame} is being read"

    def _ask(self, op: Op, to: int, from_: int = -1) -> None:
        self._asked += 1
        self._queue.append((op, to, from_))
        self._writing[to] += 1
        self._reading[from_] += from_ >= 0
        self._created.discard(to)
        if op == Op.CREATE:
            self._created.add(to)
        self.frames[to][:] = GARBAGE

    def _finish(self) -> None:
        op, to, from_ = self._queue.popleft()
        self._done += 1
        self.frames[to][:] = self.frames[from_] if op == Op.COPY else 0
        self._writing[to] -= 1
        self._reading[from_] -= from_ >= 0
        if not self._writing[to]:
            self._created.discard(to)
