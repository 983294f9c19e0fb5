"""Many streams at once against a live server, of which some are left at any moment: what scripts/soak_server.py does
for minutes, and the tests for seconds.

Every request has a number in its text, by which its answer is found among those that the server's watch wrote down
(tests/watched_server.py): what the client got is compared with what was computed, and that is judged (overload_runs).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Any

import httpx

from tests.live_server import Live, live_server
from tests.overload_runs import Verdict, judge
from tests.own_memory import own_memory
from tests.soak_runs import MIB, Soaked

ENGLISH = "\n\n".join(text for _, text in sorted(topics.items()) if len(text) > 2000)[:200_000]
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
NUMBER = re.compile(r"\[No\. (\d+)\]")
PATIENCE_S = 300
TASKS_END_S = 10
ROOM = 100  # tokens for a template, a number and an answer


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """streams: people, each with one request at a time. They go on for so many seconds, or until so many answers were
    heard to their ends. fit: of conversations of full length, for how many there are pages, and RAM for as many again.
    leave: share of the requests that are left before their end. every: seconds between two looks at the memory.
    """

    seconds: float = float("inf")
    answers: float = float("inf")
    streams: int = 64
    slots: int = 16
    longest: int = 768
    fit: int = 6
    leave: float = 0.35
    threads: int = 0
    seed: int = 1
    every: float = 1.0

    def arguments(self) -> list[str]:
        """Of `serve`."""
        queue = 2 * self.streams  # who has left is in it until a step ends, and who comes next too
        fixed = {"--max-seq-len": self.longest, "--max-num-seqs": self.slots, "--max-queue": queue}
        more = {"-t": self.threads, "--gpu-layers": 0, "--cache-disk": 0, "--served-model-name": "it"}
        return [str(part) for pair in {**fixed, **more}.items() for part in pair]


@dataclass
class Heard:
    """One answer that was heard to its end. greedy: it can be judged."""

    path: str
    text: str
    greedy: bool


@dataclass
class Outcome:
    """What came of it. records: of the watch, by number of the request; wrong: what should not be."""

    heard: dict[int, Heard] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: Soaked = field(default_factory=Soaked)
    asked: int = 0
    seconds: float = 0.0
    most: int = 0
    resting: dict[str, Any] = field(default_factory=dict)
    evicted: int = 0
    verdict: Verdict | None = None


def soak(path: Path, folder: Path, crowd: Crowd, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Traffic, then its end, then a last look; then every answer is judged."""
    found = Outcome()
    memory = few_pages(path, folder, crowd)
    with served(path, folder, crowd, *memory) as (live, watch):
        for path_ in ("/v1/pagedrun/stats", "/metrics"):
            httpx.get(f"{live.url}{path_}").raise_for_status()
        httpx.post(f"{live.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1}, timeout=PATIENCE_S)
        found.memory.before = own_memory(live.process.pid)
        before = watch.look(signal.SIGUSR1)
        asyncio.run(_traffic(live, crowd, found, say))
        _check_the_end(live, watch, before, found)
        assert live.stop() == 0, live.log
        if "Traceback" in live.log:
            found.wrong.append("the server's log has a traceback")
    _compare(found, watch)
    greedy = [found.records[n] for n, heard in found.heard.items() if heard.greedy and n in found.records]
    say(f"judging {len(greedy)} answers")
    greedy = [record for record in greedy if len(record["tokens"]) > 1]
    prompts, answers = [r["prompt"] for r in greedy], [r["tokens"] for r in greedy]
    found.verdict = judge(path, prompts, answers, crowd.threads, every=max(len(greedy) // 100, 1))
    if not found.verdict.good:
        found.wrong.append("answers differ from lone ones")
    return found


class Watch:
    """What the server's watch writes."""

    def __init__(self, live: Live, path: Path) -> None:
        self._live = live
        self._path = path
        self._seen = 0

    def more(self) -> list[dict[str, Any]]:
        """What it wrote since the last time, of whole lines."""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            whole = file.read().rpartition(b"\n")[0]
        self._seen += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def look(self, how: int) -> dict[str, Any]:
        """What there is; the server must be idle."""
        n = len(self._looks())
        self._live.process.send_signal(how)
        until = time.monotonic() + PATIENCE_S
        while len(found := self._looks()) == n:
            assert time.monotonic() < until and self._live.process.poll() is None, self._live.log
            time.sleep(0.05)
        assert "wrong" not in found[-1], found[-1]
        return found[-1]

    def at_rest(self, before: dict[str, Any]) -> dict[str, Any]:
        """What there is when no more tasks are left than before: that of a request ends a moment after its answer."""
        until = time.monotonic() + TASKS_END_S
        while (found := self.look(signal.SIGUSR1))["tasks"] > before["tasks"] and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _looks(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if "reason" not in record]


@contextmanager
def watched_server(path: Path, folder: Path, *args: str, **env: str) -> Iterator[tuple[Live, Watch]]:
    """A live server that is watched."""
    file = folder / "watch.jsonl"
    file.unlink(missing_ok=True)
    env = {"CUDA_VISIBLE_DEVICES": "", **env, "PAGEDRUN_WATCH": str(file)}
    with live_server(folder, str(path), *args, module="tests.watched_server", **env) as live:
        yield live, Watch(live, file)


@contextmanager
def served(path: Path, folder: Path, crowd: Crowd, *args: str) -> Iterator[tuple[Live, Watch]]:
    env = {"PAGEDRUN_PAGE_SIZE": "16", "PAGEDRUN_SNAPSHOT_INTERVAL": "64", "PAGEDRUN_MAX_BATCH_TOKENS": "128"}
    with watched_server(path, folder, *crowd.arguments(), *args, **env) as (live, watch):
        yield live, watch


def few_pages(path: Path, folder: Path, crowd: Crowd) -> list[str]:
    """Options that give pages for a few."""
    with served(path, folder, crowd) as (live, watch):
        body = {"prompt": list(range(100, 100 + crowd.longest - 8)), "max_tokens": 1}
        httpx.post(f"{live.url}/v1/completions", json=body, timeout=PATIENCE_S).raise_for_status()
        kv = watch.look(signal.SIGUSR1)["kv"]
    pages = crowd.fit * kv["device"]["n_bytes"]
    swap = pages + 4 * crowd.slots * kv["snapshot_bytes"]
    return ["--gpu-memory", str(kv["buffer_bytes"] + pages), "--swap-space", str(swap)]


async def _traffic(live: Live, crowd: Crowd, found: Outcome, say: Callable[[str], None]) -> None:
    """People who ask, until it is time; then the last ones are heard to their ends."""
    stop, began = asyncio.Event(), time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=live.url, timeout=PATIENCE_S, limits=limits) as client:
        people = [asyncio.create_task(_Person(i, client, crowd, found).live(stop)) for i in range(crowd.streams)]
        while not stop.is_set():
            await asyncio.sleep(crowd.every)
            now = time.monotonic() - began
            found.memory.memory.append((now, own_memory(live.process.pid)))
            size = found.memory.memory[-1][1] / MIB
            say(f"{now:.0f} s: {len(found.heard)} heard, {found.left.total()} left, {size:.0f} MiB")
            ended = [one for one in people if one.done()]
            if now >= crowd.seconds or len(found.heard) >= crowd.answers or ended:
                stop.set()
        for one in asyncio.as_completed(people):
            await one
    found.seconds = time.monotonic() - began


class _Person:
    """Asks, listens or leaves, asks again."""

    def __init__(self, number: int, client: httpx.AsyncClient, crowd: Crowd, found: Outcome) -> None:
        self._client = client
        self._crowd = crowd
        self._found = found
        self._rng = random.Random(crowd.seed * 1000 + number)
        self._told = ""

    async def live(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._ask()

    async def _ask(self) -> None:
        rng, found = self._rng, self._found
        found.asked += 1
        number, path = found.asked, rng.choices(PATHS, (4, 2, 1, 1))[0]
        stream, greedy = rng.random() < 0.8, rng.random() < 0.85
        text = self._text(number)
        body = _body(path, text, rng.choice((4, 16, 48)), 0.0 if greedy else 0.8)
        asking = asyncio.ensure_future(self._listen(path, {**body, "stream": stream}, number))
        leaves = rng.random() < self._crowd.leave
        if leaves:
            await asyncio.wait((asking,), timeout=rng.choice((0.0, 0.02, 0.3, 2.0)) * rng.random())
            asking.cancel()
        with suppress(asyncio.CancelledError):
            said = await asking
            found.heard[number] = Heard(path, said, greedy)
            self._told = text + said
            return
        found.left[path] += 1

    def _text(self, number: int) -> str:
        """Something new, with a beginning that many have or the person's own conversation before it."""
        rng, room = self._rng, self._crowd.longest - ROOM
        at = rng.randrange(len(ENGLISH) - 1000)
        new = ENGLISH[at : at + room * rng.choice((1, 4, 8)) // 8]
        before = rng.choice((ENGLISH[: room // 2], self._told, self._told, ""))
        if len((before + new).encode()) > room:  # a token has a byte at least
            before = ""
        return f"{before}\n{new} [No. {number}]\n"

    async def _listen(self, path: str, body: dict[str, Any], number: int) -> str:
        """The text of an answer."""
        if not body["stream"]:
            answer = await self._client.post(path, json=body)
            self._found.statuses[str(answer.status_code)] += 1
            assert answer.status_code == 200, answer.text
            return _whole(path, answer.json())
        parts: list[str] = []
        async with self._client.stream("POST", path, json=body) as answer:
            self._found.statuses[str(answer.status_code)] += 1
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    parts.append(_part(json.loads(line.removeprefix("data: "))))
        return "".join(parts)


def _body(path: str, text: str, n: int, temperature: float) -> dict[str, Any]:
    if path == "/v1/completions":
        return {"prompt": text, "max_tokens": n, "temperature": temperature}
    if path == "/v1/responses":
        return {"input": text, "max_output_tokens": n, "temperature": temperature, "store": False}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n, "temperature": temperature}


def _whole(path: str, answer: dict[str, Any]) -> str:
    if path == "/v1/messages":
        return "".join(block["text"] for block in answer["content"])
    if path == "/v1/responses":
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    choice = answer["choices"][0]
    return str(choice["text"] if path == "/v1/completions" else choice["message"]["content"] or "")


def _part(event: dict[str, Any]) -> str:
    """The text in one event of a stream, of whatever API; an error is none."""
    assert "error" not in event or event["error"] is None, event
    if "choices" in event:
        choice = event["choices"][0]
        return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    if event["type"] == "content_block_delta":
        return str(event["delta"]["text"])
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


def idle(url: str) -> bool:
    """Wait until nothing is computed, and a little for what is done after that."""
    until = time.monotonic() + PATIENCE_S
    while (stats := httpx.get(f"{url}/v1/pagedrun/stats").json())["running"] + stats["waiting"]:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    time.sleep(0.5)
    return True


def _check_the_end(live: Live, watch: Watch, before: dict[str, Any], found: Outcome) -> None:
    """Nobody asks any more: what is left?"""
    if not idle(live.url):
        found.wrong.append("answers still run")
        return
    metrics = httpx.get(f"{live.url}/metrics").text
    gauges = re.findall(r"^(pagedrun_(?:running|waiting))\S* (\S+)$", metrics, re.MULTILINE)
    found.wrong += [f"{name} {value}" for name, value in gauges if float(value)] + ([] if gauges else ["no gauges"])
    statuses = set(re.findall(r'path="/v1/[a-z/]+s",status="(\d+)"', metrics))
    found.wrong += [f"status {status}" for status in statuses - {"200", "499"}]
    found.resting = watch.at_rest(before)
    kv = found.resting["kv"]
    found.evicted = kv["clean_victims"] + kv["dirty_victims"]
    if kv["conversations"] != kv["resting"]:
        found.wrong.append(f"{kv['conversations']} conversations, and {kv['resting']} rest")
    if found.resting["tasks"] > before["tasks"]:
        found.wrong.append(f"{found.resting['tasks']} tasks, and {before['tasks']} before")
    more = set(found.resting["threads"]) - set(before["threads"])
    found.wrong += [f"thread {name} left" for name in more if not name.startswith(("AnyIO", "pagedrun-"))]
    empty = watch.look(signal.SIGUSR2)
    found.memory.left = empty["bytes"]
    remains = {name: empty["kv"][name] for name in ("pages", "conversations", "snapshots", "resting", "tokens")}
    remains |= {f"frames of the {tier}": empty["kv"][tier]["used"] for tier in ("device", "host", "disk")}
    found.wrong += [f"{n} {name} left" for name, n in remains.items() if n]


def _compare(found: Outcome, watch: Watch) -> None:
    """What clients got, and what was computed."""
    for record in watch.records():
        if "reason" not in record:
            continue
        found.reasons[record["reason"]] += 1
        if numbers := NUMBER.findall(record["asked"]):
            found.records[int(numbers[-1])] = record
    for number, heard in found.heard.items():
        record = found.records.get(number)
        if record is None or record["reason"] not in ("stop", "length"):
            found.wrong.append(f"request {number} has no answer")
        elif heard.text != record["text"]:
            found.wrong.append(f"request {number}, {heard.path}: {heard.text!r} was heard, {record['text']!r} computed")
