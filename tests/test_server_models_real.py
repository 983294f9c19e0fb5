"""Several real models in one live server: loaded on request, unloaded when nobody uses them, with their memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.live_server import Live, live_server

pytestmark = pytest.mark.real

TEXT = "The keeper of the lighthouse counts the ships that pass. " * 60  # some 700 tokens: enough to be kept on disk
ARGUMENTS = ("-t", "1", "-c", "4096", "--gpu-layers", "0")


@pytest.fixture(scope="module")
def server(smollm2: Path, tiny_hybrid: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    names = (str(smollm2), str(tiny_hybrid))
    with live_server(tmp_path_factory.mktemp("several"), *names, "--keep-alive", "-1", *ARGUMENTS) as live:
        yield live


def models(live: Live) -> dict[str, Any]:
    found = httpx.get(f"{live.url}/v1/models", timeout=60).json()["data"]
    return {one["id"]: one["pagedrun"] for one in found}


def answer(live: Live, model: str, text: str = "hi") -> Any:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=120)
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=4, temperature=0)


def move(live: Live, what: str, model: str) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/pagedrun/models/{what}", json={"model": model}, timeout=120)


def memory_of(live: Live) -> int:
    """Bytes of the process that no file has."""
    lines = Path(f"/proc/{live.process.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def mapped(live: Live, path: Path) -> bool:
    return str(path) in Path(f"/proc/{live.process.pid}/maps").read_text()


def test_both_answer_and_what_one_computed_outlives_it(server: Live, smollm2: Path, tiny_hybrid: Path) -> None:
    first, second = smollm2.stem, tiny_hybrid.stem
    assert {name: one["loaded"] for name, one in models(server).items()} == {first: True, second: False}
    said = {name: answer(server, name, TEXT) for name in (first, second)}
    found = models(server)
    assert all(one["loaded"] for one in found.values())
    assert sum(one["memory"]["swap"] for one in found.values()) <= 4 << 30, "swap_space is for all of them"
    assert mapped(server, tiny_hybrid)
    before = memory_of(server)
    for name in (first, second):
        assert move(server, "unload", name).json()["pagedrun"]["memory"] is None
    assert memory_of(server) < before - (20 << 20)
    assert not mapped(server, tiny_hybrid) and not mapped(server, smollm2)
    for name in (second, first):
        again = answer(server, name, TEXT)
        assert again.choices[0].message.content == said[name].choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens > 400, "it was on disk"


def test_memory_does_not_grow_with_loads(server: Live, smollm2: Path, tiny_hybrid: Path) -> None:
    names = (smollm2.stem, tiny_hybrid.stem)

    def round_trip() -> int:
        for name in names:
            answer(server, name)
        for name in names:
            assert move(server, "unload", name).status_code == 200
        return memory_of(server)

    round_trip()
    settled = round_trip()
    assert max(round_trip() for _ in range(4)) < settled + (8 << 20)


def test_both_compute_at_once(server: Live, smollm2: Path, tiny_hybrid: Path) -> None:
    names = (smollm2.stem, tiny_hybrid.stem)
    body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "stream": True}
    long, short = {**body, "model": names[0]}, {**body, "model": names[1], "max_tokens": 64}  # one until it is left
    with (
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json=long, timeout=120) as one,
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json=short, timeout=120) as two,
    ):
        lines = one.iter_lines(), two.iter_lines()
        assert all(any("content" in line for line in stream) for stream in lines)
        assert move(server, "unload", names[0]).status_code == 409
        assert "data: [DONE]" in list(lines[1]) and any("content" in line for line in lines[0])
    assert httpx.get(f"{server.url}/ready").json()["status"] == "ok"


def test_what_does_not_fit_beside_another_takes_turns(smollm2: Path, tiny_hybrid: Path, tmp_path: Path) -> None:
    """With gpu_memory for one of them only."""
    names = (smollm2.stem, tiny_hybrid.stem)
    limit = ("--gpu-memory", "60MiB", "--keep-alive", "1h")
    with live_server(tmp_path, str(smollm2), str(tiny_hybrid), *limit, *ARGUMENTS) as live:
        for name in (*names, *names):
            assert answer(live, name).usage.completion_tokens == 4
            found = models(live)
            assert [one for one in names if found[one]["loaded"]] == [name]
            assert found[name]["memory"]["context"] <= 60 << 20
        assert "another needs the memory" in live.log
        assert live.stop() == 0


def test_an_idle_model_gives_its_memory_back_by_itself(smollm2: Path, tmp_path: Path) -> None:
    with live_server(tmp_path, str(smollm2), "--keep-alive", "1s", *ARGUMENTS) as live:
        answer(live, smollm2.stem)
        until = time.monotonic() + 60
        while models(live)[smollm2.stem]["loaded"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert not mapped(live, smollm2)
        assert httpx.get(f"{live.url}/ready").status_code == 200
        assert answer(live, smollm2.stem).usage.completion_tokens == 4
        assert live.stop() == 0
