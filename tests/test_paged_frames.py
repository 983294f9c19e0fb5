"""The page manager over real frames of the CPU: contents of pages, failures while frames are made, memory in use."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from pagedrun.kv import POLICIES, FrameError, Tier, validate
from pagedrun.kv.layout import Layout
from pagedrun.native.frames import NativeFrames
from pagedrun.native.library import Library
from tests.kv_store import FakeStore
from tests.kv_world import World
from tests.paged_models import ALL_LAYERS, Paged, likeliest, loaded, paged, rows, tokens_of
from tests.test_kv_machine import KvMachine

pytestmark = pytest.mark.real

MIB = 1 << 20


class RealStore(FakeStore):
    """Native frames beside the fake's: the fake watches over the rules and says what every frame must hold."""

    def __init__(self, frames: NativeFrames) -> None:
        super().__init__(frames.geometry)
        self.real = frames

    def apply(self, ops: np.ndarray) -> None:
        try:
            super().apply(ops)
        except FrameError as e:
            self.real.apply(ops[: e.done])
            raise
        self.real.apply(ops)
        self.wait(self.fence())  # native frames of the CPU are copied at once

    def read(self, frame: int) -> np.ndarray:
        data = super().read(frame)
        assert np.array_equal(self.real.read(frame), data)
        return data

    def write(self, frame: int, data: np.ndarray) -> None:
        super().write(frame, data)
        self.real.write(frame, data)

    def see(self, slot: int, n_pages: int) -> np.ndarray:
        seen, size = super().see(slot, n_pages), self.geometry.page_bytes
        for page in range(n_pages):
            if (slot, page) in self.windows:
                frame = self.windows[slot, page][0]
                assert np.array_equal(self.contents(frame), seen[:, page * size : (page + 1) * size])
        return seen

    def put(self, slot: int, start: int, data: np.ndarray) -> None:
        super().put(slot, start, data)
        size = self.geometry.page_bytes
        for page in range(start // size, math.ceil((start + data.shape[1]) / size)):
            frame = self.windows[slot, page][0]
            self.real.write(frame, self.frames[frame])

    def contents(self, frame: int) -> np.ndarray:
        return self.real.read(frame).reshape(self.geometry.n_stripes, -1)

    def clear(self) -> None:
        """Destroy what is left, for the next example."""
        for slot, page in list(self.windows):
            self.real.apply(np.array([[4, slot, page, 0]]))
        for frame in self.frames:
            self.real.apply(np.array([[1, frame, 0, 0]]))
        assert (self.real.n_frames(Tier.DEVICE), self.real.n_frames(Tier.HOST)) == (0, 0)


@pytest.fixture(scope="module", params=[Layout(4096, 0), Layout(16_384, ALL_LAYERS)], ids=["stock", "slabs"])
def frames(request: pytest.FixtureRequest, library: Library, tiny_dense: Path) -> Iterator[NativeFrames]:
    """Rows of 1,088 bytes in eight stripes, or of 8,704 in one: neither divides a page."""
    with (
        loaded(library, tiny_dense, kv_types=("q8_0", "q8_0"), n_cells=256) as model,
        paged(model, request.param, device=1) as side,
    ):
        yield side.frames


class RealMachine(KvMachine):
    """The same rules over native frames."""

    frames: ClassVar[NativeFrames]

    @initialize(policy=st.sampled_from(sorted(POLICIES)), device=st.integers(3, 14), host=st.integers(0, 12))
    def begin(self, policy: str, device: int, host: int) -> None:  # type: ignore[override]
        store = RealStore(self.frames)
        self.world = World(store.geometry, device=device, host=host, policy=policy, store=store)
        for _ in range(4):
            self.serve(self.world.open(), 0, 9, 1)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "world"):
                assert isinstance(self.world.store, RealStore)
                self.world.store.clear()


def test_any_order_of_operations(frames: NativeFrames) -> None:
    RealMachine.frames = frames
    run_state_machine_as_test(
        RealMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def scenario(side: Paged) -> list[bytes]:
    """Two conversations and a fork on a device with room for one and a half: everything moves at least once."""
    manager = side.manager
    a, b = manager.open(), manager.open()
    logits = [side.feed(a, 0, tokens_of(1, 40)), side.feed(b, 1, tokens_of(2, 40))]
    fork = manager.fork(a, 21)
    assert fork is not None
    logits += [side.feed(fork, 2, [7]), side.feed(a, 0, [8]), side.feed(b, 1, [9])]
    for c in (a, b, fork):
        manager.free(c)
    return logits


def test_making_frames_fails_at_every_place(library: Library, tiny_dense: Path) -> None:
    """A frame is one piece per stripe, and each may be what fails: nothing may stay half made, nothing be wrong."""
    with ExitStack() as stack:
        model = stack.enter_context(loaded(library, tiny_dense, n_cells=256))
        side = stack.enter_context(paged(model, Layout(4096, 0), device=60, host=60))
        expected = scenario(side)
        assert side.manager.trim() > 0
        n_calls, failed = 0, True
        while failed:
            n_calls += 1
            assert n_calls < 1000
            side.manager.residency.device.refused = side.manager.residency.host.refused = ""
            side.frames.fail_at(n_calls)
            try:
                assert scenario(side) == expected
            except AssertionError as e:
                assert "too few frames" in str(e) or "fork is not None" in str(e)
                for slot, shown in enumerate(side.manager.shown):
                    if shown is not None and shown.bound:
                        side.manager.unbind(slot)
                for c in list(side.manager.conversations):
                    side.manager.free(c)
            failed = bool(side.manager.stats().device.refused or side.manager.stats().host.refused)
            if failed:
                assert (
                    "a frame cannot be made" in side.manager.stats().device.refused + side.manager.stats().host.refused
                )
            side.manager.flush()
            validate(side.manager)
            for tier in (Tier.DEVICE, Tier.HOST):
                pool = side.manager.residency.device if tier == Tier.DEVICE else side.manager.residency.host
                assert side.frames.n_frames(tier) == pool.created
            side.manager.trim()
            assert side.frames.n_frames(Tier.DEVICE) == side.frames.n_frames(Tier.HOST) == 0
        side.frames.fail_at(0)
        assert n_calls > side.geometry.n_stripes * 40


def shared_memory() -> int:
    """Bytes of shared memory that this process has in RAM: what frames of the CPU are."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem"))


def test_memory_grows_with_tokens_and_comes_back(library: Library, tiny_dense: Path) -> None:
    """16 KiB per token; three slots of 65,536 tokens would be 3 GiB."""
    with ExitStack() as stack:
        model = stack.enter_context(loaded(library, tiny_dense, n_cells=65_536))
        before = shared_memory()
        side = stack.enter_context(paged(model, Layout(1 << 16, 0), device=200, n_kv_reserve=4096))
        c = side.manager.open()
        for n in (256, 512, 1024):
            side.feed(c, 0, tokens_of(n, n - side.manager.length(c)))
            assert side.frames.n_frames(Tier.DEVICE) == side.geometry.pages_for(n)
            written = side.geometry.pages_for(n) * side.geometry.frame_bytes
            assert n * 16_384 <= written <= n * 16_384 + side.geometry.frame_bytes
            assert 0.9 * written <= shared_memory() - before <= 1.1 * written + 4 * MIB
        side.manager.free(c)
        side.manager.trim()
        assert side.frames.n_frames(Tier.DEVICE) == 0
        assert shared_memory() - before <= 4 * MIB


def test_forty_conversations_with_one_long_beginning_cost_one(library: Library, tiny_hybrid: Path) -> None:
    """8,192 tokens that all share, and for each a page of its own and the recurrent state in the slot."""
    prefix, n = tokens_of(1, 8192), 40
    with ExitStack() as stack:
        model = stack.enter_context(loaded(library, tiny_hybrid, n_cells=8448, batch=512))
        side = stack.enter_context(paged(model, Layout(1 << 16, ALL_LAYERS), device=400))
        parent = side.manager.open()
        side.feed(parent, 0, prefix[:8191])
        state = side.save(0)
        used = side.manager.stats().device.used
        assert used == side.geometry.pages_for(8191) == 128
        children = [side.manager.fork(parent, 8191) for _ in range(n)]
        logits = {
            side.feed(c, 0, prefix[8191:]) for c in [*children, parent] if not side.load(0, state) and c is not None
        }
        assert len(logits) == 1, "they do not all see the same"
        stats = side.manager.stats()
        assert (stats.conversations, stats.shared_pages) == (n + 1, 127)
        assert stats.device.used == used + n
        assert side.frames.n_frames(Tier.DEVICE) == used + n


def test_what_a_shared_page_holds_stays(library: Library, tiny_dense: Path) -> None:
    """Children write beside and behind each other; no byte of the others' pages changes."""
    with ExitStack() as stack:
        model = stack.enter_context(loaded(library, tiny_dense, n_cells=256))
        side = stack.enter_context(paged(model, Layout(4096, 0), device=300, host=300))
        parent = side.manager.open()
        answer = side.feed(parent, 0, tokens_of(1, 61))
        before = rows(side, parent)
        rng = random.Random(1)
        for i in range(12):
            child = side.manager.fork(parent, rng.randrange(20, 61))
            assert child is not None
            side.feed(child, rng.randrange(3), [likeliest(answer), i])
            side.shuffle(rng)
        assert np.array_equal(rows(side, parent), before)
