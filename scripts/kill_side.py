"""An engine that saves sessions until it is killed, for kill_sessions.py."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paged_side import tokens_of

NAMES = ("a", "b", "c")
WINDOW, LONGEST = 1024, 320  # tokens
KEEP = 96 << 20  # bytes of automatic entries
ANSWER, TOP = 2, 4
_OTHER = 1e9  # other tokens


class Engine:
    """A service whose conversations are kept in a folder."""

    def __init__(self, model: Path, folder: Path, **more: Any) -> None:
        from pagedrun.config import EngineConfig
        from pagedrun.load import load_service

        config = EngineConfig(
            max_seq_len=WINDOW, gpu_layers=0, threads=1, page_size=32, snapshot_interval=64, cache_disk=KEEP,
            max_num_seqs=1, max_batch_tokens=1,  # so that every token is rounded alike
            **more,
        )  # fmt: skip
        self.service = load_service(model, config, sessions=folder)
        assert self.service.keeper is not None
        self.keeper = self.service.keeper
        self.keeper.min_tokens = 64

    def ask(self, prompt: list[int], n: int = ANSWER) -> tuple[list[int], list[dict[int, float]], int]:
        """The greedy answer, the likeliest tokens before each of it with their log probabilities, and cached tokens."""
        from pagedrun.request import Finished, GenerationRequest
        from pagedrun.sampling import SamplingParams

        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=n, logprobs=TOP)
        tokens: list[int] = []
        likeliest: list[dict[int, float]] = []
        for event in self.service.submit(request):
            if isinstance(event, Finished):
                if event.error is not None:
                    raise event.error
                return tokens, likeliest, event.usage.cached_tokens
            tokens += [p.token for p in event.logprobs]
            likeliest += [dict(p.top) for p in event.logprobs]
        raise RuntimeError("the answer did not end")

    def do(self, work: Callable[[], Any]) -> Any:
        """Have something done between two steps; answers what it does."""
        done, found = threading.Event(), []

        def run() -> None:
            try:
                found.append(work())
            finally:
                done.set()

        self.service.call(run)
        done.wait()
        return found[0]

    def settle(self) -> None:
        """Until nothing is saved or restored."""
        while self.do(lambda: self.keeper.busy):
            time.sleep(0.01)

    def forget(self) -> None:
        """Nothing rests any more."""

        def work() -> None:
            while self.keeper.resting.forget_one(all_of_it=True):
                pass

        self.do(work)

    def difference(self, tokens: list[int], before: Callable[[], Any] = lambda: None) -> tuple[float, int]:
        """Between an answer from what is on disk and one that is computed, and how many tokens were restored.

        before: done in place of forgetting what rests.
        """
        self.forget()
        before()
        prompt = [*tokens, 100]
        answer, restored, cached = self.ask(prompt)
        self.forget()
        speeds = self.keeper.speeds.prompt, self.keeper.speeds.read
        self.keeper.speeds.prompt, self.keeper.speeds.read = 1e12, 1.0  # computing is always faster
        try:
            computed_answer, computed, from_cache = self.ask(prompt)
        finally:
            self.keeper.speeds.prompt, self.keeper.speeds.read = speeds
        assert from_cache == 0
        apart = max(_apart(a, b) for a, b in zip(restored, computed, strict=True))
        return apart if answer == computed_answer else _OTHER, cached

    def of_wrong_pages(self, n: int) -> list[float]:
        """The differences that are found where one page of a conversation is not its own."""
        found = []
        for number in range(n):
            tokens = tokens_of(number, random.Random(number).randrange(80, 200))
            found.append(self.difference(tokens, lambda t=tokens: self._spoil(t))[0])  # type: ignore[misc]
        return found

    def _spoil(self, tokens: list[int]) -> None:
        """These tokens rest, with a page that is not theirs."""
        self.ask(tokens, 1)

        def work() -> None:
            keeper = self.keeper
            found = keeper.resting.index.find(tokens)
            assert found is not None
            frames = [int(keeper.manager.table.device[p]) for p in keeper.manager.pages(found[0])[:2]]
            keeper.store.write(frames[0], keeper.store.read(frames[1]))

        self.do(work)


def _apart(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest difference of log probabilities."""
    return max(abs(one[t] - other[t]) for t in one) if one.keys() == other.keys() else _OTHER


def worker(model: Path, folder: Path, seed: int) -> None:
    """Verify what is there, then save until the end comes from outside. Says on stdout what is done."""
    from pagedrun.sessions import Session

    rng = random.Random(seed)
    engine = Engine(model, folder)
    engine.keeper.automatic = False
    histories = {}
    for name in NAMES:
        path = engine.keeper.folder.path(name)
        if path.exists():
            histories[name] = register(engine, name, path)
    files = [*(engine.keeper.folder.path(n) for n in histories), *sorted((folder / "cache").glob("*.kv"))[-3:]]
    noted = folder / "verified"
    known = set(noted.read_text().split()) if noted.exists() else set()
    for path in files:
        with Session(path) as session:
            tokens, state = [int(t) for t in session.tokens], session.index.head.digest.hex()
        if len(tokens) >= 64 and state not in known:
            noted.write_text("\n".join([*known, state]))
            known.add(state)
            most, restored = engine.difference(tokens)
            say(verified=path.name, difference=most, restored=restored, tokens=len(tokens))
    engine.forget()
    engine.keeper.automatic = True
    say(ready=True)
    for number in range(seed * 1000, seed * 1000 + 1000):
        name = rng.choice(NAMES)
        tokens = histories.get(name, [])
        how = rng.random()
        if not tokens or len(tokens) > LONGEST or how < 0.1:
            tokens = tokens_of(rng.randrange(1 << 30), rng.randrange(64, 120))
        elif how < 0.3:  # it branches off
            tokens = tokens[: rng.randrange(32, len(tokens))] + tokens_of(rng.randrange(1 << 30), 20)
        else:
            tokens = tokens + tokens_of(rng.randrange(1 << 30), rng.randrange(1, 40))
        answer, _, _ = engine.ask(tokens)
        histories[name] = tokens = tokens + answer
        save(engine, name, tokens, number)
        if rng.random() < 0.5:
            engine.settle()
    engine.settle()
    engine.service.close()


def register(engine: Engine, name: str, path: Path) -> list[int]:
    """As a process does that has the session."""
    from pagedrun.sessions import Session

    with Session(path, engine.keeper.identity) as session:
        tokens, mark = [int(t) for t in session.tokens], session.index.mark
        positions = [p for p, _ in session.meta.snapshots]
    engine.do(lambda: engine.keeper.register(("named", name), tokens, positions, mark))
    return tokens


def save(engine: Engine, name: str, tokens: list[int], number: int) -> None:
    """Save, and say so when it is done."""

    def told(error: Exception | None) -> None:
        say(saved=name, number=number) if error is None else say(failed=name, why=str(error))

    def begin() -> None:
        say(saving=name, number=number)
        engine.keeper.save(name, tokens, str(number), told)

    engine.service.call(begin)


def say(**what: Any) -> None:
    """A line that is out before anything else happens."""
    os.write(1, f"{json.dumps(what)}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    worker(args.model, args.folder, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
