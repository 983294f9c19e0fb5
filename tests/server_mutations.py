"""Requests, and changes that turn them into others: most of these are wrong in some way."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from pagedrun.request import GenerationRequest, Grammar, GrammarTrigger, Reasoning
from pagedrun.sampling import SamplingParams
from pagedrun.wire import request_to_json
from tests.server_fakes import TOOL

_SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}
_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_ID = "0" * 32
_REQUEST = GenerationRequest(
    prompt=(1, 2, 3),
    sampling=SamplingParams(temperature=0.5, top_k=5, logit_bias=((5, 1.0),), dry_sequence_breakers=("x",), seed=1),
    max_tokens=4,
    stop=("x",),
    grammar=Grammar(text='root ::= "a"', lazy=True, triggers=(GrammarTrigger(1, "a"),), preserved_tokens=("b",)),
    reasoning=Reasoning(start_tag="<think>", end_tags=("</think>",), budget_tokens=3),
    logprobs=2,
    preserved_tokens=("c",),
)

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": "fake",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "blue"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "n": 2,
            "stop": ["x", "y"],
            "seed": 5,
            "max_tokens": 4,
            "logprobs": True,
            "top_logprobs": 3,
            "logit_bias": {"5": 1.0},
            "presence_penalty": 0.1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False, "x": [1, {}]},
            "user": "me",
            "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/completions",
        {"model": "fake", "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "n": 2, "best_of": 2, "stop": "x"},
    ),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "echo": True, "stream": True, "grammar": 'root ::= "a"'}),
    (
        "/v1/messages",
        {
            "max_tokens": 5,
            "system": [{"type": "text", "text": "x"}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "blue"}]},
            ],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "tool", "name": "look"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["x"],
            "stream": True,
        },
    ),
    (
        "/v1/responses",
        {
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "blue"},
            ],
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "tool_choice": "required",
            "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
            "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"],
            "metadata": {"a": "b"},
            "stream": True,
        },
    ),
    # What a model that does not think can do:
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [TOOL],
            "tool_choice": "auto",
            "max_completion_tokens": 4,
            "logprobs": True,
            "stop": "x",
            "frequency_penalty": 0.1,
            "stream": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
            "max_tokens": 4,
            "seed": 1,
            "n": 2,
        },
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 5,
            "system": "x",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [{"name": "look", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "any"},
            "stream": True,
        },
    ),
    (
        "/v1/responses",
        {
            "input": "hi",
            "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
            "max_output_tokens": 4,
            "store": False,
            "stream": True,
        },
    ),
    ("/v1/completions", {"prompt": "hi", "response_format": {"type": "json_object"}, "max_tokens": 4, "top_k": 5}),
    (
        "/v1/messages/count_tokens",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "system": "x",
            "tools": [{"name": "look", "input_schema": {}}],
        },
    ),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "user": "me"}),
    ("/v1/pagedrun/generate", {"id": _ID, "model": "fake", "request": request_to_json(_REQUEST)}),
    ("/v1/pagedrun/cancel", {"id": _ID}),
    ("/v1/pagedrun/sessions/use", {"name": "mine", "model": "fake"}),
    ("/v1/pagedrun/sessions/save", {"name": "mine", "tokens": [1, 2, 3], "note": "{}"}),
    ("/v1/pagedrun/models/load", {"model": "fake"}),
    ("/v1/pagedrun/models/unload", {"model": "fake"}),
    ("/tokenize", {"content": "text", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}),
]

_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, -0.0, 1e308, 1e-320, "", "x", "none",
    "auto", "text", "\x00", "\ufeff", "é" * 50, "\U0001f600", "x" * 5000, "<stop>", "{", "[]", [], {}, [[]], [{}],
    {"": ""}, {"type": "text"}, {"type": "function"}, {"$ref": "#"}, ["a", 1], [None], [1] * 300,
]  # fmt: skip
_NAMES = ["messages", "role", "content", "tools", "type", "n", "stop", "prompt", "x", "", "\x00", "$schema", "stream"]


EMBEDDINGS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "fake", "input": "text", "encoding_format": "base64", "dimensions": 2, "user": "me"}),
    ("/v1/embeddings", {"input": ["a", "bc", "def"], "encoding_format": "float"}),
    ("/v1/embeddings", {"input": [1, 2, 3], "dimensions": 4}),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}),
    ("/v1/pagedrun/generate", {"id": _ID, "model": "fake", "request": request_to_json(_REQUEST)}),
    ("/v1/pagedrun/cancel", {"id": _ID}),
    ("/v1/pagedrun/sessions/use", {"name": "mine", "model": "fake"}),
    ("/v1/pagedrun/sessions/save", {"name": "mine", "tokens": [1, 2, 3], "note": "{}"}),
    ("/v1/pagedrun/models/load", {"model": "fake"}),
    ("/v1/pagedrun/models/unload", {"model": "fake"}),
    ("/tokenize", {"content": "text"}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3}),
]


def mutated(random: Random, requests: list[tuple[str, dict[str, Any]]] = REQUESTS) -> tuple[str, bytes]:
    """A path and a body."""
    path, request = random.choice(requests)
    request = copy.deepcopy(request)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(random, request)
    body = json.dumps(request, ensure_ascii=random.random() < 0.5).encode("utf-8", "replace")
    return path, _broken(random, body) if random.random() < 0.15 else body


def _change(random: Random, request: dict[str, Any]) -> None:
    """Change one place, anywhere in it."""
    places: list[Any] = [request]
    for place in places:
        inside = place.values() if isinstance(place, dict) else place
        places += [value for value in inside if isinstance(value, (dict, list)) and value]
    place = random.choice(places)
    if not place:
        return
    key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
    kind = random.randrange(6)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[random.choice(_NAMES)] = copy.deepcopy(random.choice(_VALUES))
    elif kind == 2 and isinstance(place, list):
        place += copy.deepcopy(place) * random.choice((1, 2, 40))
    elif kind == 3:
        place[key] = copy.deepcopy(random.choice(places))
    elif kind == 4:
        for _ in range(random.choice((2, 20, 150, 250))):
            place[key] = [place[key]] if random.random() < 0.5 else {"properties": place[key]}
    else:
        place[key] = copy.deepcopy(random.choice(_VALUES))


def _broken(random: Random, body: bytes) -> bytes:
    """Bytes that are no longer what they were."""
    at = random.randrange(len(body))
    kind = random.randrange(4)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + bytes([random.randrange(256)]) + body[at + 1 :]
    if kind == 2:
        return body[:at] + random.choice((b"\xff", b"\xed\xa0\x80", b"NaN", b"\\ud800", b"\x00")) + body[at:]
    return body + body
