"""A page manager over a store of real bytes, beside a model of what its conversations should hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pagedrun.kv import Budget, DiskSpace, FrameError, PageGeometry, PageManager, SpillSettings, Tier, validate
from pagedrun.kv.ids import ConversationId
from tests.kv_disk import BadFile
from tests.kv_store import FOUR, GARBAGE, GEOMETRY, FakeStore


@dataclass
class Reference:
    """A conversation as it should be. tokens: numbers; touched: bytes of each stripe that need not be zeros."""

    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    touched: int = 0


class World:
    """A manager over a fake store, and what its conversations should hold."""

    def __init__(
        self,
        geometry: PageGeometry = GEOMETRY,
        *,
        device: int = 10,
        host: int = 10,
        policy: str = "clock",
        seed: int | None = None,
        store: FakeStore | None = None,
        spill: SpillSettings | None = None,
        disk: int = 0,
    ) -> None:
        self.geometry = geometry
        self.store = store or FakeStore(geometry, seed=seed)
        self.device, self.host = (Budget(n * geometry.frame_bytes) for n in (device, host))
        self.now = 0.0
        self.file = BadFile(disk, geometry.frame_bytes, lambda: self.now)
        space = DiskSpace(Path(tempfile.gettempdir()), disk * geometry.frame_bytes)
        self.manager = PageManager(
            geometry, self.store, gpu_memory=self.device, swap_space=self.host, policy=policy, spill=spill, disk=space
        )
        self.manager.lower.file = self.file
        self.known: dict[ConversationId, Reference] = {}
        self._next_token = 0

    # operations, each on both

    def open(self) -> ConversationId:
        c = self.manager.open()
        self.known[c] = Reference()
        return c

    def bind(self, c: ConversationId, slot: int, *, spill: bool = False) -> bool:
        bound = self.unchanged_if_false(lambda: self.manager.bind(c, slot))
        if not bound and spill:
            try:
                bound = self.manager.bind(c, slot, spill=True)
            except FrameError:
                assert self.store.fail_ops
                bound = False
        self.see_losses()
        if bound:
            self.known[c].slot = slot
        return bound

    def see_losses(self) -> None:
        """What was lost on the disk is gone here too."""
        for c, reference in self.known.items():
            if self.manager.length(c) < len(reference.tokens):
                assert self.file.fail_reads and self.manager.stats().disk.lost, "it was lost without a reason"
                reference.tokens = reference.tokens[: self.manager.length(c)]
                self._forget_pages(reference)

    def unbind(self, slot: int) -> None:
        self.manager.unbind(slot)
        next(r for r in self.known.values() if r.slot == slot).slot = None

    def append(self, c: ConversationId, n: int) -> bool:
        enough = self.has_room(c, n)
        appended = self.unchanged_if_false(lambda: self.manager.append(c, n))
        assert appended == enough or self.store.fail_creates or self.disk_fails
        return appended

    @property
    def disk_fails(self) -> bool:
        """Whether moving a page to the disk may have failed."""
        return bool(self.file.fail_writes or (self.file.n_slots and self.store.fail_ops))

    def spill(self, c: ConversationId, n: int) -> bool:
        """Append, for which pages may become cold."""
        if self.append(c, n):
            return True
        try:
            spilled = self.manager.spill(c, n)
        except FrameError:
            assert self.store.fail_ops
            spilled = False
        self.validate()
        if spilled:
            assert self.append(c, n) or self.store.fail_creates or self.disk_fails
        return spilled and bool(self.manager.append(c, n))

    def rearrange(self, c: ConversationId, *, prefill: bool) -> None:
        """Have its cold pages lie as suits what comes."""
        try:
            bound = self.manager.rearrange(c, prefill=prefill)
            assert bound or self.store.fail_creates or self.disk_fails or self.file.n_slots
        except FrameError:
            assert self.store.fail_ops
            bound = self.manager.is_bound(c)
        self.see_losses()
        if not bound:
            self.known[c].slot = None

    def step(self) -> None:
        """Flush, again where the store failed, and look at all that a step could read."""
        while not self.tried(self.manager.flush):
            self.validate()
        self.check()

    def write_back(self, n: int) -> None:
        made = self.store.n_made
        self.tried(lambda: self.manager.write_back(n))
        assert self.store.n_made == made, "a step had to wait for a frame"

    def tried(self, operation: Callable[[], object]) -> bool:
        """Whether an operation went well; it may fail where a test wants the store to."""
        try:
            operation()
        except FrameError:
            assert self.store.fail_ops
            return False
        return True

    def extend(self, c: ConversationId, n: int) -> bool:
        """Append, flush, compute, commit."""
        if not self.append(c, n):
            return False
        self.step()
        self.compute(c, n)
        return True

    def compute(self, c: ConversationId, n: int) -> None:
        """Write n tokens into room that is there, and commit."""
        reference = self.known[c]
        assert reference.slot is not None
        start = len(reference.tokens)
        reference.tokens += range(self._next_token, self._next_token + n)
        self._next_token += n
        data = self.bytes_of(reference.tokens)[:, start * self.geometry.row_bytes :]
        self.store.put(reference.slot, start * self.geometry.row_bytes, data)
        self.manager.commit(c, n)
        reference.touched = max(reference.touched, len(reference.tokens) * self.geometry.row_bytes)

    def truncate(self, c: ConversationId, n: int) -> None:
        self.manager.truncate(c, n)
        self.known[c].tokens = self.known[c].tokens[:n]
        self._forget_pages(self.known[c])

    def fork(self, c: ConversationId, n: int) -> ConversationId | None:
        boundary = self.manager.pages(c)[self.geometry.full_pages(n) : self.geometry.pages_for(n)]
        if self.manager.lower.on_disk_only(boundary).any():
            child = self.manager.fork(c, n)  # it goes to the host first
            self.see_losses()
        else:
            child = self.unchanged_if_false(lambda: self.manager.fork(c, n))
        if child is not None:
            parent = self.known[c]
            self.known[child] = Reference(parent.tokens[:n], None, parent.touched)
            self._forget_pages(self.known[child])
        return child

    def free(self, c: ConversationId) -> None:
        self.manager.free(c)
        del self.known[c]

    # checks

    def check(self) -> None:
        """Every bound conversation is in its slot's window, to the byte, and beyond it are zeros."""
        for c, reference in self.known.items():
            if reference.slot is not None:
                n_pages = len(self.manager.pages(c))
                seen = self.store.see(reference.slot, n_pages)
                expected = self.bytes_of(reference.tokens)
                assert np.array_equal(seen[:, : expected.shape[1]], expected), f"conversation {c} is wrong"
                assert not seen[:, reference.touched :].any(), f"conversation {c} has a frame that was not cleared"
                assert not (seen[:, expected.shape[1] :] == GARBAGE).any()

    def validate(self) -> None:
        """The manager agrees with itself, with the reference and with the store."""
        validate(self.manager)
        assert {c: self.manager.length(c) for c in self.known} == {c: len(r.tokens) for c, r in self.known.items()}
        assert self.store.wanted == self.manager.residency.host.ordered
        taken = self.store.count(Tier.STAGE) * self.geometry.stage_bytes
        for tier, budget in ((Tier.DEVICE, self.device), (Tier.HOST, self.host)):
            assert taken + self.store.count(tier) * self.geometry.frame_bytes <= budget.used <= budget.limit
            taken = self.store.wanted * self.geometry.frame_bytes
        there = self.manager.windows.there.reshape(-1, self.geometry.n_pages)
        known = {(int(s), int(p)): int(there[s, p]) for s, p in np.argwhere(there >= 0)}
        assert known == {cell: frame for cell, (frame, _) in self.store.windows.items() if there[cell] != -2}
        for (slot, page), stage in self.store.stages.items():
            assert there[slot, page] == -2 or self.manager.windows.stage_there(slot, page) == stage

    def has_room(self, c: ConversationId, n: int) -> bool:
        """Whether append should succeed, by counting."""
        m, t, g = self.manager, self.manager.table, self.geometry
        pages = m.pages(c)
        length = m.length(c)
        edge = g.full_pages(length)
        need = max(g.pages_for(length + n) - len(pages), 0)
        if edge < len(pages) and t.sealed[pages[edge]]:
            need += bool(t.refs[pages[edge]] > 1 or t.device[pages[edge]] < 0)
        there = t.device[: t.top] >= 0
        copied, pinned = t.host[: t.top] >= 0, t.pins[: t.top] > 0
        stored = t.disk[: t.top] >= 0
        low = copied & ~there & ~pinned
        slots = self.file.n_slots - self.file.used + int((stored & pinned & (there | copied)).sum())
        below = int((low & stored).sum()) + (slots if self.file.willing else 0)
        host = m.residency.host.obtainable + int((there & copied & pinned).sum()) + below
        saved = copied | stored
        evictable = int((there & saved & ~pinned).sum()) + min(int((there & ~saved & ~pinned).sum()), host)
        return need <= m.residency.device.obtainable + evictable

    def unchanged_if_false(self, operation: Callable[[], Any]) -> Any:
        before, troubles = self.state(), self.file.troubles
        result = operation()
        if (result is None or result is False) and troubles == self.file.troubles:
            fails = self.file.n_slots and self.store.fail_ops
            assert fails or self.state() == before, "it said no and changed something"
        return result

    def state(self) -> tuple[object, ...]:
        """All that a refused operation must leave alone."""
        m = self.manager
        t = m.table
        columns = (t.index, t.device, t.host, t.disk, t.refs, t.pins, t.sealed, m.windows.frame, m.windows.writable)
        conversations = [
            (c.id, c.length, c.n_sealed, c.slot, c.bound, c.pages.tolist()) for c in m.conversations.values()
        ]
        return (
            *(column.tobytes() for column in columns),
            conversations,
            m.residency.device.used,
            m.residency.host.used,
        )

    def bytes_of(self, tokens: list[int]) -> np.ndarray:
        """What the KV of these tokens is, shape (n_stripes, bytes)."""
        g = self.geometry
        numbers = np.array(tokens, np.int64)[None, :, None] * 31 + np.arange(len(tokens))[None, :, None] * 17
        rows = numbers + np.arange(g.n_stripes)[:, None, None] * 3 + np.arange(g.row_bytes)[None, None, :] * 7
        return (rows % 200 + 1).astype(np.uint8).reshape(g.n_stripes, -1)

    def _forget_pages(self, reference: Reference) -> None:
        n_pages = self.geometry.pages_for(len(reference.tokens))
        reference.touched = min(reference.touched, n_pages * self.geometry.page_bytes)


def four(**kind: Any) -> World:
    """A world with four tokens to a page."""
    return World(FOUR, **kind)


def served(w: World, slot: int, n: int) -> ConversationId:
    """A conversation of n tokens, bound."""
    c = w.open()
    assert w.bind(c, slot) and w.extend(c, n)
    w.validate()
    return c


def device(w: World, c: ConversationId) -> list[int]:
    return w.manager.table.device[w.manager.pages(c)].tolist()


def host(w: World, c: ConversationId) -> list[int]:
    return w.manager.table.host[w.manager.pages(c)].tolist()


def refs(w: World, c: ConversationId) -> list[int]:
    return w.manager.table.refs[w.manager.pages(c)].tolist()
