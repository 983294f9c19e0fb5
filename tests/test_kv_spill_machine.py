"""Bound conversations that do not fit, in any order of operations: the machine of `test_kv_machine`, and spilling."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from pagedrun.kv import POLICIES, PREFETCH_MODES, FrameError, Rates, SpillSettings
from tests.kv_store import SPILLING
from tests.kv_world import World
from tests.test_kv_machine import PART, SMALL, KvMachine

RATES = (
    Rates(),
    Rates(copy=1e3, zero_copy=1e3, decode_s=0.1, prefill_s=1.0),
    Rates(copy=1e2, zero_copy=1e4),
)


class SpillMachine(KvMachine):
    """What a scheduler may do, and spilling, recall, prefetching and pressure at any time."""

    @initialize(
        geometry=st.sampled_from(sorted(SPILLING)),
        policy=st.sampled_from(sorted(POLICIES)),
        device=st.integers(2, 12),
        host=st.integers(0, 16),
        seed=st.one_of(st.none(), st.integers(0, 99)),
        mode=st.sampled_from(["staged", "zero-copy", "auto", "auto"]),
        prefetch=st.sampled_from(PREFETCH_MODES),
        rates=st.sampled_from(RATES),
        batch=st.integers(1, 4),
        disk=st.sampled_from([0, 0, 3, 20]),
    )
    def begin(self, geometry, policy, device, host, seed, mode, prefetch, rates, batch, disk) -> None:  # type: ignore[no-untyped-def, override]
        spill = SpillSettings(mode=mode, prefetch=prefetch, rates=rates, batch=batch, per_step=batch)
        sizes = {"device": device, "host": host, "disk": disk}
        self.world = World(SPILLING[geometry], **sizes, policy=policy, seed=seed, spill=spill)
        self.given = 0
        for i in range(4):
            self.serve_spilling(self.world.open(), i, 9, 1)

    @rule(which=SMALL, slot=SMALL, n=st.integers(1, 12), write_back=st.integers(0, 3))
    def serve_spilling(self, which: int, slot: int, n: int, write_back: int) -> None:
        """A conversation gets a slot, and goes on with whatever fits."""
        c = self.some(which)
        assert c is not None
        slot %= self.world.geometry.n_slots
        for other in {slot, self.world.known[c].slot} & {r.slot for r in self.world.known.values()} - {None}:
            self.world.unbind(other)
        n = min(n, self.world.geometry.max_tokens - self.world.manager.length(c))
        if self.world.bind(c, slot, spill=True) and self.world.spill(c, n):
            self.world.manager.recall()
            self.world.step()
            self.world.write_back(write_back)
            self.world.compute(c, n)

    @rule(which=SMALL, slot=SMALL, chunks=st.lists(st.integers(1, 5), min_size=4, max_size=12), keep=st.booleans())
    def alone(self, which: int, slot: int, chunks: list[int], keep: bool) -> None:
        """One conversation has everything, and grows until it ends or nothing is left."""
        c, world = self.some(which), self.world
        assert c is not None
        slot %= world.geometry.n_slots
        for other in {r.slot for r in world.known.values()} - {None}:
            world.unbind(other)
        if not world.bind(c, slot, spill=True):
            return
        others = [other for other in world.known if other != c]
        for n in chunks:
            if world.manager.length(c) + n > world.geometry.max_tokens:
                break
            while not (enough := world.spill(c, n)) and others:
                world.truncate(others.pop(), 0)  # as a scheduler does with what rests
            if not enough:
                break
            world.manager.recall()
            world.step()
            world.write_back(1)
            world.compute(c, n)
        if not keep:
            world.unbind(slot)
            for other in world.known:
                if other != c:
                    world.manager.prefetch(world.manager.pages(other))
                    world.see_losses()

    @rule(which=SMALL, n=SMALL)
    def spill(self, which: int, n: int) -> None:
        c = self.some(which, bound=True)
        if c is not None and self.world.manager.length(c) + n <= self.world.geometry.max_tokens:
            self.world.spill(c, n)

    @rule(which=SMALL, prefill=st.booleans())
    def rearrange(self, which: int, prefill: bool) -> None:
        c = self.some(which, bound=True)
        if c is not None:
            self.world.rearrange(c, prefill=prefill)

    @rule()
    def recall(self) -> None:
        self.world.manager.recall()

    @rule(which=SMALL, part=PART)
    def prefetch(self, which: int, part: float) -> None:
        c = self.some(which, bound=False)
        if c is not None:
            pages = self.world.manager.pages(c)
            self.world.manager.prefetch(pages[: round(len(pages) * part)])
            self.world.see_losses()

    @rule(n=st.integers(1, 6))
    def shrink(self, n: int) -> None:
        before = self.world.device.used
        try:
            given = self.world.manager.shrink(n * self.world.geometry.frame_bytes)
        except FrameError:
            assert self.world.store.fail_ops
            return
        assert given == before - self.world.device.used

    @rule(n=st.integers(1, 9))
    def grow(self, n: int) -> None:
        self.world.manager.grow(n * self.world.geometry.frame_bytes)


def test_any_order_of_operations_with_spilling() -> None:
    run_state_machine_as_test(
        SpillMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
