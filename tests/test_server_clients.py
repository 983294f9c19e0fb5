"""Requests as clients send them, odd but right: each is answered, and what it says is understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server_fakes import Fake, fake_server

CHAT, MESSAGES, RESPONSES, TEXT = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"at": {"type": "string", "description": "Where"}},
    "required": ["at"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "description": "Look.", "parameters": PARAMETERS, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CACHE = {"cache_control": {"type": "ephemeral"}}
JOKE = {
    "title": "Joke",
    "type": "object",
    "properties": {"a": {"title": "A", "type": "string", "description": "d"}},
    "required": ["a"],
    "additionalProperties": False,
}

SENT: dict[str, tuple[str, dict[str, Any]]] = {
    "LangChain, streaming": (
        CHAT,
        {"messages": HI, "stream": True, "temperature": 0.7, "n": 1, "stream_options": {"include_usage": True}},
    ),
    "LangChain, defaults by name": (
        CHAT,
        {
            "messages": HI, "max_completion_tokens": 100, "logprobs": False, "top_logprobs": None, "seed": None,
            "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "stop": [],
        },
    ),
    "LangChain, tools": (
        CHAT,
        {
            "messages": [
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "blue"},
            ],
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "LangChain, structured": (
        CHAT,
        {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "Joke", "description": "A joke", "strict": True, "schema": JOKE},
            },
        },
    ),
    "aider": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "You edit code.", **CACHE}]},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "Ok."},
                {"role": "user", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "temperature": 0,
            "stream": True,
        },
    ),
    "Continue": (
        CHAT,
        {
            "messages": HI, "max_tokens": 2048, "temperature": 0.1, "top_p": 1, "stop": ["```\n", "<|endoftext|>"],
            "stream": True, "prediction": {"type": "content", "content": "x"},
        },
    ),
    "Open WebUI": (
        CHAT,
        {"stream": True, "messages": HI, "max_tokens": None, "user": {"name": "a", "id": "1", "role": "admin"}},
    ),
    "Open WebUI, a title": (CHAT, {"messages": HI, "max_completion_tokens": 1000, "metadata": {"task": "title"}}),
    "Cline": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "<task>\nhi"}, {"type": "text", "text": "#"}]},
            ],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "Vercel's AI SDK": (
        CHAT,
        {
            "messages": [
                *HI,
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": '{"a":1}'},
            ],
            "tools": [{"type": "function", "function": {k: v for k, v in FUNCTION.items() if k != "strict"}}],
            "tool_choice": "auto",
            "stream": True,
        },
    ),
    "a message as it came": (
        CHAT,
        {
            "messages": [
                *HI,
                {
                    "role": "assistant", "content": "x", "refusal": None, "audio": None, "function_call": None,
                    "tool_calls": None, "annotations": [],
                },
                {"role": "user", "content": "y"},
            ]
        },
    ),
    "empty lists": (
        CHAT,
        {
            "messages": [*HI, {"role": "assistant", "content": "", "tool_calls": []}, {"role": "user", "content": "y"}],
            "tools": [],
            "tool_choice": "none",
            "stop": [],
        },
    ),
    "a tool's name, and parts": (
        CHAT,
        {
            "messages": [
                *HI,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "name": "look", "content": [{"type": "text", "text": "blue"}]},
            ]
        },
    ),
    "OpenAI's fields that change nothing": (
        CHAT,
        {"messages": HI, "service_tier": "default", "safety_identifier": "x", "prompt_cache_key": "k", "store": False},
    ),
    "verbosity as it is": (CHAT, {"messages": HI, "verbosity": "medium"}),
    "Claude Code": (
        MESSAGES,
        {
            "max_tokens": 32000,
            "system": [{"type": "text", "text": "You are", **CACHE}, {"type": "text", "text": "x"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **CACHE}]}],
            "tools": [{"name": "look", "description": "d", "input_schema": PARAMETERS, **CACHE}],
            "metadata": {"user_id": "u"},
            "stream": True,
            "temperature": 1,
            "thinking": {"type": "disabled"},
        },
    ),
    "Claude Code, a tool's result": (
        MESSAGES,
        {
            "max_tokens": 100,
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "x", "signature": ""},
                        {"type": "text", "text": "x"},
                        {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "a"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}],
                         "is_error": False, **CACHE},
                        {"type": "text", "text": "go"},
                    ],
                },
            ],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
    ),
    "Codex": (
        RESPONSES,
        {
            "instructions": "You are",
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            ],
            "tools": [{"type": "function", "name": "look", "strict": False, "parameters": PARAMETERS}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
        },
    ),
    "Codex, what came back": (
        RESPONSES,
        {
            "input": [
                *HI,
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}],
                 "encrypted_content": None},
                {"type": "message", "role": "assistant", "id": "m", "status": "completed",
                 "content": [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]},
                {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": "{}",
                 "status": "completed"},
                {"type": "function_call_output", "call_id": "c", "output": "blue"},
            ],
            "store": False,
        },
    ),
    "OpenAI's agents": (
        RESPONSES,
        {
            "input": "hi", "include": [], "instructions": None, "previous_response_id": None, "tools": [],
            "metadata": None, "truncation": None, "max_output_tokens": None, "text": {"format": {"type": "text"}},
            "reasoning": None, "service_tier": "auto", "background": False, "user": "x", "stream": True,
        },
    ),
    "an old client": (
        TEXT,
        {
            "prompt": "x", "max_tokens": 5, "temperature": 0, "top_p": 1, "frequency_penalty": 0,
            "presence_penalty": 0, "best_of": 1, "n": 1, "echo": False, "logprobs": None, "stop": None, "suffix": None,
        },
    ),
    "lm-eval": (TEXT, {"prompt": [[65, 66]], "max_tokens": 256, "stop": ["\n\n", "<end>"], "seed": 1234}),
}  # fmt: skip


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_server('Hi<call>look {"at":"a"}</call>') as made:
        yield made


@pytest.mark.parametrize("name", SENT)
def test_it_is_answered(fake: Fake, name: str) -> None:
    path, body = SENT[name]
    n = len(fake.runner.got)
    answer = fake.post(path, {"model": "fake", **body})
    assert answer.status_code == 200, answer.text
    assert '"error":{' not in answer.text
    assert len(fake.runner.got) == n + 1


def test_headers_and_queries_that_clients_add(fake: Fake) -> None:
    headers = {
        "authorization": "Bearer whatever",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "prompt-caching-2024-07-31",
        "openai-organization": "o",
        "x-stainless-lang": "python",
        "accept": "text/event-stream",
        "content-type": "text/plain",  # of a client that forgot it
    }
    body = json.dumps({"model": "fake", "max_tokens": 50, "messages": HI}).encode()
    assert fake.post(f"{MESSAGES}?beta=true", content=body, headers=headers).status_code == 200
    assert fake.post(CHAT, content=body, headers=headers).status_code == 200
