"""Anthropic's /v1/messages over the fake runner."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedrun.chat import Message, ToolCall
from tests.server_fakes import Fake, fake_server

ASK = {"model": "fake", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
SAYS = '<think>hm</think>I look.<call>look {"at": "sky"}</call>'


def ask(fake: Fake, **fields: Any) -> Any:
    answer = fake.post("/v1/messages", {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(fake: Fake, **fields: Any) -> list[dict[str, Any]]:
    text = fake.post("/v1/messages", {**ASK, "stream": True, **fields}).text
    events = [part.split("\n") for part in text.split("\n\n") if part.startswith("event: ")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [head.removeprefix("event: ") for head, _ in events] == [event["type"] for event in found]
    return found


def test_a_message() -> None:
    with fake_server() as fake:
        answer = ask(fake, system="Be kind.", stop_sequences=["xx"])
        assert answer["type"] == "message" and answer["role"] == "assistant" and answer["id"].startswith("msg_")
        assert answer["content"] == [{"type": "text", "text": "Hello!"}]
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
        assert answer["usage"]["input_tokens"] == 24 and answer["usage"]["output_tokens"] == 7
        assert fake.messages == (Message("system", "Be kind."), Message("user", "hi"))
        assert ask(fake, system=[{"type": "text", "text": "Be kind."}])["usage"]["cache_read_input_tokens"] == 23


def test_why_it_ended() -> None:
    with fake_server() as fake:
        cut = ask(fake, stop_sequences=["lo"])
        assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", "lo")
        assert ask(fake, max_tokens=2)["stop_reason"] == "max_tokens"
    with fake_server("Hi<stop>") as fake:  # the template's own stop string
        assert (ask(fake)["stop_reason"], ask(fake)["stop_sequence"]) == ("end_turn", None)


def test_blocks_as_a_whole_and_as_events() -> None:
    with fake_server(SAYS) as fake:
        answer = ask(fake, tools=[TOOL])
        thinking, text, use = answer["content"]
        assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
        assert text == {"type": "text", "text": "I look."}
        assert use["name"] == "look" and use["input"] == {"at": "sky"} and answer["stop_reason"] == "tool_use"
        start, *events, end, stop = stream(fake, tools=[TOOL])
        assert start["message"]["content"] == [] and stop == {"type": "message_stop"}
        assert end["delta"]["stop_reason"] == "tool_use" and end["usage"]["output_tokens"] > 10
        blocks: list[Any] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "open": True, "json": ""})
            elif event["type"] == "content_block_stop":
                blocks[event["index"]]["open"] = False
            else:
                assert event["index"] == len(blocks) - 1 and blocks[-1]["open"]
                delta = event["delta"]
                kind, name = {
                    "thinking_delta": ("thinking", "thinking"),
                    "text_delta": ("text", "text"),
                    "input_json_delta": ("tool_use", "json"),
                }[delta["type"]]
                assert blocks[-1]["type"] == kind
                blocks[-1][name] += delta.get("partial_json", delta.get(name))
        assert not any(block["open"] for block in blocks)
        assert [b["type"] for b in blocks] == ["thinking", "text", "tool_use"]
        assert (blocks[0]["thinking"], blocks[1]["text"]) == ("hm", "I look.")
        assert blocks[2]["input"] == {} and json.loads(blocks[2]["json"]) == {"at": "sky"}


def test_a_conversation_with_tools() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "well", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "blue"}]},
            {"type": "text", "text": "And now?"},
        ]},
    ]  # fmt: skip
    with fake_server() as fake:
        ask(fake, messages=messages, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True})
        assert fake.messages == (
            Message("user", "a\nb"),
            Message("assistant", "I look.", "well", (ToolCall("t1", "look", '{"x": 1}'),)),
            Message("tool", "blue", tool_call_id="t1"),
            Message("user", "And now?"),
        )
        assert fake.options.tool_choice == "required" and not fake.options.parallel_tool_calls
        (tool,) = fake.options.tools
        assert tool["function"]["parameters"] == TOOL["input_schema"]


def test_thinking_and_forms() -> None:
    with fake_server() as fake:
        ask(fake, thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=2001)
        assert fake.options.think is True and fake.options.reasoning_budget == 2000
        ask(fake, thinking={"type": "disabled"})
        assert fake.options.think is False
        ask(fake, output_config={"format": {"type": "json_schema", "schema": {"type": "array"}}})
        assert json.loads(fake.options.json_schema or "") == {"type": "array"}


def test_the_assistants_last_message_is_continued() -> None:
    messages = [*ASK["messages"], {"role": "assistant", "content": [{"type": "text", "text": "He"}]}]
    with fake_server() as fake:
        ask(fake)
        assert not fake.options.continue_final_message
        ask(fake, messages=messages)
        assert fake.options.continue_final_message and fake.messages[-1] == Message("assistant", "He")


def test_a_model_that_does_not_think() -> None:
    with fake_server() as fake:
        fake.templates.supports_thinking = False
        thinking = {"type": "enabled", "budget_tokens": 1024}
        answer = fake.post("/v1/messages", {**ASK, "thinking": thinking, "max_tokens": 2000})
        assert answer.status_code == 400 and "'thinking' is not supported" in answer.json()["error"]["message"]
        ask(fake, thinking={"type": "disabled"})
        ask(fake, thinking={"type": "adaptive"})
        counted = fake.post("/v1/messages/count_tokens", {"messages": ASK["messages"], "thinking": thinking})
        assert counted.status_code == 400
        told = fake.post("/v1/messages", {**ASK, "output_config": {"effort": "low"}}).json()["error"]["message"]
        assert told.startswith("'output_config.effort' is not supported: the model 'fake' does not think")
        fake.templates.source = "{{ reasoning_effort }}"
        ask(fake, thinking=thinking, max_tokens=2000)


def test_counting() -> None:
    with fake_server() as fake:
        found = fake.post("/v1/messages/count_tokens", {"messages": ASK["messages"], "system": "x"}).json()
        assert found == {"input_tokens": len("system:x\nuser:hi\n")}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "tool_use"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "hear"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"temperature": 1.1}, "temperature"),
        ({"thinking": {"type": "enabled"}}, "missing 'thinking.budget_tokens'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 2000}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "less than 'max_tokens'"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
            "'messages[0]' uses tools",
        ),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
    ],
)
def test_refusals_have_anthropics_shape(fields: dict[str, Any], says: str) -> None:
    with fake_server() as fake:
        answer = fake.post("/v1/messages", {**ASK, **fields})
        assert answer.status_code == 400
        error = answer.json()
        assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
        assert says in error["error"]["message"]


def test_a_wrong_key_has_anthropics_shape() -> None:
    with fake_server(keys=("k",)) as fake:
        answer = fake.post("/v1/messages", ASK, headers={"x-api-key": "no"})
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
        assert fake.post("/v1/messages", ASK, headers={"x-api-key": "k"}).status_code == 200
