"""Long runs at random over few frames: what a machine that starts afresh every fifty steps seldom gets to.

One or two conversations are bound and grow beyond the device, rest, come back, are cut and shared; memory is taken
away and given back; the store fails now and then. Every byte of a window is compared, as in `test_kv_machine`.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pagedrun.kv import POLICIES, Rates, SpillSettings
from tests.kv_store import SPILLING
from tests.kv_world import World

RATES = (Rates(), Rates(copy=1e3, zero_copy=1e3, decode_s=0.2), Rates(copy=1e2, zero_copy=1e4))


class Walk:
    """A world, and what happens to it."""

    def __init__(self, name: str, seed: int, disk: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        spill = SpillSettings(
            mode=rng.choice(["staged", "zero-copy", "auto"]),
            prefetch=rng.choice(["sequential", "associative", "hybrid", "hybrid"]),
            rates=rng.choice(RATES),
            batch=rng.randint(1, 3),
            per_step=rng.randint(1, 3),
        )
        self.world = World(
            SPILLING[name],
            device=rng.randint(4, 10),
            host=rng.randint(6, 12 if disk else 30),
            disk=disk,
            policy=rng.choice(sorted(POLICIES)),
            seed=seed if rng.random() < 0.7 else None,
            spill=spill,
        )
        for _ in range(4):
            self.world.open()

    def step(self) -> None:
        """One thing, weighted towards growing."""
        rng, file = self.rng, self.world.file
        self.world.now += 10
        if rng.random() < 0.04:
            if file.n_slots:
                file.fail_reads.add(file.n_reads + rng.randint(1, 9))
                file.fail_writes.add(file.n_writes + rng.randint(1, 9))
            store = self.world.store
            store.fail_creates = {store.n_creates + rng.randint(1, 4)} if rng.random() < 0.3 else set()
            store.fail_ops = {store.n_ops + rng.randint(1, 20)} if rng.random() < 0.5 else set()
        what = rng.choices(
            (self.grow, self.let_go, self.bind, self.ahead, self.pressure, self.cut, self.share),
            (6, 6, 8, 3, 1, 1, 1) if file.n_slots else (12, 2, 3, 2, 1, 1, 1),
        )[0]
        what()
        self.world.validate()

    def pick(self, *, bound: bool) -> int | None:
        some = [c for c, r in self.world.known.items() if (r.slot is not None) == bound]
        return self.rng.choice(some) if some else None

    def grow(self) -> None:
        w, c = self.world, self.pick(bound=True)
        if c is None:
            self.bind()
            return
        for _ in range(self.rng.randint(1, 6)):
            n = self.rng.choice([1, 1, 1, 3])
            if w.manager.length(c) + n > w.geometry.max_tokens or not w.spill(c, n):  # type: ignore[arg-type]
                self.make_place(c)
                return
            w.tried(w.manager.recall)
            w.step()
            w.write_back(self.rng.randint(0, 2))
            w.compute(c, n)  # type: ignore[arg-type]

    def make_place(self, but: int) -> None:
        """What a scheduler does at the end: somebody's pages go."""
        others = [c for c in self.world.known if c != but and self.world.manager.length(c)]
        if others:
            self.world.truncate(self.rng.choice(others), 0)
        else:
            self.world.truncate(but, self.world.manager.length(but) // 2)  # type: ignore[arg-type]

    def let_go(self) -> None:
        if (c := self.pick(bound=True)) is not None:
            self.world.unbind(self.world.known[c].slot)  # type: ignore[arg-type, index]

    def bind(self) -> None:
        c = self.pick(bound=False)
        free = set(range(self.world.geometry.n_slots)) - {r.slot for r in self.world.known.values()}
        if c is not None and len(free) > 1 and self.world.bind(c, min(free), spill=True):  # type: ignore[arg-type]
            self.world.step()

    def ahead(self) -> None:
        if (c := self.pick(bound=False)) is not None:
            pages = self.world.manager.pages(c)  # type: ignore[arg-type]
            if self.rng.random() < 0.5:
                self.world.manager.demote(pages)
            self.world.manager.prefetch(pages)
            self.world.see_losses()
            if self.rng.random() < 0.5:
                self.world.store.drift()
                self.world.tried(self.world.manager.flush)
                self.bind()

    def pressure(self) -> None:
        manager, size = self.world.manager, self.world.geometry.frame_bytes
        if self.rng.random() < 0.4:
            self.world.tried(lambda: manager.shrink(self.rng.randint(1, 3) * size))
        else:
            manager.grow(self.rng.randint(1, 9) * size)

    def cut(self) -> None:
        c = self.rng.choice(list(self.world.known))
        self.world.truncate(c, round(self.world.manager.length(c) * self.rng.random()))

    def share(self) -> None:
        c = self.rng.choice(list(self.world.known))
        if len(self.world.known) > 6:
            self.world.free(c)
        elif self.world.manager.length(c):
            self.world.fork(c, round(self.world.manager.length(c) * self.rng.choice([1.0, 0.5])))


@pytest.mark.parametrize("disk", [0, 30])
@pytest.mark.parametrize("name", sorted(SPILLING))
def test_a_long_walk(name: str, disk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        walk = Walk(name, seed, disk)
        for _ in range(250):
            walk.step()
        walk.world.store.fail_ops = {0}
        walk.world.store.fail_creates = set()
        walk.world.step()
        stats = walk.world.manager.stats()
        seen.update(
            spilled=stats.spill.spilled,
            recalled=stats.spill.recalled,
            hits=stats.prefetch.hits,
            late=stats.prefetch.late,
            wasted=stats.prefetch.wasted,
            written=stats.disk.written,
            read=stats.disk.read,
            lost=stats.disk.lost,
            refused=walk.world.file.refused != "",
            staged=sum(op == 7 for ops in walk.world.store.log for op, *_ in ops),
        )
        for c in list(walk.world.known):
            walk.world.free(c)
        walk.world.manager.trim()
        walk.world.store.wait(walk.world.store.fence())
        walk.world.manager.trim()
        walk.world.validate()
        assert not walk.world.store.frames and not walk.world.store.windows
    assert seen["spilled"] > 50 and seen["recalled"] and seen["wasted"], seen
    assert disk or seen["hits"] + seen["late"], seen
    assert not disk or (seen["written"] > 50 and seen["read"] and seen["lost"] and seen["refused"]), seen
    assert bool(seen["staged"]) == SPILLING[name].stages_pay, seen
