"""Answers of every family that llama.cpp's common_chat knows, through the server, cut at every byte.

The replies are those of tests/chat_cases.py; what llama.cpp's own C++ makes of them is recorded
(scripts/record_chat_vectors.py). A token is a byte, or all before a byte and all after it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.server.answers import Answers
from tests import chat_cases
from tests.grammar_texts import Texts
from tests.server_fakes import run
from tests.taught_replies import Said, Taught, taught_server
from tests.test_chat_families import REPLIES, VECTORS, expected_content, templates

if TYPE_CHECKING:
    from pagedrun.native.door import Door
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

ASKED = [
    (case, reply)
    for case, reply in REPLIES
    if "refused" not in reply and case["name"].partition(": ")[2] in ("plain", "tools", "tool required")
]
CALLING = [(case, reply) for case, reply in ASKED if reply["message"]["tool_calls"]]
ONCE = [(case, reply) for case, reply in CALLING if case["name"].endswith(": tools")]
NAMES = [f"{case['name']}-{i}" for i, (case, _) in enumerate(ASKED)]

#: Hard to cut, and no end of a call in any family: two, three and four bytes a character, tags, braces.
PLACE = "Ålesund, 日本 \U0001f600 </think> {<b>} & [x]"


@pytest.fixture(scope="session")
def door(library: Library) -> Door:
    from pagedrun.native.door import Door

    return Door(library.common)


@pytest.fixture(autouse=True)
def each_byte_alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Text is parsed as it is made, also where it was made faster than that."""
    monkeypatch.setattr(Answers, "_joined", lambda self, events: events)
    yield


def asks(case: dict[str, Any]) -> dict[str, Any]:
    """What the case asks, as a body of a chat."""
    request = case["request"]
    found = {k: request[k] for k in ("messages", "tools", "tool_choice") if k in request}
    return found | {"chat_template_kwargs": chat_cases.FIXED_DATE}


def expected(case: dict[str, Any], reply: dict[str, Any]) -> Any:
    """What llama.cpp made of it, as `Said.told`."""
    whole = reply["message"]
    calls = [(c["name"], c["arguments"]) for c in whole["tool_calls"]]
    content = expected_content(whole["content"], whole["reasoning"], {"content": "", "reasoning": ""})
    return content, whole["reasoning"].lstrip("\n"), calls, "tool_calls" if calls else "stop"


def bytes_of(text: str) -> list[bytes]:
    return [bytes([b]) for b in text.encode()]


def check_calls(said: Said) -> None:
    assert len({call_id for call_id, _, _ in said.calls}) == len(said.calls)
    for _, name, arguments in said.calls:
        assert name == "get_weather" and isinstance(json.loads(arguments), dict)


Way = Callable[[Taught, dict[str, Any], Sequence[bytes]], Awaitable[Said]]
WAYS: dict[str, Way] = {
    "chat": Taught.chat,
    "whole chat": Taught.whole_chat,
    "messages": Taught.messages,
    "responses": Taught.responses,
}


@pytest.mark.parametrize(("case", "reply"), ASKED, ids=NAMES)
def test_byte_by_byte(door: Door, case: dict[str, Any], reply: dict[str, Any]) -> None:
    async def scenario(taught: Taught) -> None:
        for way in WAYS.values():
            said = await way(taught, asks(case), bytes_of(reply["text"]))
            assert said.told == expected(case, reply)
            check_calls(said)

    with taught_server(templates(door, case)) as taught:
        run(scenario(taught))


@pytest.mark.parametrize(("case", "reply"), ONCE, ids=[f"{c['name']}-{i}" for i, (c, _) in enumerate(ONCE)])
def test_in_two_pieces_at_every_byte(door: Door, case: dict[str, Any], reply: dict[str, Any]) -> None:
    async def scenario(taught: Taught) -> None:
        data = reply["text"].encode()
        for at in range(1, len(data)):
            said = await taught.chat(asks(case), [data[:at], data[at:]])
            assert said.told == expected(case, reply), at
            check_calls(said)

    with taught_server(templates(door, case)) as taught:
        run(scenario(taught))


@pytest.mark.parametrize(("case", "reply"), ONCE, ids=[f"{c['name']}-{i}" for i, (c, _) in enumerate(ONCE)])
def test_arguments_that_are_hard_to_cut(door: Door, case: dict[str, Any], reply: dict[str, Any]) -> None:
    async def scenario(taught: Taught) -> None:
        for way in WAYS.values():
            said = await way(taught, asks(case), bytes_of(reply["text"].replace("Oslo", PLACE)))
            check_calls(said)
            assert [json.loads(arguments)["city"] for _, _, arguments in said.calls] == [PLACE]
            content, reasoning, _, reason = expected(case, reply)
            assert (said.content, said.reasoning, said.reason) == (content, reasoning, reason)

    with taught_server(templates(door, case)) as taught:
        run(scenario(taught))


_JSON = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
_XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
_DEEPSEEK = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}<｜tool▁call▁end｜>'
_KIMI = (
    "<|tool_call_begin|>functions.get_weather:%d<|tool_call_argument_begin|>"
    '{"city": "Oslo", "days": 2}<|tool_call_end|>'
)
_MISTRAL = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}, "id": "12345678%d"}'
_GLM = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
_GEMMA = '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>'
SEVERAL = {  # two calls in one answer, as each form has them
    "qwen2.5": f"Let me look.\n{_JSON}\n{_JSON}",
    "qwen3": f"<think>\nBoth.\n</think>\n\n{_JSON}\n{_JSON}",
    "qwen3.5": f"Both.\n</think>\n\n{_XML}\n{_XML}",
    "qwen3-coder": f"{_XML}\n{_XML}",
    "hermes-3": f"{_JSON}\n{_JSON}",
    "mistral-nemo": f"[TOOL_CALLS][{_MISTRAL % 1}, {_MISTRAL % 2}]",
    "gemma-4": _GEMMA * 2,
    "deepseek-v3.1": f"Both.</think><｜tool▁calls▁begin｜>{_DEEPSEEK * 2}<｜tool▁calls▁end｜>",
    "glm-4.6": f"\n<think>Both.</think>\n{_GLM}\n{_GLM}",
    "kimi-k2": f"<|tool_calls_section_begin|>{_KIMI % 0}{_KIMI % 1}<|tool_calls_section_end|>",
    "lfm2": '<|tool_call_start|>[get_weather(city="Oslo", days=2), get_weather(city="Oslo", days=2)]<|tool_call_end|>',
}
GENERIC = {"gemma-2": f"Let me look.\n{_JSON}", "phi-3.5": _JSON}  # templates without tools


def plain_case(name: str) -> dict[str, Any]:
    return next(c for c in chat_cases.cases() if c["name"] == f"{name}: plain")


@pytest.mark.parametrize("name", SEVERAL)
def test_two_calls_in_one_answer(door: Door, name: str) -> None:
    async def scenario(taught: Taught) -> None:
        ask = {"messages": [chat_cases.ASK], "tools": [chat_cases.WEATHER]}
        for way in WAYS.values():
            said = await way(taught, ask, bytes_of(SEVERAL[name]))
            check_calls(said)
            assert [json.loads(arguments) for _, _, arguments in said.calls] == [{"city": "Oslo", "days": 2}] * 2
            assert said.reason == "tool_calls" and "<" not in said.content + said.reasoning

    with taught_server(templates(door, plain_case(name))) as taught:
        run(scenario(taught))


@pytest.mark.parametrize("name", GENERIC)
def test_families_whose_templates_know_no_tools(door: Door, name: str) -> None:
    async def scenario(taught: Taught) -> None:
        ask = {"messages": [chat_cases.ASK], "tools": [chat_cases.WEATHER]}
        data = GENERIC[name].encode()
        cuts = [[data[:at], data[at:]] for at in range(1, len(data))]
        for pieces in (bytes_of(GENERIC[name]), *cuts):
            for way in WAYS.values() if len(pieces) > 2 else (Taught.chat,):
                said = await way(taught, ask, pieces)
                check_calls(said)
                assert [json.loads(arguments) for _, _, arguments in said.calls] == [{"city": "Oslo", "days": 2}]
                assert said.content.strip() == GENERIC[name].partition("<")[0].strip()
                assert said.reason == "tool_calls" and not said.reasoning

    with taught_server(templates(door, plain_case(name))) as taught:
        run(scenario(taught))


def test_the_families_are_those_that_matter() -> None:
    called = {case["name"].partition(":")[0] for case, _ in CALLING}
    assert called >= {
        "qwen2.5", "qwen3", "qwen3.5", "qwen3-coder", "hermes-3", "llama-3.1", "llama-3.3", "mistral-nemo",
        "ministral-3", "gemma-4", "gpt-oss", "deepseek-r1-distill", "deepseek-v3.1", "glm-4.6", "kimi-k2", "lfm2",
    }  # fmt: skip
    assert set(VECTORS["cases"]) >= {case["name"] for case, _ in ASKED}


@pytest.mark.parametrize("name", sorted({case["name"].partition(":")[0] for case, _ in CALLING}))
def test_a_function_that_is_named_is_called_once(door: Door, name: str) -> None:
    """No text by the grammar has a second call."""

    async def scenario(taught: Taught) -> None:
        ask = {"messages": [chat_cases.ASK], "tools": [chat_cases.WEATHER]}
        named = {"type": "function", "function": {"name": chat_cases.WEATHER["function"]["name"]}}
        await taught.chat({**ask, "tool_choice": named}, bytes_of(_JSON))
        texts = Texts(taught.grammar)
        assert {texts.text().count(named["function"]["name"]) for _ in range(100)} == {1}

    with taught_server(templates(door, plain_case(name))) as taught:
        run(scenario(taught))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "hermes-3", "granite-4.0", "phi-3.5"])
def test_one_call_where_no_more_are_wanted(door: Door, name: str) -> None:
    """llama.cpp's grammar of this form allows several whatever it is told."""

    async def scenario(taught: Taught) -> None:
        ask = {"messages": [chat_cases.ASK], "tools": [chat_cases.WEATHER]}
        for more, one in (({}, False), ({"parallel_tool_calls": True}, False), ({"parallel_tool_calls": False}, True)):
            for choice in ("auto", "required"):
                await taught.chat({**ask, **more, "tool_choice": choice}, bytes_of(_JSON))
                (rule,) = [line for line in taught.grammar.splitlines() if line.startswith("tool-calls ::=")]
                assert (rule == "tool-calls ::= tool-call space") is one
                assert rule.endswith(")+") is not one

    with taught_server(templates(door, plain_case(name))) as taught:
        run(scenario(taught))


@pytest.mark.parametrize("name", ["qwen3", "llama-3.1", "gpt-oss"])
def test_definitions_of_one_name_are_rules_of_their_own(door: Door, name: str) -> None:
    def tool(function: str, field: str) -> dict[str, Any]:
        item = {"type": "object", "properties": {field: {"type": "integer"}}, "required": [field]}
        parameters = {"type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}, "required": ["item"]}
        return {
            "type": "function",
            "function": {"name": function, "parameters": {**parameters, "$defs": {"Item": item}}},
        }

    async def scenario(taught: Taught) -> None:
        ask = {"messages": [chat_cases.ASK], "tools": [tool("one", "weight"), tool("two", "colour")]}
        await taught.chat({**ask, "tool_choice": "required"}, b"")
        assert "weight" in taught.grammar and "colour" in taught.grammar

    with taught_server(templates(door, plain_case(name))) as taught:
        run(scenario(taught))
