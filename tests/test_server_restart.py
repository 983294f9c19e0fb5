"""What outlives a server: conversations in pages, and responses that later ones go on from."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live_server import Live, live_server

if TYPE_CHECKING:
    import openai

    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

MODEL = "smollm2"
STORY = f"Once upon a time there were {', '.join(f'{i} dwarfs' for i in range(220))} in a wood. Who came next?"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 5}


@contextmanager
def started(folder: Path, model: Path, *args: str, **env: str) -> Iterator[Live]:
    options = ("--max-seq-len", "4096", "-t", "1", "--served-model-name", MODEL, *args)
    with live_server(folder, str(model), *options, CUDA_VISIBLE_DEVICES="", **env) as live:
        yield live


def usage(live: Live, **fields: Any) -> tuple[int, int]:
    """Tokens of a prompt, and of these the cached ones."""
    answer = httpx.post(f"{live.url}/v1/chat/completions", json={**ASK, **fields}, timeout=120).json()
    return answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def stopped_in_an_answer(live: Live) -> None:
    ask = {**ASK, "stream": True, "max_tokens": 2000}
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=ask, timeout=120) as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        live.process.send_signal(signal.SIGTERM)
        assert "the server is stopping" in "\n".join(lines)
    assert live.process.wait(60) == 0


def test_what_was_just_computed_outlives_the_server(library: Library, smollm2: Path, tmp_path: Path) -> None:
    with started(tmp_path, smollm2, "--grace", "0") as live:
        stopped_in_an_answer(live)
        assert "not" not in live.log.rpartition("listening")[2]
    with started(tmp_path, smollm2) as live:
        n_prompt, cached = usage(live)
        assert n_prompt > 1000 and cached > n_prompt - 64
        assert live.stop() == 0


def test_a_prompt_that_was_half_read_outlives_it(library: Library, smollm2: Path, tmp_path: Path) -> None:
    at_once = ("--grace", "0", "--keep-alive-interval", "0.1")
    with started(tmp_path, smollm2, *at_once, PAGEDRUN_MAX_BATCH_TOKENS="64") as live:
        with (
            httpx.Client(base_url=live.url, timeout=120) as client,
            client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
        ):
            while client.get("/v1/pagedrun/stats").json()["tokens_computed"] < 600:
                time.sleep(0.01)
            live.process.send_signal(signal.SIGTERM)
            answer.read()
        assert live.process.wait(60) == 0
    with started(tmp_path, smollm2) as live:
        assert usage(live)[1] > 500
        assert live.stop() == 0


def test_a_response_goes_on_in_the_next_server(library: Library, smollm2: Path, tmp_path: Path) -> None:
    with started(tmp_path, smollm2) as live, client_of(live) as client:
        first = client.responses.create(model=MODEL, input=STORY, temperature=0, max_output_tokens=5)
        assert live.stop() == 0
    with started(tmp_path, smollm2) as live, client_of(live) as client:
        second = client.responses.create(
            model=MODEL, input="And then?", previous_response_id=first.id, temperature=0, max_output_tokens=5
        )
        assert first.usage and second.usage
        assert second.usage.input_tokens > first.usage.input_tokens
        assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens - 64
        assert client.responses.retrieve(first.id).output_text == first.output_text
        items = client.responses.input_items.list(second.id, order="asc").data
        assert [item.role for item in items] == ["user", "assistant", "user"]  # type: ignore[union-attr]
        client.responses.delete(first.id)
        assert live.stop() == 0
    assert "dwarfs" not in live.log


def client_of(live: Live) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
