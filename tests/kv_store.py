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


def with_stages(n_stripes: int, *, zero_copy: bool = True, **sizes: int) -> PageGeometry:
    """A store whose layers read a stripe each, through areas of a stage that they take turns in."""
    sizes = {"page_bytes": 24, "row_bytes": 10, "n_pages": 12, "n_slots": 3} | sizes
    n_areas = 2 + n_stripes % 2 if n_stripes > 1 else 1
    stage_bytes = n_areas * sizes["page_bytes"]
    return PageGeometry(**sizes, n_stripes=n_stripes, stage_bytes=stage_bytes, zero_copy=zero_copy)


SPILLING = {
    "half a frame": with_stages(4),
    "an odd number of layers": with_stages(5, page_bytes=32, row_bytes=8),
    "a small part, and nothing else": with_stages(8, zero_copy=False, n_pages=10),
    "nothing else": with_stages(4, zero_copy=False, page_bytes=8, row_bytes=12),
    "stages that do not pay": with_stages(2),
    "no stages": GEOMETRY,
}

FOUR = GEOMETRIES["rows end with pages"]  # four tokens to a page

_COLUMNS = {Op.DESTROY: 1, Op.ZERO: 1, Op.MAP: 3, Op.MAP_SHARED: 3, Op.MAP_STAGED: 3}  # of the others: 2


class FakeStore:
    """fail_creates: numbers of those CREATEs that fail, from 1 on; fail_ops: the same of all other operations.

    wanted: frames of the host that are ordered, of which `there` are made; n_made: those that CREATE made itself. The
    making takes a while, and may stop until more are ordered; without a seed they are there at once.
    """

    def __init__(self, geometry: PageGeometry, *, seed: int | None = None) -> None:
        self.geometry = geometry
        self.frames: dict[int, np.ndarray] = {}
        self.tiers: dict[int, Tier] = {}
        self.windows: dict[tuple[int, int], tuple[int, bool]] = {}
        self.stages: dict[tuple[int, int], int] = {}  # of those of windows that are read through one
        self.log: list[list[tuple[int, ...]]] = []
        self.waits = 0
        self.broken = False  # by a rule that was broken: nothing can be said of what follows
        self.fail_creates: set[int] = set()
        self.fail_ops: set[int] = set()
        self.n_creates = self.n_ops = 0
        self.wanted = self.there = self.n_made = 0
        self._out_of_memory = False
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
            if op == Op.CREATE and b == Tier.HOST:
                self.n_made += not self.there
                self.wanted, self.there = max(self.wanted - 1, 0), max(self.there - 1, 0)
            if self._fails(Op(op)):
                raise FrameError(f"a test lets {Op(op).name} fail", done)
            self.broken = True
            getattr(self, f"_{Op(op).name.lower()}")(a, b, c)
            self.broken = False

    def stock(self, n: int) -> None:
        assert n >= 0
        self.wanted, self.there, self._out_of_memory = n, min(self.there, n), False

    def stocked(self) -> int:
        lack = 0 if self._out_of_memory else self.wanted - self.there
        self.there += self._random.randrange(min(lack, 3) + 1) if self._random else lack
        self._out_of_memory |= self._random is not None and self._random.random() < 0.1
        return self.there

    def fence(self) -> int:
        return self._asked

    def passed(self, fence: int) -> bool:
        self.drift()
        return self._done >= fence

    def wait(self, fence: int) -> None:
        self.waits += self._done < fence
        while self._done < fence:
            self._finish()

    def read(self, frame: int) -> np.ndarray:
        self._fails_by_itself("read")
        assert self.tiers[frame] in (Tier.DEVICE, Tier.HOST)
        assert not self._writing[frame], f"frame {frame} is read while it is written"
        return self.frames[frame].reshape(-1).copy()

    def write(self, frame: int, data: np.ndarray) -> None:
        self._fails_by_itself("write")
        assert self.tiers[frame] in (Tier.DEVICE, Tier.HOST)
        assert data.dtype == np.uint8 and data.shape == (self.geometry.frame_bytes,)
        assert not self._writing[frame] and not self._reading[frame], f"frame {frame} is used by a copy"
        self.frames[frame] = data.reshape(self.geometry.n_stripes, -1).copy()

    # what a step does

    def see(self, slot: int, n_pages: int) -> np.ndarray:
        """The first pages of a slot's window, shape (n_stripes, bytes).

        As layers do it, a stripe each: what is staged of the first one is copied first, and then always that of the
        next one, before this one reads its own. A stage has two areas for that, and a third for the last odd layer.
        """
        size, n_layers = self.geometry.page_bytes, self.geometry.n_stripes
        seen = np.zeros((n_layers, n_pages * size), np.uint8)
        shown = [page for page in range(n_pages) if (slot, page) in self.windows]
        for page in shown:
            frame, _ = self.windows[slot, page]
            assert not self._writing[frame], f"frame {frame} is read while it is written"
            host_too = self.geometry.zero_copy or (slot, page) in self.stages
            assert self.tiers[frame] == Tier.DEVICE or host_too, "a frame of the host cannot be read directly"
        self._copy_staged(slot, shown, 0)
        for layer in range(n_layers):
            self._copy_staged(slot, shown, layer + 1)
            for page in shown:
                stage = self.stages.get((slot, page))
                frame = self.windows[slot, page][0]
                source = self.frames[frame][layer] if stage is None else self.frames[stage][self._area(layer)]
                seen[layer, page * size : (page + 1) * size] = source
        for stage in {self.stages[slot, page] for page in shown if (slot, page) in self.stages}:
            self.frames[stage][:] = GARBAGE
        return seen

    def _area(self, layer: int) -> int:
        n_layers = self.geometry.n_stripes
        return 2 if layer == n_layers - 1 and n_layers % 2 and n_layers > 1 else layer % 2

    def _copy_staged(self, slot: int, pages: list[int], layer: int) -> None:
        if layer < self.geometry.n_stripes:
            for page in pages:
                if stage := self.stages.get((slot, page)):
                    self.frames[stage][self._area(layer)] = self.frames[self.windows[slot, page][0]][layer]

    def put(self, slot: int, start: int, data: np.ndarray) -> None:
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

    def _fails_by_itself(self, name: str) -> None:
        self.n_ops += 1
        if self.n_ops in self.fail_ops:
            raise FrameError(f"a test lets {name} fail", 0)

    def _fails(self, op: Op) -> bool:
        if op == Op.CREATE:
            self.n_creates += 1
            return self.n_creates in self.fail_creates
        self.n_ops += 1
        return self.n_ops in self.fail_ops

    def _create(self, frame: int, tier: int, _: int) -> None:
        assert frame >= 0 and frame not in self.frames
        self.tiers[frame] = Tier(tier)
        if tier == Tier.STAGE:
            assert self.geometry.stage_bytes, "there are no stages"
            n_areas = self.geometry.stage_bytes // self.geometry.page_bytes
            self.frames[frame] = np.full((n_areas, self.geometry.page_bytes), GARBAGE, np.uint8)
            return
        self.frames[frame] = np.zeros((self.geometry.n_stripes, self.geometry.page_bytes), np.uint8)
        self._ask(Op.CREATE, frame)

    def _destroy(self, frame: int, _: int, __: int) -> None:
        self._must_be_idle(frame)
        assert frame not in {f for f, _ in self.windows.values()}, f"frame {frame} is mapped"
        assert frame not in self.stages.values(), f"stage {frame} is used"
        if frame in self._created:
            self.wait(self._asked)
        del self.frames[frame], self.tiers[frame]

    def _map(self, slot: int, page: int, frame: int, writable: bool = True) -> None:
        assert 0 <= slot < self.geometry.n_slots and 0 <= page < self.geometry.n_pages and frame in self.frames
        tier = self.tiers[frame]
        assert tier == Tier.DEVICE or (tier == Tier.HOST and self.geometry.zero_copy and not writable)
        before = self.windows.get((slot, page))
        assert before != (frame, writable) or (slot, page) in self.stages, "nothing changes"
        self.stages.pop((slot, page), None)
        if before:
            self._must_be_idle(before[0])
        self.windows[slot, page] = (frame, writable)
        shown = [w for f, w in self.windows.values() if f == frame]
        assert len(shown) == 1 or not any(shown), f"frame {frame} can be written to and is shown twice"

    def _map_shared(self, slot: int, page: int, frame: int) -> None:
        self._map(slot, page, frame, False)

    def _map_staged(self, cell: int, frame: int, stage: int) -> None:
        slot, page = divmod(cell, self.geometry.n_pages)
        assert self.tiers[frame] == Tier.HOST and self.tiers[stage] == Tier.STAGE
        assert stage not in self.stages.values(), f"stage {stage} is used twice"
        if before := self.windows.get((slot, page)):
            self._must_be_idle(before[0])
        self.windows[slot, page], self.stages[slot, page] = (frame, False), stage

    def _unmap(self, slot: int, page: int, _: int) -> None:
        self.stages.pop((slot, page), None)
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
