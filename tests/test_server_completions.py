"""/v1/completions, tokens, models, health, metrics, and the look inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.server_fakes import CHAT, Fake, fake_server


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_server() as made:
        yield made


def complete(fake: Fake, **fields: Any) -> Any:
    answer = fake.post("/v1/completions", {"model": "fake", "prompt": "ab", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_completion(fake: Fake) -> None:
    answer = complete(fake)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["prompt_tokens"] == 2
    assert fake.request.max_tokens == 16


def test_prompts_of_all_kinds(fake: Fake) -> None:
    assert len(complete(fake, prompt=["a", "b"], n=2)["choices"]) == 4
    assert complete(fake, prompt=["a", "bc"])["usage"]["prompt_tokens"] == 3
    complete(fake, prompt=[72, 105])
    assert fake.request.prompt == (72, 105)
    assert len(complete(fake, prompt=[[72], [105, 106]])["choices"]) == 2
    assert complete(fake, prompt=[72, 105], echo=True)["choices"][0]["text"] == "HiHello!"


def test_logprobs_have_offsets(fake: Fake) -> None:
    found = complete(fake, logprobs=1, max_tokens=2)["choices"][0]["logprobs"]
    assert found["tokens"] == ["H", "e"] and found["text_offset"] == [0, 1]
    assert found["token_logprobs"] == [-0.5, -0.5] and len(found["top_logprobs"]) == 2


def test_a_stream(fake: Fake) -> None:
    *chunks, last, done = fake.events("/v1/completions", prompt="ab", echo=True, stream_options={"include_usage": True})
    assert done == "[DONE]" and last["usage"]["completion_tokens"] == 7
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert "".join(c["choices"][0]["text"] for c in chunks) == "abHello!"
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [9999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_refusals(fake: Fake, fields: dict[str, Any], param: str | None) -> None:
    answer = fake.post("/v1/completions", {"prompt": "x", **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_one_prompt_of_several_that_is_too_long_ends_them_all(fake: Fake) -> None:
    answer = fake.post("/v1/completions", {"prompt": ["x", "y" * 5000]})
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert complete(fake)["choices"][0]["text"] == "Hello!"


def test_tokens(fake: Fake) -> None:
    assert fake.post("/tokenize", {"content": "hé"}).json() == {"tokens": [104, 195, 169]}
    pieces = fake.post("/tokenize", {"content": "hé", "with_pieces": True}).json()["tokens"]
    assert [p["piece"] for p in pieces] == ["h", [195], [169]]
    assert fake.post("/detokenize", {"tokens": [104, 195, 169]}).json() == {"content": "hé"}
    assert fake.post("/detokenize", {"tokens": [104, 1000]}).status_code == 400
    assert fake.post("/apply-template", CHAT).json() == {"prompt": "user:hi\n"}


def test_models(fake: Fake) -> None:
    (model,) = fake.call("GET", "/v1/models").json()["data"]
    assert model["id"] == "fake" and model["object"] == "model" and model["max_model_len"] == 4096
    assert fake.call("GET", "/v1/models/fake").json() == model


def test_health_and_metrics(fake: Fake) -> None:
    assert fake.call("GET", "/health").json() == {"status": "ok"}
    assert fake.call("GET", "/ready").json()["status"] == "ok"
    complete(fake)
    text = fake.call("GET", "/metrics").text
    assert 'pagedrun_http_requests_total{path="/v1/completions",status="200"}' in text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['pagedrun_generated_tokens_total{model="fake"}']) >= 7
    assert float(lines['pagedrun_steps_total{model="fake"}']) >= 7
    assert float(lines['pagedrun_running{model="fake"}']) == 0 and float(lines['pagedrun_loaded{model="fake"}']) == 1


def test_a_look_inside(fake: Fake) -> None:
    found = fake.call("GET", "/v1/pagedrun/properties").json()
    assert (
        found["limits"]["max_seq_len"] == 4096 and found["names"] == ["fake"] and found["model"]["path"] == "fake.gguf"
    )
    assert fake.call("GET", "/v1/pagedrun/stats").json()["running"] == 0
    assert fake.call("GET", "/v1/pagedrun/memory").json() == {"kv_cache": None}


def test_what_goes_where(fake: Fake) -> None:
    service = fake.serving.service
    assert fake.call("GET", "/v1/pagedrun/plan").json() == {
        "device": "CPU",
        "weights_bytes": service.model.size_bytes,
        "kv_cache": None,
    }
    service.model = replace(service.model, device="two GPUs")
    answer = fake.call("GET", "/v1/pagedrun/plan")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "no_plan"


def test_the_description_and_its_page(fake: Fake) -> None:
    found = fake.call("GET", "/openapi.json").json()
    body = found["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert {"messages", "tools", "temperature"} <= schema["properties"].keys()
    page = fake.call("GET", "/docs").text
    assert "/v1/chat/completions" in page and "http" not in page and "<script" not in page
