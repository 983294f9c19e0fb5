"""Kill an engine while it saves conversations, and look whether anything wrong is ever served from what is left.

    .venv/bin/python scripts/kill_sessions.py [MODEL.gguf ...] [--kills 500] [--faults 50] [--name cpu]

A process loads a model, goes on with three named sessions and any number of automatic entries, and saves them while it
answers; it is killed with SIGKILL at a random moment. Then, every time: each named file must be whole, and not older
than what its writer was told is saved. The next process restores every file that is new, answers from it, and
answers again with everything computed anew: what is compared are the log probabilities of the likeliest tokens at each
place of the same answer. Batches differ, and so do roundings. How much is measured first, without any file: the same
prompt, read in one go and from some place on. Twice the largest of these differences is tolerated. And so that this
means something, one page gets the contents of another: the differences that this makes are in the notes.

A tiny random model with experts has rare large differences even without any file, where a rounding sends a token to
other experts: of 546 chats of several turns, in memory against computed anew, 7 were 0.08 or more apart.

Faults: a disk that is full in the middle of a save; a page flipped; a file truncated, of another version, of another
model. What is asked is the same: that answers are right, and that sessions that are refused say why.

Without MODEL: SmolLM2, and a tiny model with recurrent layers, in turns. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench

NAMES = ("a", "b", "c")
WINDOW, LONGEST = 1024, 320  # tokens
KEEP = 96 << 20  # bytes of automatic entries
ANSWER, TOP = 2, 4
ROUNDINGS = 12  # prompts whose differences by batches are measured


class Engine:
    """A service whose conversations are kept in a folder."""

    def __init__(self, model: Path, folder: Path, **more: Any) -> None:
        from pagedrun.config import EngineConfig
        from pagedrun.load import load_service

        config = EngineConfig(
            max_seq_len=WINDOW, gpu_layers=0, threads=1, page_size=32, snapshot_interval=64, max_batch_tokens=64,
            cache_disk=KEEP, **more,
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
        """Between answers from what is on disk and those that are computed, and how many tokens were restored.

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
            most = _apart(restored[0], self.ask(prompt, 1)[1][0])
            for i in range(1, len(answer)):  # the same tokens before each
                most = max(most, _apart(restored[i], self.ask(prompt + answer[:i], 1)[1][0]))
        finally:
            self.keeper.speeds.prompt, self.keeper.speeds.read = speeds
        return most, cached

    def rounding(self, n: int) -> tuple[float, list[float]]:
        """The largest difference of batches, and those of a wrong page."""
        from paged_side import tokens_of

        largest, of_wrong = 0.0, []
        for number in range(n):
            rng = random.Random(number)
            tokens = tokens_of(number, rng.randrange(80, 200))
            beginning = tokens[: rng.randrange(20, 70)]
            largest = max(largest, self.difference(tokens, lambda b=beginning: self.ask([*b, 99], 1))[0])  # type: ignore[misc]
            of_wrong.append(self.difference(tokens, lambda t=tokens: self._spoil(t))[0])  # type: ignore[misc]
        return largest, of_wrong

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
    """The largest difference of log probabilities, of those among the likeliest in both; of none: everything."""
    common = one.keys() & other.keys()
    return max((abs(one[t] - other[t]) for t in common), default=1e9)


def saved(path: Path) -> list[int]:
    """A file's tokens."""
    from pagedrun.sessions import Session

    with Session(path) as session:
        return [int(t) for t in session.tokens]


def worker(model: Path, folder: Path, seed: int) -> None:
    """Verify what is there, then save until the end comes from outside. Says on stdout what is done."""
    from paged_side import tokens_of

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

    engine.service.call(lambda: engine.keeper.save(name, tokens, str(number), told))


def say(**what: Any) -> None:
    """A line that is out before anything else happens."""
    os.write(1, f"{json.dumps(what)}\n".encode())


def kill(model: Path, folder: Path, seed: int, longest_s: float) -> dict[str, Any]:
    """One process from its start to its end; what it found, and what is wrong."""
    command = [sys.executable, __file__, "--worker", str(seed), "--folder", str(folder), str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    until = random.Random(-seed).choice(("ready", "saved"))
    for line in process.stdout:
        lines.append(json.loads(line))
        if until in lines[-1]:
            break
    time.sleep(random.Random(seed).uniform(0, longest_s))
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    lines += [json.loads(line) for line in rest.split("\n")[:-1] if line]
    wrong = [] if any("ready" in line for line in lines) else ["it did not start"]
    last = {line["saved"]: line["number"] for line in lines if "saved" in line}
    wrong += [w for name in NAMES if (w := wrong_with(folder / "named" / f"{name}.kv", last.get(name, -1)))]
    wrong += [f"{line['failed']}: {line['why']}" for line in lines if "failed" in line]
    return {"lines": lines, "wrong": wrong, "saves": sum("saved" in line for line in lines)}


def wrong_with(path: Path, at_least: int) -> str:
    """What is wrong with a named file of which the save of that number was done; "" for nothing."""
    from pagedrun.errors import SessionError, SessionNotFoundError
    from pagedrun.sessions import Session

    try:
        with Session(path) as session:
            if not session.check().whole:
                return f"{path.name} is damaged"
            number = int(session.meta.note)
            return f"{path.name} has save {number}, and {at_least} was done" if number < at_least else ""
    except SessionNotFoundError:
        return f"{path.name} is gone" if at_least >= 0 else ""
    except SessionError as e:
        return e.message


def faults(
    models: list[Path], folder: Path, n: int, tolerances: list[float]
) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Each kind of damage, with its outcomes and what was wrong."""
    from paged_side import tokens_of

    from pagedrun.errors import PagedrunError
    from pagedrun.sessions import Disk, Session

    class Full(Disk):
        """Full after so many bytes more."""

        left = 1 << 60

        def write(self, fd: int, data: memoryview, offset: int) -> None:
            if len(data) > self.left:
                super().write(fd, data[: self.left], offset)
                self.left = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= len(data)
            super().write(fd, data, offset)

    kinds = ("disk full", "page flipped", "truncated", "other version", "other model")
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    wrong: dict[str, list[str]] = {kind: [] for kind in kinds}
    engines = [Engine(model, folder / f"faults-{i}") for i, model in enumerate(models)]
    for engine in engines:
        engine.keeper.automatic = False
    for number in range(n):
        rng, engine = random.Random(number), engines[number % len(engines)]
        path = engine.keeper.folder.path("f")
        for kind in kinds:
            tokens = tokens_of(rng.randrange(1 << 30), rng.randrange(80, 300))
            tokens += engine.ask(tokens)[0]
            if (told := save_now(engine, tokens)) is not None:
                wrong[kind].append(f"seed {number}: {told}")
                continue
            if kind == "disk full":
                before = saved(path)
                disk = Full()
                disk.left = rng.randrange(0, 400_000)
                engine.keeper.folder._disk = disk
                longer = tokens + tokens_of(number, 100)
                longer += engine.ask(longer)[0]
                told = save_now(engine, longer)
                engine.keeper.folder._disk = Disk()
                if told is not None:
                    ends[kind]["refused, the old state is there"] += 1
                    if saved(path) != before or "disk is full" not in str(told):
                        wrong[kind].append(f"seed {number}: {told}")
                else:
                    now = saved(path)
                    ends[kind]["there was room" if len(now) > len(tokens) else "saved without new pages"] += 1
                    if now != longer[: len(now)]:
                        wrong[kind].append(f"seed {number}: other tokens than those that were said")
                    tokens = longer
            elif kind == "page flipped":
                with Session(path) as session:
                    offset = int(rng.choice(list(session.index.pages["offset"])))
                    size = session.meta.identity.frame_bytes
                flip(path, offset + rng.randrange(size), rng.randrange(8))
            elif kind == "truncated":
                os.truncate(path, rng.randrange(path.stat().st_size))
            elif kind == "other version":
                change_version(path)
            elif len(engines) > 1:
                engine, tokens = engines[(number + 1) % len(engines)], tokens[:-ANSWER]  # of any vocabulary
                engine.keeper.folder.path("f").parent.mkdir(parents=True, exist_ok=True)
                path.replace(engine.keeper.folder.path("f"))
                path = engine.keeper.folder.path("f")
            try:
                register(engine, "f", path)
            except PagedrunError as e:
                ends[kind][reason(e.message)] += 1
                path.unlink()
            most, restored = engine.difference(tokens)
            ends[kind]["some restored" if restored else "all computed"] += 1
            if not most <= tolerances[engines.index(engine)]:
                wrong[kind].append(f"seed {number}: {most} apart, {restored} restored")
            engine.do(lambda e=engine: e.keeper.stored.remove(("named", "f")))
            path.unlink(missing_ok=True)
    for engine in engines:
        engine.service.close()
    for kind in kinds:
        yield kind, ends[kind], wrong[kind]


def save_now(engine: Engine, tokens: list[int]) -> Exception | None:
    """Save a session, and wait for it; what was wrong."""
    told: list[Exception | None] = []
    engine.do(lambda: engine.keeper.save("f", tokens, "", told.append))
    engine.settle()
    return told[0]


def reason(message: str) -> str:
    """Why a file is refused, without numbers."""
    for part in ("truncated", "version", "the model was", "no header", "index"):
        if part in message:
            return f"refused: {part}"
    return message


def flip(path: Path, offset: int, bit: int) -> None:
    """One bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def change_version(path: Path) -> None:
    """As a later pagedrun may write it: another version, with a digest that is right."""
    from dataclasses import replace

    from pagedrun.sessions.format import unpack_head
    from pagedrun.sessions.places import ALIGN

    data = bytearray(path.read_bytes())
    for at in (0, ALIGN):
        if (head := unpack_head(bytes(data[at : at + ALIGN]))) is not None:
            data[at : at + ALIGN] = replace(head, version=head.version + 1).pack()
    path.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--faults", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--seconds", type=float, default=1e9, help="no kills after so long")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds until the kill, at most")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a temporary folder otherwise")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.models[0], args.folder, args.worker)
        return 0
    began, rows, wrong = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        models = args.models or default_models(Path(name))
        tolerances, of_wrong = [], []
        for i, model in enumerate(models):
            engine = Engine(model, Path(name) / f"rounding-{i}")
            engine.keeper.automatic = False
            largest, wrong_page = engine.rounding(ROUNDINGS)
            engine.service.close()
            tolerances.append(2 * largest)
            of_wrong.append(f"{min(wrong_page):.3g} to {max(wrong_page):.3g}")
            seeds = range(i, args.kills, len(models))
            row, bad = kills(model, Path(name) / str(i), args, seeds, tolerances[-1])
            rows.append(row)
            wrong += bad
        for kind, ends, problems in faults(models, Path(name), args.faults, tolerances):
            wrong += len(problems)
            print(*problems, sep="\n", file=sys.stderr)
            rows.append({
                "": kind, "model": "in turns", "runs": args.faults, "saves done": "-", "files verified": args.faults,
                "tokens restored": "-", "largest difference": "-", "tolerated": "-", "wrong": len(problems),
                "ends": ", ".join(f"{n} {end}" for end, n in ends.most_common()),
            })  # fmt: skip
    notes = [
        "wrong: a named session is damaged, or older than what its writer was told is saved; or an answer from a file "
        "differs from one with all computed by more than is tolerated in the log probability of a likely token",
        f"the differences that a wrong page made, in {ROUNDINGS} tries: " + "; ".join(of_wrong),
        f"{time.monotonic() - began:.0f} s; killed within {args.longest} s of the first save, or of being ready to",
    ]
    bench.write(f"kill-sessions-{args.name}", "Sessions of a killed engine", rows, notes=notes)
    return int(wrong > 0)


def kills(
    model: Path, folder: Path, args: argparse.Namespace, seeds: range, tolerance: float
) -> tuple[dict[str, Any], int]:
    """All kills of one model; its row, and how many were wrong."""
    saves = verified = restored = wrong = 0
    largest = 0.0
    end = time.monotonic() + args.seconds / max(len(args.models), 2)
    done = 0
    for seed in seeds:
        if time.monotonic() > end:
            break
        done += 1
        found = kill(model, folder, args.seed + seed, args.longest)
        for line in (line for line in found["lines"] if "verified" in line):
            verified += 1
            restored += line["restored"]
            largest = max(largest, line["difference"])
            if not line["difference"] <= tolerance:
                found["wrong"].append(f"{line}")
        saves += found["saves"]
        wrong += bool(found["wrong"])
        for what in found["wrong"]:
            print(f"seed {args.seed + seed}: {what}", file=sys.stderr, flush=True)
        if done % 25 == 0:
            print(
                f"{model.name}: {done} of {len(seeds)}, {saves} saves, {verified} verified, {wrong} wrong",
                file=sys.stderr,
            )
    row = {"": "killed", "model": model.name, "runs": done, "saves done": saves, "files verified": verified}
    row |= {"tokens restored": restored, "largest difference": largest, "tolerated": tolerance, "wrong": wrong}
    return row | {"ends": f"{done} killed"}, wrong


def default_models(folder: Path) -> list[Path]:
    """SmolLM2, and one with recurrent layers."""
    from pagedrun import hub
    from pagedrun.catalog import load_catalog

    tiny = folder / "tiny-qwen35moe.gguf"
    script = Path(__file__).with_name("random_model.py")
    subprocess.run([sys.executable, str(script), str(tiny), "--tiny"], check=True, capture_output=True)
    return [hub.locate(load_catalog().default).path, tiny]


if __name__ == "__main__":
    sys.exit(main())
