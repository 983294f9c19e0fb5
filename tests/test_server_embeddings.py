"""/v1/embeddings over a fake reader."""

from __future__ import annotations

import asyncio
import base64
import collections
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest

from pagedrun.embedding import EmbeddingService
from pagedrun.server.app import make_app
from pagedrun.server.embeddings import MOST_INPUTS, EmbeddingServing
from pagedrun.server.models import Models
from pagedrun.server.serving import ServeSettings
from pagedrun.step import RunnerLimits
from tests.embedding_fakes import FakeReader, raw, vector
from tests.server_fakes import Caller, eventually, fake_server, run
from tests.server_mutations import EMBEDDINGS, mutated

PATH = "/v1/embeddings"


class Fake:
    """A server with one model for embeddings."""

    def __init__(self, reader: FakeReader, serving: EmbeddingServing) -> None:
        self.reader, self.serving = reader, serving
        self.models = Models(serving.settings, [serving])
        self.app = make_app(self.models)

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **more)

        return asyncio.run(one())

    def embed(self, given: Any, **fields: Any) -> httpx.Response:
        return self.call("POST", PATH, json={"model": "fake", "input": given, **fields})

    def vectors(self, given: Any, **fields: Any) -> list[list[float]]:
        answer = self.embed(given, **fields)
        assert answer.status_code == 200, answer.text
        data = answer.json()["data"]
        assert [one["index"] for one in data] == list(range(len(data)))
        return [one["embedding"] for one in data]


@contextmanager
def fake_embeddings(pooling: str = "mean", **settings: Any) -> Iterator[Fake]:
    reader = FakeReader(RunnerLimits(max_num_seqs=8, max_seq_len=32, max_batch_tokens=64), pooling=pooling)
    how = replace(ServeSettings(names=("fake", "other"), hosts=("localhost",)), **settings)
    serving = EmbeddingServing(EmbeddingService(reader), how)
    try:
        yield Fake(reader, serving)
    finally:
        if reader.gate is not None:
            reader.gate.release(10_000)
        serving.close()


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_embeddings() as made:
        yield made


def test_a_text(fake: Fake) -> None:
    answer = fake.embed("hello").json()
    assert answer["object"] == "list" and answer["model"] == "fake"
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    (one,) = answer["data"]
    assert one["object"] == "embedding" and one["index"] == 0
    np.testing.assert_allclose(one["embedding"], vector(list(b"hello")), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (["a", "bc"], [b"a", b"bc"]),
        ([5, 6], [bytes([5, 6])]),
        ([[5, 6], [7]], [bytes([5, 6]), bytes([7])]),
    ],
)
def test_several_texts_and_tokens(fake: Fake, given: Any, texts: list[bytes]) -> None:
    np.testing.assert_allclose(fake.vectors(given), [vector(list(text)) for text in texts], rtol=1e-6)


def test_what_a_request_has_is_read_together(fake: Fake) -> None:
    fake.reader.batches.clear()
    fake.vectors(["xy"] * 24)
    assert [len(batch) for batch in fake.reader.batches] == [8, 8, 8]


def test_base64_is_little_endian_float32(fake: Fake) -> None:
    numbers = fake.vectors(["hello", "x"])
    texts: Any = fake.vectors(["hello", "x"], encoding_format="base64")
    found = [np.frombuffer(base64.b64decode(text), "<f4") for text in texts]
    np.testing.assert_array_equal(found, np.array(numbers, np.float32))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_dimensions_are_the_first_and_have_length_one(fake: Fake, n: int) -> None:
    (found,) = fake.vectors("hello", dimensions=n)
    first = vector(list(b"hello"))[:n]
    np.testing.assert_allclose(found, first / np.linalg.norm(first), rtol=1e-6)


def test_fields_that_change_nothing_and_other_names(fake: Fake) -> None:
    assert fake.embed("x", user="me", model="other").json()["model"] == "fake"
    assert fake.call("POST", PATH, json={"input": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": None}, "input", "missing 'input'"),
        ({"input": ""}, "input", "'input' is an empty text"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": ["a", ""]}, "input[1]", "'input[1]' is an empty text"),
        ({"input": ["a", 5]}, "input[1]", "string"),
        ({"input": [[]]}, "input[0]", "at least 1 item"),
        ({"input": [[1], "a"]}, "input[1]", "list"),
        ({"input": 5}, "input", "string"),
        ({"input": {"text": "x"}}, "input", "string"),
        ({"input": [1, 258]}, "input", "outside 0 to 257"),
        ({"input": [[1], [-1]]}, "input[1]", "outside 0 to 257"),
        ({"input": ["x"] * (MOST_INPUTS + 1)}, "input", "at most 2048"),
        ({"dimensions": 0}, "dimensions", "greater"),
        ({"dimensions": 5}, "dimensions", "'dimensions' is 5, and the model's vectors have 4"),
        ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"truncate": True}, "truncate", "unknown field"),
        ({"model": "nobody"}, "model", "does not exist"),
    ],
)
def test_what_is_refused(fake: Fake, fields: dict[str, Any], param: str, says: str) -> None:
    answer = fake.call("POST", PATH, json={"model": "fake", "input": "x", **fields})
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400)
    assert error["param"] == param and says in error["message"], error
    assert fake.embed("x").status_code == 200


@pytest.mark.parametrize(
    ("given", "at"), [("x" * 33, "input"), (["x", "y" * 33], "input[1]"), ([[1] * 33], "input[0]")]
)
def test_a_text_longer_than_the_window_is_refused_with_the_numbers(fake: Fake, given: Any, at: str) -> None:
    answer = fake.embed(given)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == at
    assert f"maximum context length is 32 tokens. However, '{at}' has 33 tokens" in error["message"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (33, 32)
    assert fake.embed("x" * 32).status_code == 200


def test_a_reranker_gives_scores() -> None:
    with fake_embeddings("rank") as fake:
        assert fake.vectors("hello") == [raw(list(b"hello"))]
        assert fake.embed("x", dimensions=2).json()["error"]["param"] == "dimensions"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_it_does_not_chat(fake: Fake, path: str, body: dict[str, Any]) -> None:
    answer = fake.call("POST", path, json={"model": "fake", **body})
    assert answer.status_code == 400
    assert "the model 'fake' is for embeddings: it does not generate text" in answer.json()["error"]["message"]


def test_a_model_that_generates_text_makes_no_embeddings() -> None:
    with fake_server() as fake:
        answer = fake.post(PATH, {"model": "fake", "input": "x"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "'fake' generates text: it makes no embeddings" in error["message"] and error["param"] == "model"


def test_tokens_and_a_look_inside(fake: Fake) -> None:
    assert fake.call("POST", "/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
    assert fake.call("POST", "/detokenize", json={"tokens": [97]}).json() == {"content": "a"}
    assert [m["id"] for m in fake.call("GET", "/v1/models").json()["data"]] == ["fake", "other"]
    found = fake.call("GET", "/v1/pagedrun/properties").json()
    assert found["pooling"] == "mean" and found["dimensions"] == 4 and found["limits"]["max_seq_len"] == 32
    for path in ("/ready", "/metrics", "/v1/pagedrun/stats", "/v1/pagedrun/memory", "/v1/pagedrun/plan"):
        assert fake.call("GET", path).status_code == 200


def test_what_cannot_be_computed(fake: Fake) -> None:
    answer = fake.embed([[13]])
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert fake.embed("x").status_code == 200


@pytest.mark.parametrize("seed", range(3))
def test_no_request_is_a_defect(seed: int) -> None:
    async def scenario(fake: Fake) -> None:
        random = Random(seed)
        transport = httpx.ASGITransport(app=fake.app)
        statuses: collections.Counter[int] = collections.Counter()
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(500):
                path, body = mutated(random, EMBEDDINGS)
                answer = await client.post(path, content=body)
                statuses[answer.status_code] += 1
                assert answer.status_code < 500, (path, body, answer.text)
                assert answer.status_code == 200 or answer.json()["error"]["message"]
        assert statuses[200] > 25 and statuses[400] > 100
        assert fake.serving.gate.inside == 0 and not fake.serving.open_answers and fake.serving.service.alive

    with fake_embeddings() as fake:
        run(scenario(fake))


def test_the_queue_has_an_end() -> None:
    with fake_embeddings(max_queue=1) as fake:
        fake.reader.gate = threading.Semaphore(0)

        async def main() -> None:
            body = {"model": "fake", "input": "x"}
            callers = [Caller(fake.app, PATH, body) for _ in range(9)]
            await eventually(lambda: fake.serving.gate.inside == 9)
            late = Caller(fake.app, PATH, body)
            await late.task
            assert late.status == 429 and b"the queue is full" in late.body
            assert fake.reader.gate is not None
            fake.reader.gate.release(100)
            await asyncio.gather(*(caller.task for caller in callers))
            assert [caller.status for caller in callers] == [200] * 9
            assert fake.serving.gate.inside == 0

        run(main())


def test_a_client_that_leaves_is_not_read_for() -> None:
    with fake_embeddings() as fake:
        fake.reader.gate = threading.Semaphore(0)

        async def main() -> None:
            first = Caller(fake.app, PATH, {"model": "fake", "input": "x"})
            await eventually(lambda: len(fake.reader.batches) == 1)
            leaves = Caller(fake.app, PATH, {"model": "fake", "input": ["y"] * 100})
            await eventually(lambda: fake.serving.gate.inside == 2)
            leaves.leave()
            await leaves.task
            assert fake.serving.gate.inside == 1 and len(fake.serving.open_answers) == 1
            assert fake.reader.gate is not None
            fake.reader.gate.release(100)
            await first.task
            assert first.status == 200 and len(fake.reader.batches) == 1

        run(main())


def test_when_the_server_stops_those_who_wait_are_told() -> None:
    with fake_embeddings() as fake:
        fake.reader.gate = threading.Semaphore(0)

        async def main() -> None:
            callers = [Caller(fake.app, PATH, {"model": "fake", "input": "x"}) for _ in range(2)]
            await eventually(lambda: fake.serving.gate.inside == 2 and len(fake.reader.batches) == 1)
            fake.models.stop()
            assert fake.models.answering
            fake.models.cancel_all()
            await asyncio.gather(*(caller.task for caller in callers))
            assert [caller.status for caller in callers] == [503, 503]
            assert b"the server is stopping" in callers[0].body and not fake.models.answering

        run(main())
        assert fake.embed("x").status_code == 503
