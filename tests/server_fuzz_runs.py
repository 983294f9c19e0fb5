"""Mutated requests against a live server with a real model: what scripts/fuzz_server.py does with ten thousand, and the
tests with some.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from pagedrun.running import OWNER
from tests.own_memory import own_memory
from tests.server_mutations import REQUESTS, mutated
from tests.server_soak_runs import PATIENCE_S, Crowd, Watch, few_pages, idle, served
from tests.soak_runs import MIB

VALID = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 3}
ANSWERED = {200, 400, 403, 404, 409, 413, 429, 503}
EVERY = 100  # requests after which a valid one is sent
AT_ONCE = 4
CROWD = Crowd(longest=256, slots=4, fit=4, threads=1)


@dataclass
class Fuzzed:
    """What came of it. statuses: by path; wrong: what should not be; missing: routes that nothing was sent to. before,
    left: bytes of memory at the beginning, and after a third and at the end when all that rested was forgotten.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    served: int = 0
    before: int = 0
    left: list[int] = field(default_factory=list)

    @property
    def grown(self) -> int:
        """Bytes from a third to the end."""
        return self.left[-1] - self.left[0] if self.left else 0

    @property
    def sent(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())


def fuzz(model: Path, folder: Path, n: int, seed: int, say: Callable[[str], None] = lambda text: None) -> Fuzzed:
    """Send `n` of them, four at a time, and look what is left."""
    found = Fuzzed()
    memory = few_pages(model, folder, CROWD)
    with served(model, folder, CROWD, *memory, "--served-model-name", "fake") as (live, watch):
        with httpx.Client(base_url=live.url, timeout=PATIENCE_S) as client:
            client.post("/v1/chat/completions", json=VALID).raise_for_status()
            paths = client.get("/openapi.json").json()["paths"]
        found.missing = {path for path, ways in paths.items() if "post" in ways} - {path for path, _ in REQUESTS}
        before = watch.look(signal.SIGUSR1)
        found.before = before["bytes"]
        record = folder / "state" / "servers" / f"{live.process.pid}.json"
        owner = {OWNER: json.loads(record.read_text())["secret"]}
        try:
            for part in (range(seed, seed + n // 3), range(seed + n // 3, seed + n)):
                asyncio.run(_send(live.url, live.process.pid, owner, part, found, say))
                _check_what_is_left(live.url, watch, before, found)
        except httpx.TransportError as e:
            found.wrong.append(f"the server is gone: {e!r}; {live.log[-2000:]}")
            return found
        found.wrong += ["the server did not stop"] if live.stop() else []
        found.wrong += ["the server's log has a traceback"] if "Traceback" in live.log else []
    return found


async def _send(
    url: str, process: int, owner: dict[str, str], seeds: range, found: Fuzzed, say: Callable[[str], None]
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, headers=owner) as client:
        for first in range(0, len(seeds), EVERY):
            numbers = iter(seeds[first : first + EVERY])

            async def some(numbers: Any = numbers) -> None:
                for number in numbers:  # all take from the same ones
                    await _one(client, number, found)

            await asyncio.gather(*(some() for _ in range(AT_ONCE)))
            answer = await client.post("/v1/chat/completions", json=VALID)
            found.served += answer.status_code == 200
            found.wrong += [] if answer.status_code == 200 else [f"a valid one after {first}: {answer.status_code}"]
            say(f"{found.sent} sent, {len(found.wrong)} wrong, {own_memory(process) / MIB:.0f} MiB")


async def _one(client: httpx.AsyncClient, number: int, found: Fuzzed) -> None:
    """Whatever is wrong can be sent again by its number."""
    path, body = mutated(Random(number))
    answer = await client.post(path, content=body)
    found.statuses.setdefault(path, Counter())[answer.status_code] += 1
    wrong = ""
    if answer.status_code not in ANSWERED:
        wrong = f"{answer.status_code} {answer.text[:200]}"
    elif answer.status_code in (429, 503) and "retry-after" not in answer.headers:
        wrong = f"{answer.status_code} without Retry-After"
    elif answer.status_code != 200:
        wrong = "" if answer.json()["error"]["message"] else "an error without a message"
    elif "_error" in answer.text and re.search("server_error|api_error|EngineError", answer.text):
        wrong = f"an error in the stream: {answer.text[-300:]}"
    if wrong:
        found.wrong.append(f"{path} of seed {number}: {wrong}")


def _check_what_is_left(url: str, watch: Watch, before: dict[str, Any], found: Fuzzed) -> None:
    if not idle(url):
        found.wrong.append("answers still run")
        return
    httpx.post(f"{url}/v1/chat/completions", json=VALID, timeout=PATIENCE_S)  # it may be unloaded
    after = watch.at_rest(before)
    if after["tasks"] > before["tasks"]:
        found.wrong.append(f"{after['tasks']} tasks, and {before['tasks']} before")
    if after["kv"]["conversations"] != after["kv"]["resting"]:
        found.wrong.append(f"{after['kv']['conversations']} conversations, and {after['kv']['resting']} rest")
    empty = watch.look(signal.SIGUSR2)
    found.left.append(empty["bytes"])
    if empty["kv"]["pages"]:
        found.wrong.append(f"{empty['kv']['pages']} pages left")
