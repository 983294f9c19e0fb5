"""Responses, events and errors as the packages of OpenAI and Anthropic have them, with their own types, strictly."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server_fakes import TOOL, Caller, Fake, fake_server, run

SAYS = '<think>hm</think>I look.<call>look {"at": "sky", "for": "birds"}</call>'
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
OURS = {"name": "look", "input_schema": {"type": "object"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def strictly(kind: Any, data: Any) -> Any:
    """The data as the package's type; JSON's only conversions are those of times."""
    return adapter(kind).validate_json(json.dumps(data), strict=True)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def data_of(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


def within(fake: Fake, package: Any, url: str = "http://localhost") -> dict[str, Any]:
    """Arguments for a package's client, which talks to the fake server without a socket."""
    base = package.DefaultAsyncHttpxClient.__mro__[1]  # of httpx, or of what the package uses in its place
    http = sys.modules[base.__module__.partition(".")[0]]
    client = http.AsyncClient(transport=http.ASGITransport(app=fake.app))
    return {"api_key": "any", "base_url": url, "http_client": client, "max_retries": 0}


def with_openai(fake: Fake, work: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def go() -> None:
        async with openai.AsyncOpenAI(**within(fake, openai, "http://localhost/v1")) as client:
            await work(client)

    run(go())


def with_anthropic(fake: Fake, work: Callable[[anthropic.AsyncAnthropic], Awaitable[None]]) -> None:
    async def go() -> None:
        async with anthropic.AsyncAnthropic(**within(fake, anthropic)) as client:
            await work(client)

    run(go())


@pytest.mark.parametrize("fields", [{}, {"tools": [FUNCTION]}, {"top_logprobs": 2}, {"top_logprobs": 0}])
@pytest.mark.parametrize("most", [4, 20, 45, 200])
def test_responses_and_their_events(fields: dict[str, Any], most: int) -> None:
    with fake_server(SAYS if "tools" in fields else "Hello!") as fake:
        body = {"input": "hi", "max_output_tokens": most, **fields}
        whole = strictly(Response, fake.post("/v1/responses", body).json())
        assert whole.usage.input_tokens_details.cache_write_tokens == 0
        events = data_of(fake.post("/v1/responses", {**body, "stream": True}).text)
        kinds = [strictly(ResponseStreamEvent, event).type for event in events]
        assert kinds[0] == "response.created" and kinds[-1] == f"response.{whole.status}"


def test_a_response_that_failed() -> None:
    with fake_server("x" * 500) as fake:

        async def work() -> None:
            fake.runner.gate = threading.Semaphore(3)
            caller = Caller(fake.app, "/v1/responses", {"input": "hi", "stream": True})
            await caller.until(lambda c: b"delta" in c.body)
            fake.serving.cancel_all()
            fake.runner.gate.release(10_000)
            await caller.until(lambda c: c.done)
            last = strictly(ResponseStreamEvent, data_of(caller.body.decode())[-1])
            assert last.type == "response.failed" and "stopping" in last.response.error.message

        run(work())


def test_what_a_response_answers_keeps_ids_and_roles() -> None:
    with fake_server(SAYS) as fake:
        given = [
            {"type": "message", "id": "msg_mine", "role": "developer", "content": "Be kind."},
            {"type": "message", "id": "msg_mine", "role": "user", "content": "Twice the same id."},
            {"type": "function_call", "id": "fc_a", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call", "id": "fc_b", "call_id": "b", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "id": "fco_a", "call_id": "a", "output": "blue"},
            {"type": "function_call_output", "call_id": "b", "output": "grey"},
            {"role": "user", "content": "So?"},
        ]
        first = fake.post("/v1/responses", {"input": given, "tools": [FUNCTION]}).json()
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "green"}
        more = {"input": [result], "previous_response_id": first["id"]}
        second = fake.post("/v1/responses", more).json()
        for answer, outputs in ((first, []), (second, first["output"])):
            found = fake.call("GET", f"/v1/responses/{answer['id']}/input_items?order=asc").json()
            items = strictly(ResponseItemList, found).data
            ids = [item.id for item in items]
            assert len(set(ids)) == len(ids) and ids[0] == "msg_mine" and ids[1] != "msg_mine"
            assert ids[2:5] == ["fc_a", "fc_b", "fco_a"]
            assert [item.role for item in items[:2]] == ["developer", "user"]
            assert [item.status for item in items[4:6]] == ["completed"] * 2
            assert ids[7 : 7 + len(outputs)] == [item["id"] for item in outputs]


def test_a_response_is_streamed_only_once(fake: Fake) -> None:
    made = fake.post("/v1/responses", {"input": "hi"}).json()
    path = f"/v1/responses/{made['id']}"
    assert fake.call("GET", f"{path}?stream=false").json() == made
    for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after")):
        answer = fake.call("GET", f"{path}?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_models_for_anthropics_clients(fake: Fake) -> None:
    async def work(client: anthropic.AsyncAnthropic) -> None:
        found = [model async for model in client.models.list(limit=1)]
        assert [(one.type, one.id, one.display_name) for one in found] == [("model", "fake", "fake")]
        assert (await client.models.retrieve("fake")).created_at == found[0].created_at
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("gpt-4")
        assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]

    with_anthropic(fake, work)
    headers = {"anthropic-version": "2023-06-01"}
    page = fake.call("GET", "/v1/models?beta=true", headers=headers).json()
    assert strictly(ModelInfo, page["data"][0]).created_at.tzinfo is not None
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("fake", "fake", False)
    refused = fake.call("GET", "/v1/models?after_id=none", headers=headers)
    assert refused.status_code == 400 and refused.json()["type"] == "error"
    assert fake.call("GET", "/v1/models").json()["object"] == "list"


def error_of(answer: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer.json()["error"]
    return found


BAD_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"impossible": 1}}}
UNKNOWN: list[Any] = [
    *HI,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c2", "content": "x"},
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "response_format": BAD_SCHEMA}, "response_format.json_schema.schema"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": ["x", ""]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/chat/completions", {"messages": HI, "continue_final_message": True}, "continue_final_message"),
        ("/v1/chat/completions", {"messages": HI, "top_logprobs": 1}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HI, "tools": [TOOL], "grammar": "x"}, "grammar"),
        ("/v1/chat/completions", {"messages": HI, "tools": [TOOL, TOOL]}, "tools"),
        ("/v1/responses", {"input": "hi", "tools": [FUNCTION, FUNCTION]}, "tools"),
        ("/v1/chat/completions", {"messages": UNKNOWN}, "messages[2].tool_call_id"),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "b", "output": "x"},
                ]
            },
            "input",
        ),
    ],
)
def test_errors_name_the_field(fake: Fake, path: str, body: dict[str, Any], param: str) -> None:
    answer = fake.post(path, body)
    assert answer.status_code == 400 and error_of(answer)["param"] == param, answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "bad"}, "grammar"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_cannot_be_used_names_what_it_is_of(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str | None, stream: bool
) -> None:
    from pagedrun.errors import GrammarError

    def open_(slot: Any, request: Any) -> None:
        raise GrammarError("the grammar cannot be used")

    monkeypatch.setattr(fake.runner, "open", open_)
    answer = fake.chat(**fields, stream=stream)
    assert answer.status_code == 400 and error_of(answer)["param"] == param


def test_what_asks_for_nothing_is_accepted(fake: Fake) -> None:
    assert fake.chat(top_logprobs=0).json()["choices"][0]["logprobs"] is None
    assert fake.post("/v1/completions", {"prompt": "x", "suffix": ""}).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [*HI, {"role": "tool", "tool_call_id": "c2", "content": "x"}],  # what is left of a longer chat
        [*HI, {"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}, UNKNOWN[-1]],  # a server without ids
        [*UNKNOWN[:2], {**UNKNOWN[-1], "tool_call_id": "c1"}, *HI, UNKNOWN[-1]],  # of calls that are not there
    ],
)
def test_a_result_that_may_be_meant_is_taken(fake: Fake, messages: list[dict[str, Any]]) -> None:
    answer = fake.chat(messages=messages)
    assert answer.status_code == 200, answer.text


def test_openais_words_for_an_unknown_model_and_a_wrong_key() -> None:
    with fake_server(keys=("right",)) as fake:

        async def work(client: openai.AsyncOpenAI) -> None:
            with pytest.raises(openai.AuthenticationError) as wrong:
                await client.models.list()
            assert (wrong.value.type, wrong.value.code) == ("invalid_request_error", "invalid_api_key")
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.with_options(api_key="right").models.retrieve("gpt-4")
            told = unknown.value
            assert (told.type, told.code, told.param) == ("invalid_request_error", "model_not_found", "model")
            assert wrong.value.request_id and unknown.value.request_id != wrong.value.request_id

        with_openai(fake, work)

        async def other(client: anthropic.AsyncAnthropic) -> None:
            with pytest.raises(anthropic.AuthenticationError) as wrong:
                await client.messages.create(model="fake", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
            body: Any = wrong.value.body
            assert body["error"]["type"] == "authentication_error"
            assert body["request_id"] == wrong.value.request_id is not None
            with pytest.raises(anthropic.NotFoundError) as unknown:
                await client.with_options(api_key="right").messages.create(
                    model="gpt-4", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
                )
            body = unknown.value.body
            assert body["error"]["type"] == "not_found_error" and body["request_id"] == unknown.value.request_id

        with_anthropic(fake, other)


def test_either_key_will_do() -> None:
    with fake_server(keys=("right",)) as fake:
        for bearer, other, status in (
            ("wrong", "right", 200),
            ("right", "wrong", 200),
            ("wrong", "wrong", 401),
            ("", "right", 200),
        ):
            headers = {"authorization": f"Bearer {bearer}", "x-api-key": other}
            assert fake.call("GET", "/v1/models", headers=headers).status_code == status


def test_requests_have_ids(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
        assert first._request_id and strictly(ChatCompletion, first.to_dict())
        embedded = await client.models.list()
        assert embedded._request_id not in (None, first._request_id)

    with_openai(fake, work)

    async def other(client: anthropic.AsyncAnthropic) -> None:
        async with client.messages.stream(
            model="fake", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as stream:
            assert stream.request_id
            await stream.get_final_message()

    with_anthropic(fake, other)
    caplog.set_level("INFO", "pagedrun.server")
    for path in ("/health", "/v1/nothing", "/", "/v1/pagedrun/stats"):
        mine = fake.call("GET", path, headers={"x-request-id": "mine 1"}).headers
        assert mine["x-request-id"] == mine["request-id"] == "mine 1"
        assert caplog.messages[-1].endswith(" mine 1")
    for odd in (b"", b"x" * 129, "é".encode(), b"a\tb"):
        found = fake.call("GET", "/health", headers={"x-request-id": odd}).headers["x-request-id"]
        assert found.startswith("req_") and len(found) == 36


def test_a_call_of_anthropics_that_was_cut_off() -> None:
    with fake_server('<call>look {"at": "sky", "for": "birds"}</call>') as fake:
        ask = {"model": "fake", "messages": HI, "tools": [OURS], "max_tokens": 32}
        whole = strictly(Message, fake.post("/v1/messages", ask).json())
        assert whole.stop_reason == "max_tokens" and whole.content[0].input == {"at": "sky"}

        async def work(client: anthropic.AsyncAnthropic) -> None:
            async with client.messages.stream(**ask) as stream:  # type: ignore[arg-type]
                final = await stream.get_final_message()
            assert final.content[0].input == whole.content[0].input  # type: ignore[union-attr]
            assert final.usage.cache_read_input_tokens and final.usage.input_tokens == 1

        with_anthropic(fake, work)


def test_anthropics_counts_in_a_stream(fake: Fake) -> None:
    ask = {"model": "fake", "messages": HI, "max_tokens": 9, "stream": True}
    for _ in range(2):
        events = data_of(fake.post("/v1/messages", ask).text)
        for event in events:
            strictly(RawMessageStreamEvent, event)
        start, delta = events[0]["message"]["usage"], events[-2]["usage"]
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        assert sum(start[name] for name in names) == sum(delta[name] for name in names)
    assert start["cache_read_input_tokens"] == 0 < delta["cache_read_input_tokens"]


@pytest.fixture
def fake() -> Any:
    with fake_server() as found:
        yield found
