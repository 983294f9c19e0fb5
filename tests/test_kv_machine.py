"""The page manager against a simple model: conversations are lists of tokens, and every byte of a window is compared.

The store of `tests.kv_store` has real bytes, copies them late, and refuses whatever would go wrong on a device.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagedrun.errors import ContextLengthError
from pagedrun.kv import POLICIES
from pagedrun.kv.ids import ConversationId
from tests.kv_store import GEOMETRIES
from tests.kv_world import World

SMALL = st.integers(0, 7)
PART = st.sampled_from([1.0, 0.9, 0.7, 0.5, 0.2, 0.0])


class KvMachine(RuleBasedStateMachine):
    """Anything a scheduler may do, in any order, with few frames."""

    @initialize(
        geometry=st.sampled_from(sorted(GEOMETRIES)),
        policy=st.sampled_from(sorted(POLICIES)),
        device=st.integers(3, 14),
        host=st.integers(0, 12),
        seed=st.one_of(st.none(), st.integers(0, 99)),
        disk=st.sampled_from([0, 0, 2, 5, 20]),
    )
    def begin(self, geometry: str, policy: str, device: int, host: int, seed: int | None, disk: int) -> None:
        self.world = World(GEOMETRIES[geometry], device=device, host=host, policy=policy, seed=seed, disk=disk)
        for _ in range(4):
            self.serve(self.world.open(), 0, 9, 1)

    def some(self, which: int, *, bound: bool | None = None) -> ConversationId | None:
        """The which-th conversation, among those bound or not."""
        known = [c for c, r in self.world.known.items() if bound in (None, r.slot is not None)]
        return known[which % len(known)] if known else None

    @precondition(lambda self: len(self.world.known) < 8)
    @rule()
    def open(self) -> None:
        self.world.open()

    @rule(which=SMALL, slot=SMALL)
    def bind(self, which: int, slot: int) -> None:
        c = self.some(which, bound=False)
        slot %= self.world.geometry.n_slots
        if c is not None and all(r.slot != slot for r in self.world.known.values()):
            self.world.bind(c, slot)

    @rule(which=SMALL, slot=SMALL, n=st.integers(1, 12), write_back=st.integers(0, 3))
    def serve(self, which: int, slot: int, n: int, write_back: int) -> None:
        """A conversation gets a slot, whoever had it, and goes on by n tokens or by as many as its window holds."""
        c = self.some(which)
        assert c is not None
        slot %= self.world.geometry.n_slots
        for other in {slot, self.world.known[c].slot} & {r.slot for r in self.world.known.values()} - {None}:
            self.world.unbind(other)
        n = min(n, self.world.geometry.max_tokens - self.world.manager.length(c))
        if self.world.bind(c, slot) and self.world.append(c, n):
            self.world.step()
            self.world.write_back(write_back)
            self.world.compute(c, n)

    @rule(which=SMALL)
    def unbind(self, which: int) -> None:
        c = self.some(which, bound=True)
        if c is not None:
            slot = self.world.known[c].slot
            assert slot is not None
            self.world.unbind(slot)

    @rule(numbers=st.lists(st.integers(0, 6), min_size=3, max_size=3), write_back=st.integers(0, 3))
    def step(self, numbers: list[int], write_back: int) -> None:
        """Several conversations at once, and copies to the host meanwhile."""
        world, chunks = self.world, {}
        bound = [c for c, r in world.known.items() if r.slot is not None]
        for c, n in zip(bound, numbers, strict=False):
            try:
                if world.append(c, n):
                    chunks[c] = n
            except ContextLengthError:
                assert world.geometry.pages_for(world.manager.length(c) + n) > world.geometry.n_pages
        world.step()
        world.write_back(write_back)
        for c, n in chunks.items():
            world.compute(c, n)

    @rule(which=SMALL, n=SMALL)
    def append_only(self, which: int, n: int) -> None:
        """Room that is not used, or not at once."""
        c = self.some(which, bound=True)
        if c is not None and self.world.manager.length(c) + n <= self.world.geometry.max_tokens:
            self.world.append(c, n)

    @rule(which=SMALL, part=PART, slot=SMALL, n=st.integers(1, 12), share=st.booleans(), write_back=st.integers(0, 3))
    def answer_again(self, which: int, part: float, slot: int, n: int, share: bool, write_back: int) -> None:
        """A conversation goes on from an earlier token; perhaps somebody else goes on from the later ones."""
        c = self.some(which)
        assert c is not None
        length = self.world.manager.length(c)
        if share and len(self.world.known) < 8:
            self.world.fork(c, length)
        length = self.world.manager.length(c)  # sharing reads what is on disk, and a page may be lost there
        self.world.truncate(c, round(length * part))
        self.serve(list(self.world.known).index(c), slot, n, write_back)

    @rule(which=SMALL, part=PART)
    def truncate(self, which: int, part: float) -> None:
        c = self.some(which)
        if c is not None:
            self.world.truncate(c, round(self.world.manager.length(c) * part))

    @precondition(lambda self: len(self.world.known) < 8)
    @rule(which=SMALL, part=PART)
    def fork(self, which: int, part: float) -> None:
        c = self.some(which)
        if c is not None:
            self.world.fork(c, round(self.world.manager.length(c) * part))

    @precondition(lambda self: len(self.world.known) > 5)
    @rule(which=SMALL)
    def free(self, which: int) -> None:
        c = self.some(which)
        if c is not None:
            self.world.free(c)

    @rule(which=SMALL, every=st.integers(1, 3))
    def demote(self, which: int, every: int) -> None:
        c = self.some(which, bound=False)
        if c is not None:
            self.world.manager.demote(self.world.manager.pages(c)[::every])

    @rule(which=SMALL, every=st.integers(1, 3))
    def promote(self, which: int, every: int) -> None:
        c = self.some(which)
        if c is not None:
            pages = self.world.manager.pages(c)[::every]
            self.world.unchanged_if_false(lambda: self.world.manager.promote(pages))
            self.world.see_losses()

    @rule(which=SMALL, part=PART, size=st.integers(1, 150))
    def snapshot(self, which: int, part: float, size: int) -> None:
        c = self.some(which)
        if c is not None:
            position = round(self.world.manager.length(c) * part)
            kept = self.world.manager.snapshots.add(c, position, b"", size)
            best = self.world.manager.snapshots.best(c, position)
            assert not kept or (best is not None and best.position == position)

    @rule()
    def flush(self) -> None:
        self.world.step()

    @rule(creates=st.booleans(), after=st.integers(1, 20))
    def trouble_ahead(self, creates: bool, after: int) -> None:
        """The store is going to fail, once."""
        store = self.world.store
        if creates:
            store.fail_creates = {store.n_creates + after}
        else:
            store.fail_ops = {store.n_ops + after}

    @precondition(lambda self: self.world.file.n_slots)
    @rule(reads=st.booleans(), after=st.integers(1, 3))
    def disk_trouble_ahead(self, reads: bool, after: int) -> None:
        """The disk is going to be full for once, or to forget a page."""
        file = self.world.file
        if reads:
            file.fail_reads.add(file.n_reads + after)
        else:
            file.fail_writes.add(file.n_writes + after)

    @precondition(lambda self: self.world.file.n_slots)
    @rule(n=st.integers(1, 6))
    def sink(self, n: int) -> None:
        self.world.manager.sink(n)

    @rule()
    def time_passes(self) -> None:
        self.world.now += 25
        self.world.store.drift()
        self.world.manager.poll()

    @invariant()
    def valid(self) -> None:
        self.world.validate()

    def teardown(self) -> None:
        """Everything comes back."""
        if not hasattr(self, "world") or self.world.store.broken:
            return
        world = self.world
        world.step()
        for c in list(world.known):
            world.free(c)
        world.step()
        world.store.wait(world.store.fence())
        world.manager.poll()
        world.validate()
        stats = world.manager.stats()
        assert (stats.device.used, stats.host.used, stats.pages, stats.snapshots) == (0, 0, 0, 0)
        assert stats.disk.used == 0
        assert not world.store.windows


def test_any_order_of_operations() -> None:
    """At least 10,000 steps: each example has as many as it may, unless a failure is being narrowed down."""
    run_state_machine_as_test(
        KvMachine,
        settings=settings(
            max_examples=220,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
