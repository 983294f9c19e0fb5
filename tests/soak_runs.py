"""Random traffic for a while: what scripts/soak.py does for hours, and the tests for seconds.

Everybody begins, goes on, branches off, asks again and breaks off, several at a time, in memory for a few; all that is
known of pages is checked before and after every step.
"""

from __future__ import annotations

import dataclasses
import math
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pagedrun.config import EngineConfig
from pagedrun.errors import PagedrunError
from pagedrun.kv import KvStats, validate
from pagedrun.load import load_service
from pagedrun.request import Finished, FinishReason, GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service, Stream
from tests.own_memory import own_memory, settled_memory

KEPT = 24  # conversations that may be gone on with
KINDS = ("new", "follow-up", "branch", "again", "cancel")
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Weather:
    """at_once: people that ask, each one request at a time. longest: tokens of a conversation. fit: of such, for how
    many the device has pages, and RAM; the file has room for as many too. It ends after so many seconds, or answers.
    every: seconds between two looks at the memory.
    """

    seconds: float = math.inf
    answers: float = math.inf
    at_once: int = 6
    slots: int = 4
    longest: int = 384
    fit: int = 3
    threads: int = 0
    seed: int = 1
    every: float = 1.0


@dataclass
class Soaked:
    """What came of it. memory: (seconds, bytes) as it went on; left: bytes when all was forgotten, before: when nothing
    had been asked yet.
    """

    asked: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    errors: list[PagedrunError] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)
    before: int = 0
    left: int = 0
    kv: KvStats | None = None
    empty: KvStats | None = None

    def grown(self) -> float:
        """Bytes by which memory grew from the end of the first third of the time to the end, by medians of tenths."""
        sizes = [n for _, n in self.memory]
        tenth = max(len(sizes) // 10, 1)
        warm = len(sizes) // 3
        return float(np.median(sizes[-tenth:]) - np.median(sizes[warm : warm + tenth]))

    def slope(self) -> float:
        """Bytes an hour, by a line through all that was measured after the first third of the time."""
        times, sizes = np.array(self.memory[len(self.memory) // 3 :], np.float64).T
        return float(np.polyfit(times, sizes, 1)[0] * 3600)

    @property
    def remains(self) -> dict[str, int]:
        """What is left of pages when everybody was forgotten; empty: nothing."""
        kv = self.empty
        assert kv is not None
        found = {
            "pages": kv.pages,
            "conversations": kv.conversations,
            "snapshots": kv.snapshots,
            "resting": kv.resting,
            "frames of the device": kv.device.used,
            "frames of the host": kv.host.used,
            "slots of the file": kv.disk.used,
        }
        return {name: n for name, n in found.items() if n}


def soak(path: Path, weather: Weather, say: Any = lambda text: None) -> Soaked:
    """Traffic, then the end of everybody, then a last look."""
    found = Soaked()
    with _opened(path, weather) as service:
        found.before = settled_memory()
        stop, lock = threading.Event(), threading.Lock()
        town = _Town(service, weather, found, lock, stop)
        people = [threading.Thread(target=town.live, args=(i,)) for i in range(weather.at_once)]
        began = time.perf_counter()
        for one in people:
            one.start()
        while not (found.errors or stop.wait(weather.every)):
            now, n = time.perf_counter() - began, sum(found.ends.values())
            found.memory.append((now, own_memory()))
            say(f"{now:.0f} s: {n} answers, {found.memory[-1][1] / MIB:.1f} MiB")
            if now >= weather.seconds or n >= weather.answers:
                break
        stop.set()
        for one in people:
            one.join()
        found.kv = service.stats.kv
        _forget_everybody(service, found)
    return found


def _opened(path: Path, weather: Weather) -> Service:
    """A service with memory for a few."""
    settings: dict[str, Any] = {
        "gpu_layers": 0,
        "max_num_seqs": weather.slots,
        "max_seq_len": weather.longest,
        "max_batch_tokens": 128,
        "page_size": 16,
        "threads": weather.threads,
        "snapshot_interval": 64,
    }
    with load_service(path, EngineConfig(**settings)) as service:
        prompt = tuple(range(100, 100 + weather.longest - 8))
        list(service.submit(GenerationRequest(prompt=prompt, max_tokens=1)))
        kv = service.stats.kv
        assert kv is not None, "this needs pages"
    pages = weather.fit * kv.device.n_bytes
    memory = {"gpu_memory": kv.buffer_bytes + pages, "swap_space": pages + 8 * kv.snapshot_bytes, "disk_space": pages}
    return load_service(path, EngineConfig(**settings, **memory, debug_kv=True))


def _forget_everybody(service: Service, found: Soaked) -> None:
    """The engine's thread waits for a request, and leaves its things to us for a moment."""
    slots: Any = service._engine._slots
    while not service._engine._scheduler.idle:
        time.sleep(0.01)
    validate(slots._manager)
    while slots.forget_one(all_of_it=True):
        pass
    slots._manager.trim()
    validate(slots._manager)
    found.empty = slots.stats()
    found.left = settled_memory()


class _Town:
    """People that ask for answers, and what they were told before."""

    def __init__(
        self, service: Service, weather: Weather, found: Soaked, lock: threading.Lock, stop: threading.Event
    ) -> None:
        self._service = service
        self._weather = weather
        self._found = found
        self._lock = lock
        self._stop = stop
        self._told: list[tuple[int, ...]] = []
        self._ranked = "priority" in {f.name for f in dataclasses.fields(GenerationRequest)}

    def live(self, number: int) -> None:
        """Ask until it is time to stop."""
        rng = random.Random(self._weather.seed * 1000 + number)
        while not self._stop.is_set():
            kind = rng.choices(KINDS, (3, 4, 2, 1, 2))[0]
            prompt = self._prompt(rng, kind)
            sampling = SamplingParams(temperature=rng.choice((0.0, 0.8)), seed=rng.randrange(1 << 30))
            more: dict[str, Any] = {"priority": rng.randrange(3)} if self._ranked else {}
            request = GenerationRequest(prompt=prompt, sampling=sampling, max_tokens=rng.randint(1, 24), **more)
            try:
                stream = self._service.submit(request)
                self._listen(stream, prompt, kind, rng.randrange(8) if kind == "cancel" else -1)
            except PagedrunError as e:
                self._found.errors.append(e)

    def _prompt(self, rng: random.Random, kind: str) -> tuple[int, ...]:
        with self._lock:
            told = rng.choice(self._told) if self._told and kind != "new" else ()
        if kind == "branch" and told:
            told = told[: rng.randrange(1, len(told) + 1)]
        if kind == "again" and told:
            return told[: self._weather.longest - 32]
        prompt = told + tuple(rng.randrange(100, 30_000) for _ in range(rng.choice((4, 20, 120))))
        return prompt if len(prompt) < self._weather.longest - 32 else prompt[-40:]

    def _listen(self, stream: Stream, prompt: tuple[int, ...], kind: str, patience: int) -> None:
        """patience: pieces of text after which the answer is broken off; -1: it is not."""
        if patience == 0:
            stream.cancel()
        tokens, heard = prompt, 0
        for event in stream:
            if isinstance(event, TextDelta):
                tokens += event.tokens
                heard += 1
                if heard == patience:
                    stream.cancel()
            else:
                self._note(event, tokens, kind)

    def _note(self, end: Finished, tokens: tuple[int, ...], kind: str) -> None:
        with self._lock:
            found = self._found
            found.asked[kind] += 1
            found.ends[end.reason.value] += 1
            found.tokens += end.usage.prompt_tokens - end.usage.cached_tokens + end.usage.completion_tokens
            found.cached += end.usage.cached_tokens
            if end.error is not None:
                found.errors.append(end.error)
            elif end.reason is not FinishReason.CANCELLED:
                self._told = [*self._told[-KEPT + 1 :], tokens]
