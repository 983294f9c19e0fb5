"""A runner whose tokens lie in frames of a fake store: whoever is shown a wrong page computes a wrong answer.

A row is a token and its position. What the runner "computes" from is what it reads out of its slot's window; beside it
there is a recurrent state, the hash of all tokens so far, for the kind of model that cannot go back.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pagedrun.engine import Engine, Submit
from pagedrun.kv import Budget, DiskSpace, PageGeometry, PageManager, SpillSettings, validate
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest, RequestId, TextDelta
from pagedrun.scheduling import Sequence
from pagedrun.slots import PagedSettings, PagedSlots
from pagedrun.step import Chunk, RunnerLimits, Slot
from tests.fakes import FakeRunner
from tests.kv_disk import BadFile
from tests.kv_store import FakeStore

#: Six tokens to a page, in two stripes.
GEOMETRY = PageGeometry(page_bytes=24, row_bytes=4, n_stripes=2, n_pages=12, n_slots=4)
LIMITS = RunnerLimits(max_num_seqs=4, max_seq_len=60, max_batch_tokens=16)

#: The same over eight stripes, with stages that take a quarter of what a page does.
STAGED = PageGeometry(page_bytes=24, row_bytes=4, n_stripes=8, n_pages=12, n_slots=4, stage_bytes=48, zero_copy=False)


def state_of(tokens: list[int]) -> int:
    """The recurrent state after these tokens."""
    return functools.reduce(lambda state, token: (state * 31 + token + 1) % (1 << 61), tokens, 7)


def answer(tokens: list[int], n_prompt: int) -> int:
    """A letter that depends on every token so far."""
    return ord("a") + state_of(tokens) % 26


class PagedFakeRunner(FakeRunner):
    """See the module. `kv` is what llama.cpp knows of a slot: which positions it holds."""

    def __init__(self, store: FakeStore, limits: RunnerLimits = LIMITS, *, can_rewind: bool = True) -> None:
        super().__init__(limits, answer, can_rewind=can_rewind)
        self.store = store
        self.states = {slot: state_of([]) for slot in self.kv}
        self.computed = 0

    def trim(self, slot: Slot, length: int) -> int:
        kept = super().trim(slot, length)
        if kept == 0:
            self.states[slot] = state_of([])
        return kept

    def snapshot(self, slot: Slot) -> bytes:
        return b"" if self.can_rewind else self.states[slot].to_bytes(8, "little")

    def restore(self, slot: Slot, snapshot: bytes, length: int) -> bool:
        assert self.can_rewind == (not snapshot)
        self.states[slot] = int.from_bytes(snapshot, "little")
        self.kv[slot] = [0] * length
        return True

    def compute(self, chunk: Chunk) -> list[int]:
        geometry = self.store.geometry
        rows = np.array([chunk.tokens, range(chunk.start, chunk.start + len(chunk.tokens))], "<u2").T
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(1, -1)
        self.store.put(chunk.slot, chunk.start * geometry.row_bytes, np.repeat(data, geometry.n_stripes, 0))
        length = chunk.start + len(chunk.tokens)
        seen = self.store.see(chunk.slot, geometry.pages_for(length))[:, : length * geometry.row_bytes]
        assert (seen == seen[0]).all(), "the stripes are not of one page"
        tokens, positions = np.ascontiguousarray(seen[0]).view("<u2").reshape(length, 2).T
        assert positions.tolist() == list(range(length)), f"slot {chunk.slot} shows pages in a wrong order"
        self.computed += len(chunk.tokens)
        self.kv[chunk.slot] = tokens.tolist()
        for token in chunk.tokens:
            self.states[chunk.slot] = (self.states[chunk.slot] * 31 + token + 1) % (1 << 61)
        state = state_of(tokens.tolist())
        assert self.can_rewind or self.states[chunk.slot] == state, "the recurrent state is of other tokens"
        return self.kv[chunk.slot]


class PagedEngine:
    """An engine over paged slots, turned by hand; the manager is checked before and after every step."""

    def __init__(
        self,
        *,
        device: int,
        host: int = 0,
        can_rewind: bool = True,
        interval: int = 8,
        limits: RunnerLimits = LIMITS,
        seed: int | None = None,
        spill: SpillSettings | None = None,
        geometry: PageGeometry = GEOMETRY,
        watch: Callable[[], int] = lambda: 0,
        disk: int = 0,
        worth: int = 3,
        apart: int = 0,
        max_tokens: int = 1000,
    ) -> None:
        self.store = FakeStore(geometry, seed=seed)
        self.runner = PagedFakeRunner(self.store, limits, can_rewind=can_rewind)
        memory, swap = (Budget(n * geometry.frame_bytes) for n in (device, host))
        self.file = BadFile(disk, geometry.frame_bytes)
        space = DiskSpace(Path(tempfile.gettempdir()), disk * geometry.frame_bytes)
        self.manager = PageManager(geometry, self.store, gpu_memory=memory, swap_space=swap, spill=spill, disk=space)
        self.manager.lower.file = self.file
        check = functools.partial(validate, self.manager)
        settings = PagedSettings(
            snapshot_interval=interval,
            snapshots_apart=apart,
            max_tokens=max_tokens,
            check=check,
            watch=watch,
            watch_steps=2,
            worth=worth,
        )
        self.slots = PagedSlots(self.runner, self.manager, settings)
        self.engine = Engine(self.runner, self.slots, prefill_chunk=8)
        self.scheduler = self.engine._scheduler
        self.events: list[list[Event]] = []

    def submit(self, prompt: str, n: int = 6, priority: int = 0) -> list[Event]:
        """Ask for `n` tokens; the events come into the list."""
        events: list[Event] = []
        request = GenerationRequest(prompt=tuple(prompt.encode()), max_tokens=n, priority=priority)
        self.engine._carry_out(Submit(Sequence(RequestId(len(self.events)), request), events.append))
        self.events.append(events)
        return events

    def turn(self, n: int = 1) -> None:
        """Some steps, each of which must do something."""
        for _ in range(n):
            before = len(self.runner.plans), len(self.scheduler.running)
            self.engine.step()
            after = len(self.runner.plans), len(self.scheduler.running)
            assert self.scheduler.idle or before != after, "the engine turns without doing anything"
            self.check()

    def check(self) -> None:
        """A conversation rests, or has a slot."""
        validate(self.manager)
        resting, active = set(self.slots.resting.index), set(self.slots._of.values())
        assert not resting & active and resting | active == set(self.manager.conversations)
        assert active == self.manager.active and set(self.slots._of) == set(self.scheduler.running)
        assert all(self.manager.length(c) <= self.slots.resting.index.length(c) for c in resting)

    def finish(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1000):
            if self.scheduler.idle:
                return
            self.turn()
        raise AssertionError("it does not end")

    def ask(self, prompt: str, n: int = 6) -> str:
        """One request from beginning to end."""
        events = self.submit(prompt, n)
        self.finish()
        return text(events)

    def resting(self) -> list[str]:
        """Who rests, the oldest first."""
        index = self.slots.resting.index
        return [bytes(index.tokens(c)).decode() for c in index]

    def forget_all(self) -> None:
        """Nobody rests any more."""
        while self.slots.forget_one(all_of_it=True):
            validate(self.manager)

    def used(self) -> tuple[int, int]:
        """Frames that pages own, of the device and of the host."""
        stats = self.manager.stats()
        return stats.device.used, stats.host.used


def expected(prompt: str, n: int = 6) -> str:
    """What a runner without pages answers."""
    tokens = list(prompt.encode())
    for _ in range(n):
        tokens.append(answer(tokens, 0))
    return bytes(tokens[len(prompt.encode()) :]).decode()


def text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def end(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def reason(events: list[Event]) -> FinishReason:
    return end(events).reason
