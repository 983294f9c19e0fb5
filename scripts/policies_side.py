"""The trace of `bench_policies.py`, and an engine's parts that count and take time."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from pagedrun.kv import Op, PageManager
from pagedrun.kv.ids import NONE, ConversationId
from pagedrun.native.frames import NativeFrames
from pagedrun.native.runner import NativeRunner
from pagedrun.slots import PagedSlots
from pagedrun.step import Slot

AT_ONCE = 4  # requests
T = TypeVar("T")


@dataclass(frozen=True)
class Trace:
    """rounds: numbers of the conversations that are asked at once. begins: their first prompts; says: tokens added by
    each turn after it; answers: tokens generated. n_vocab: for both.
    """

    rounds: list[list[int]]
    begins: list[tuple[int, ...]]
    says: int
    answers: int

    @classmethod
    def drawn(cls, args: argparse.Namespace) -> Trace:
        """Popularity falls as in Zipf's law. Every fourth conversation begins as the first one does, and every fifth
        is `long` times as long.
        """
        rng = random.Random(args.seed)
        n = args.conversations
        weights = [1 / (i + 1) ** 0.9 for i in range(n)]
        rounds = []
        for _ in range(args.rounds):
            chosen: list[int] = []
            while len(chosen) < AT_ONCE:
                (c,) = rng.choices(range(n), weights)
                chosen += [c] if c not in chosen else []
            rounds.append(chosen)
        common = words(rng, args.prompt // 2)
        begins = []
        for i in range(n):
            length = round(args.prompt * rng.uniform(0.5, 1.5) * (args.long if i % 5 == 2 else 1))
            start = common if i % 4 == 0 else ()
            begins.append(start + words(rng, max(length - len(start), 8)))
        return cls(rounds, begins, args.says, args.answers)

    @property
    def longest(self) -> int:
        """Tokens that a conversation can come to."""
        most = max(sum(c in r for r in self.rounds) for c in range(len(self.begins)))
        return max(map(len, self.begins)) + most * (self.says + self.answers)


def words(rng: random.Random, n: int) -> tuple[int, ...]:
    """Ordinary tokens at random."""
    return tuple(rng.randrange(100, 30_000) for _ in range(n))


class Frames:
    """Native frames that count copies."""

    def __init__(self, frames: NativeFrames) -> None:
        self.frames = frames
        self.copies = 0

    def apply(self, ops: np.ndarray) -> None:
        """Carry out, and count."""
        self.copies += int((ops[:, 0] == Op.COPY).sum())
        self.frames.apply(ops)

    def __getattr__(self, name: str) -> Any:
        """The rest is as it was."""
        return getattr(self.frames, name)


class Pages(PageManager):
    """Counts pages of conversations as they are bound: all, and those that are there."""

    wanted = there = 0

    def bind(self, conversation: ConversationId, slot: int, *, spill: bool = False, prefill: bool = False) -> bool:
        """Bind, and count if that goes well."""
        self.poll()
        pages = self.pages(conversation)
        frames = self.table.device[pages]
        hot = (frames != NONE) & ~self.transfers.arriving(np.maximum(frames, 0))
        if not super().bind(conversation, slot, spill=spill, prefill=prefill):
            return False
        self.wanted += len(pages)
        self.there += int(hot.sum())
        return True


class Timed(PagedSlots):
    """Slots that know how long the engine's thread was in them."""

    pages_s = 0.0

    def choose(self, free: Iterable[Slot], tokens: Sequence[int]) -> Slot:
        """Timed."""
        return self._time(lambda: PagedSlots.choose(self, free, tokens))

    def resume(self, slot: Slot, tokens: Sequence[int]) -> int:
        """Timed."""
        return self._time(lambda: PagedSlots.resume(self, slot, tokens))

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """Timed."""
        return self._time(lambda: PagedSlots.room(self, slot, n_tokens, spill=spill))

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Timed."""
        return self._time(lambda: PagedSlots.wake(self, slot, spill=spill))

    def ready(self) -> None:
        """Timed."""
        self._time(lambda: PagedSlots.ready(self))

    def rest(self, slot: Slot, tokens: Sequence[int], *, keep: bool) -> None:
        """Timed."""
        self._time(lambda: PagedSlots.rest(self, slot, tokens, keep=keep))

    def expect(self, slots: Sequence[Slot]) -> None:
        """Timed, where it is not a part of another."""
        self._time(lambda: PagedSlots.expect(self, slots))

    def _time(self, do: Callable[[], T]) -> T:
        before, began = self.pages_s, time.perf_counter()
        try:
            return do()
        finally:
            self.pages_s = before + time.perf_counter() - began


class Lasting(NativeRunner):
    """Serves one engine after the other."""

    def shutdown(self) -> None:
        """Not yet."""
