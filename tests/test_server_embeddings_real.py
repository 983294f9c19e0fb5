"""Embeddings of a live server, through the packages that people use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.bert_models import CLS, SEP, WIDTH, WINDOW, NumpyBert, write_bert
from tests.live_server import Live, live_server

if TYPE_CHECKING:
    import openai

    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

TEXTS = {"hello world": [CLS, 16, 17, SEP], "The cat sat.": None, "dogs": [CLS, 8, 45, SEP]}


@pytest.fixture(scope="module")
def live(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("server")
    path = write_bert(folder / "tiny-bert.gguf")
    with live_server(folder, str(path), "-t", "1", "--api-key", "k3y", CUDA_VISIBLE_DEVICES="") as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="k3y", max_retries=0) as client:
        yield client


def wanted(live: Live, text: str) -> object:
    keys = {"authorization": "Bearer k3y"}
    answer = httpx.post(f"{live.url}/tokenize", json={"content": text, "add_special": True}, headers=keys)
    tokens = answer.json()["tokens"]
    assert TEXTS.get(text) in (None, tokens)
    return NumpyBert().embedding(tokens)


def test_it_says_what_it_is(live: Live) -> None:
    assert f"tiny-bert · embeddings of {WIDTH} dimensions (mean) · texts of up to {WINDOW} tokens · CPU" in live.log


def test_the_openai_package_with_its_own_base64_and_with_floats(client: openai.OpenAI, live: Live) -> None:
    made = client.embeddings.create(model="tiny-bert", input=list(TEXTS))
    plain = client.embeddings.create(model="tiny-bert", input=list(TEXTS), encoding_format="float")
    for found in (made, plain):
        assert [one.index for one in found.data] == [0, 1, 2] and found.model == "tiny-bert"
        for text, one in zip(TEXTS, found.data, strict=True):
            np.testing.assert_allclose(one.embedding, wanted(live, text), atol=1e-3)  # type: ignore[arg-type]
    assert made.data == plain.data and made.usage == plain.usage
    raw = client.embeddings.with_raw_response.create(model="tiny-bert", input="dogs", encoding_format="base64")
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], str)


def test_tokens_and_dimensions(client: openai.OpenAI) -> None:
    tokens = [CLS, 16, 17, SEP]
    one = client.embeddings.create(model="tiny-bert", input=tokens, dimensions=8)
    (short,), whole = [d.embedding for d in one.data], NumpyBert().embedding(tokens)[:8]
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-3)
    assert one.usage.prompt_tokens == one.usage.total_tokens == 4


def test_what_the_package_raises(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {WINDOW} tokens") as long:
        client.embeddings.create(model="tiny-bert", input=["x", "dog " * WINDOW])
    assert long.value.code == "context_length_exceeded" and long.value.param == "input[1]"
    with pytest.raises(openai.BadRequestError, match="'dimensions' is 65"):
        client.embeddings.create(model="tiny-bert", input="x", dimensions=65)
    with pytest.raises(openai.BadRequestError, match="is for embeddings"):
        client.chat.completions.create(model="tiny-bert", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="x")


def test_many_clients_at_once(live: Live) -> None:
    import openai

    texts = [" ".join(["cat", "dog", "red"][: 1 + i % 3] * (1 + i % 20)) for i in range(60)]
    alone = {text: np.array(wanted(live, text)) for text in texts}

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k3y", max_retries=0) as client:

            async def one(i: int) -> None:
                mine = texts[i:] + texts[:i]
                made = await client.embeddings.create(model="tiny-bert", input=mine[: 1 + i % 7])
                for text, found in zip(mine, made.data, strict=False):
                    np.testing.assert_allclose(found.embedding, alone[text], atol=1e-3)

            await asyncio.gather(*(one(i) for i in range(60)))

    asyncio.run(main())


def test_no_thread_is_left(live: Live, client: openai.OpenAI) -> None:
    before = threads_of(live)
    for _ in range(20):
        client.embeddings.create(model="tiny-bert", input=["cat dog " * 20] * 40)
    assert threads_of(live) <= before + 1


def threads_of(live: Live) -> int:
    return len(list(Path(f"/proc/{live.process.pid}/task").iterdir()))


def test_the_other_way_round_a_model_for_text_makes_none(library: Library, smollm2: Path, tmp_path: Path) -> None:
    import openai

    args = ("--max-seq-len", "512", "-t", "1", "--served-model-name", "smollm2")
    with live_server(tmp_path, str(smollm2), *args, CUDA_VISIBLE_DEVICES="") as live:
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="'smollm2' generates text: it makes no embeddings"):
            client.embeddings.create(model="smollm2", input="x")
        with pytest.raises(openai.BadRequestError, match="'reasoning_effort' is not supported: the model 'smollm2'"):
            client.chat.completions.create(
                model="smollm2", messages=[{"role": "user", "content": "hi"}], reasoning_effort="low"
            )
        client.close()
