"""What a server does not take: said by name, in OpenAI's error shape, and the next request is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pagedrun.errors import PagedrunError, SessionError, SessionInUseError, SessionNotFoundError, UsageError
from pagedrun.server.errors import of_ours
from tests.server_fakes import CHAT, TOOL, Fake, fake_server

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_server(max_body=100_000) as made:
        yield made


def error_of(answer: Any, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys() and error["message"]
    return error


BAD = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "mood": "y"}]}, "messages[0].mood"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 1.5}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"seed": "x"}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options.x"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}, "grammar": "x"}, "grammar"),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs"),
    ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
    ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "reasoning_effort"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"audio": {}}, "audio"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"verbosity": "low"}, "verbosity"),
    ({"best_of": 2}, "best_of"),
    ({"num_ctx": 4096}, "num_ctx"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty"),
    ({"ignore_eos": True, "grammar": "x"}, "ignore_eos"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[str(fields)[:40] for fields, _ in BAD])
def test_a_field_is_refused_by_name(fake: Fake, fields: dict[str, Any], param: str | None) -> None:
    error = error_of(fake.chat(**fields))
    assert error["type"] == "invalid_request_error" and error["param"] == param


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"\xff\xfe{\x00}\x00", "UTF-8"),
        (b'{"a": "\xc3"}', "UTF-8"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": 1e999}', "too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "brackets"),
        (b'{"a": ' + b"[" * 40_000 + b"}", "brackets"),
    ],
)
def test_a_body_that_is_none(fake: Fake, body: bytes, says: str) -> None:
    error = error_of(fake.post(PATH, content=body))
    assert says in error["message"] and error["code"] == "invalid_json"
    assert fake.chat().status_code == 200


def test_a_body_that_is_too_large(fake: Fake) -> None:
    error = error_of(fake.chat(user="x" * 100_000), 413)
    assert error["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/nothing", ""),
        ("/v1/", ""),
    ],
)
def test_a_base_url_with_v1_too_many_or_too_few(fake: Fake, path: str, meant: str) -> None:
    message = error_of(fake.post(path, {}), 404)["message"]
    assert message.endswith(f"(did you mean {meant}?)") if meant else message.endswith("Not Found")


def test_what_can_be_got_can_be_looked_at(fake: Fake) -> None:
    for path in ("/health", "/ready", "/v1/models", "/metrics", "/docs", "/openapi.json", "/"):
        assert fake.call("HEAD", path).status_code == 200
    assert fake.call("HEAD", "/v1/pagedrun/plan?model=other").status_code == 404


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET, HEAD"),
        ("/v1/responses/x", "DELETE, GET, HEAD"),
        ("/v1/pagedrun/engine", "GET"),
        ("/", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have(fake: Fake, path: str, methods: str) -> None:
    answer = fake.call("POST", path)
    assert error_of(answer, 405)["message"] == f"POST {path}: Method Not Allowed"
    assert answer.headers["allow"] == methods


def test_a_body_that_is_compressed(fake: Fake) -> None:
    answer = fake.call("POST", "/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert error_of(answer, 400)["code"] == "unsupported_encoding"
    assert fake.call("POST", "/tokenize", json={"content": "a"}, headers={"content-encoding": "identity"}).is_success


def test_a_prompt_beyond_the_context_says_the_numbers(fake: Fake) -> None:
    messages = [{"role": "user", "content": "x" * 5000}]
    for stream in (False, True):
        error = error_of(fake.chat(messages=messages, stream=stream))
        assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
        assert "maximum context length is 4096 tokens" in error["message"]
        assert (error["n_ctx"], error["n_prompt_tokens"]) == (4096, 5006)


def test_what_templates_and_schemas_refuse(fake: Fake) -> None:
    assert "because" in error_of(fake.chat(messages=[{"role": "user", "content": "break the template"}]))["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"impossible": 1}}}
    answer = fake.post("/v1/completions", {"prompt": "x", "response_format": schema})
    assert "schema" in error_of(answer)["message"]


def test_paths_and_methods_that_are_none(fake: Fake) -> None:
    assert error_of(fake.call("GET", "/v1/nothing"), 404)["type"] == "invalid_request_error"
    error_of(fake.call("GET", PATH), 405)
    error_of(fake.call("GET", "/v1/models/other"), 404)


def test_a_defect_is_a_500_and_no_more(fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr("pagedrun.server.chat.chat_task", lambda serving, ask: 1 / 0)
    error = error_of(fake.chat(messages=[{"role": "user", "content": "secret words"}]), 500)
    assert error["type"] == "server_error" and "ZeroDivision" not in error["message"]
    assert "secret words" not in caplog.text and "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert fake.chat().status_code == 200


def test_keys() -> None:
    with fake_server(keys=("right", "other")) as fake:
        assert error_of(fake.chat(), 401)["code"] == "invalid_api_key"
        for headers, sent in (
            ({"authorization": "Bearer wrong"}, True),
            ({"authorization": "right"}, False),
            ({"x-api-key": ""}, False),
        ):
            answer = fake.post(PATH, CHAT, headers=headers)
            assert answer.headers["www-authenticate"] == "Bearer" and "wrong" not in answer.text
            assert ("Incorrect" in error_of(answer, 401)["message"]) == sent
        for headers in ({"authorization": "Bearer right"}, {"authorization": "bearer other"}, {"x-api-key": "right"}):
            assert fake.post(PATH, CHAT, headers=headers).status_code == 200
        assert fake.call("GET", "/health").status_code == 200
        assert fake.call("GET", "/metrics").status_code == 401
        assert (
            fake.call("GET", "/v1/models", headers={"authorization": "Bearer \xff".encode("latin-1")}).status_code
            == 401
        )


def test_pages_of_other_sites_are_kept_out() -> None:
    with fake_server() as fake:
        assert (
            error_of(fake.post(PATH, CHAT, headers={"origin": "https://evil.example"}), 403)["code"]
            == "origin_not_allowed"
        )
        rebound = {"origin": "http://evil.example", "host": "evil.example"}
        assert error_of(fake.post(PATH, CHAT, headers=rebound), 403)["code"] == "host_not_allowed"
        for host in ("localhost:7243", "127.0.0.1:7243", "[::1]:7243"):
            assert fake.post(PATH, CHAT, headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_a_name_that_a_proxy_uses() -> None:
    with fake_server(hosts=("localhost", "llm.example")) as fake:
        headers = {"host": "LLM.example", "origin": "https://LLM.example"}
        assert fake.post(PATH, CHAT, headers=headers).status_code == 200
        assert fake.post(PATH, CHAT, headers={"host": "other.example"}).status_code == 403


def test_pages_that_are_let_in() -> None:
    origin = "http://localhost:3000"
    with fake_server(cors=(origin,), keys=("k",)) as fake:
        asks = {"origin": origin, "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type"}  # fmt: skip
        allowed = fake.call("OPTIONS", PATH, headers=asks)
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == origin
        answer = fake.post(PATH, CHAT, headers={"origin": origin, "authorization": "Bearer k"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == origin
        refused = fake.post(PATH, CHAT, headers={"origin": origin})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == origin
        assert fake.post(PATH, CHAT, headers={"origin": "http://localhost:3001"}).status_code == 403


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no name"), 400),
        (SessionNotFoundError("gone"), 404),
        (SessionInUseError("taken"), 409),
        (SessionError("damaged"), 500),
    ],
)
def test_our_own_errors(error: PagedrunError, status: int) -> None:
    assert of_ours(error).status == status and of_ours(error).body["error"]["message"] == error.message
