"""Templates, replies and schemas of many model families, against what llama.cpp's own C++ said of them.

The expectations are recorded by scripts/record_chat_vectors.py; the templates come out of the pinned sdist, which
`pagedrun setup` keeps in its cache (they are their makers' work, so this repository has no copies of them).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun import paths
from pagedrun.chat import ChatOptions, ChatTemplates, Message, RenderedChat, ToolCall
from pagedrun.errors import GrammarError
from pagedrun.request import GrammarKind
from pagedrun.runtime.sources import PINNED
from tests import chat_cases
from tests.chat_doors import TemplateFileDoor

if TYPE_CHECKING:
    from pagedrun.native.door import Door
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "chat_vectors.json").read_text())
CASES = chat_cases.cases()
REPLIES = [(c, r) for c in CASES for r in VECTORS["cases"][c["name"]].get("replies", [])]


@functools.cache
def template_texts() -> dict[str, str]:
    archive = paths.cache_dir() / "sdist" / PINNED.file_name
    if not archive.exists():
        pytest.skip(f"no {archive}: run pagedrun setup")
    pattern = re.compile(r".*/models/templates/([^/]+)\.jinja$")
    texts: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if match := pattern.match(member.name):
                texts[match[1]] = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
    return texts


@pytest.fixture(scope="session")
def door(library: Library) -> Door:
    from pagedrun.native.door import Door

    return Door(library.common)


@pytest.fixture(autouse=True)
def silence(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing of this may print."""
    yield
    assert capfd.readouterr() == ("", "")


def templates(door: Door, case: dict[str, Any]) -> ChatTemplates:
    return ChatTemplates(
        TemplateFileDoor(door, bos=case["bos"], eos=case["eos"]), None, template_texts()[case["template"]]
    )


def message(value: dict[str, Any]) -> Message:
    calls = [ToolCall(c["id"], **c["function"]) for c in value.get("tool_calls", [])]
    return Message(
        value["role"],
        value["content"],
        tool_calls=tuple(calls),
        tool_call_id=value.get("tool_call_id", ""),
        name=value.get("name", ""),
    )


def render(door: Door, case: dict[str, Any]) -> tuple[ChatTemplates, RenderedChat]:
    """What the case asks of llama.cpp, in pagedrun's terms. Switches of thinking are pagedrun's own business."""
    request = case["request"]
    options = ChatOptions(
        add_generation_prompt=request.get("add_generation_prompt", True),
        continue_final_message=request.get("continue_final_message", False),
        think=case["think"],
        tools=tuple(request.get("tools", ())),
        tool_choice=request.get("tool_choice", "auto"),
        json_schema=request.get("json_schema"),
        template_kwargs=chat_cases.FIXED_DATE,
    )
    opened = templates(door, case)
    return opened, opened.render([message(m) for m in request["messages"]], options)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_prompt_and_constraints(door: Door, case: dict[str, Any]) -> None:
    expected = VECTORS["cases"][case["name"]]
    _, chat = render(door, case)
    assert undated(chat.prompt) == expected["prompt"]
    assert sha256(chat.grammar.text if chat.grammar else "") == expected["grammar_sha256"]
    if chat.grammar:
        assert chat.grammar.lazy == expected["grammar_lazy"]
        assert [[t.type, t.value] for t in chat.grammar.triggers] == expected["triggers"]
        assert chat.grammar.generation_prompt == expected["generation_prompt"]
        assert chat.grammar.kind is (
            GrammarKind.OUTPUT_FORMAT if "json_schema" in case["request"] else GrammarKind.TOOL_CALLS
        )
    assert list(chat.stop) == expected["stops"]
    assert set(expected["preserved_tokens"]) <= set(chat.preserved_tokens)
    assert chat.supports_thinking == expected["supports_thinking"]
    if expected["thinking_end_tags"]:
        assert chat.reasoning is not None
        assert chat.reasoning.start_tag == expected["thinking_start_tag"]
        assert list(chat.reasoning.end_tags) == expected["thinking_end_tags"]
    else:
        assert chat.reasoning is None


@pytest.mark.parametrize(("case", "reply"), REPLIES, ids=[f"{c['name']}-{i}" for i, (c, _) in enumerate(REPLIES)])
def test_reply_in_one_piece(door: Door, case: dict[str, Any], reply: dict[str, Any]) -> None:
    opened, chat = render(door, case)
    parser = opened.reply_parser(chat)
    parser.feed(reply["text"])
    said = parser.finish()
    if "refused" in reply:
        assert said == Message("assistant", reply["text"])  # llama-server fails here; no text is lost
        return
    before = VECTORS["cases"][case["name"]]["before"] if chat.continued else {"content": "", "reasoning": ""}
    whole = reply["message"]
    assert said.content == expected_content(whole["content"], whole["reasoning"], before)
    assert said.reasoning == reply["message"]["reasoning"].removeprefix(before["reasoning"]).lstrip("\n")
    calls = reply["message"]["tool_calls"]
    assert [(c.name, c.arguments) for c in said.tool_calls] == [(c["name"], c["arguments"]) for c in calls]
    for call, recorded in zip(said.tool_calls, calls, strict=True):
        assert call.id == recorded["id"] or (recorded["id"] == "" and re.fullmatch(r"[A-Za-z0-9]{9}", call.id))


@pytest.mark.parametrize(("case", "reply"), REPLIES, ids=[f"{c['name']}-{i}" for i, (c, _) in enumerate(REPLIES)])
def test_reply_character_by_character(door: Door, case: dict[str, Any], reply: dict[str, Any]) -> None:
    """At each character, what was given out is what llama.cpp's streaming had given out; nothing is taken back."""
    opened, chat = render(door, case)
    parser = opened.reply_parser(chat)
    before = VECTORS["cases"][case["name"]]["before"] if chat.continued else {"content": "", "reasoning": ""}
    steps = {n: (content, reasoning) for n, content, reasoning in reply["steps"]}
    content, reasoning, size = "", "", 0
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for character in reply["text"]:
        delta = parser.feed(character)
        content, reasoning, size = content + delta.content, reasoning + delta.reasoning, size + len(character.encode())
        for call in delta.tool_calls:
            assert (call.index in names) != bool(call.name), "the name comes once, and first"
            names.setdefault(call.index, call.name)
            arguments[call.index] = arguments.get(call.index, "") + call.arguments
        if size in steps:
            assert content == expected_content(*steps[size], before)
            assert reasoning == steps[size][1].removeprefix(before["reasoning"]).lstrip("\n")
    said = parser.finish()
    assert said.content.startswith(content)
    assert said.reasoning.startswith(reasoning)
    for index, text in arguments.items():
        assert said.tool_calls[index].name == names[index]
        assert said.tool_calls[index].arguments.startswith(text)


def expected_content(content: str, reasoning: str, before: dict[str, Any]) -> str:
    content = content.removeprefix(before["content"])
    return content.lstrip("\n") if reasoning else content


@pytest.mark.parametrize("name", [n for n, f in chat_cases.FAMILIES.items() if "off" in f])
def test_thinking_can_be_switched(door: Door, name: str) -> None:
    case = next(c for c in CASES if c["name"] == f"{name}: think off")
    opened = templates(door, case)
    prompts = [
        opened.render([Message("user", "Hi")], ChatOptions(think=think, template_kwargs=chat_cases.FIXED_DATE)).prompt
        for think in (True, False)
    ]
    assert opened.supports_thinking
    assert prompts[0] != prompts[1]


def test_nemotron_reads_the_switch_out_of_the_messages(door: Door) -> None:
    case = {"template": "NVIDIA-Nemotron-Nano-v2", "bos": "<s>", "eos": "</s>"}
    opened = templates(door, case)
    on, off = (opened.render([Message("user", "Hi")], ChatOptions(think=t)).prompt for t in (True, False))
    assert on.endswith("<think>\n")
    assert off.endswith("<think></think>")
    assert "/no_think" not in off


@pytest.mark.parametrize(("name", "schema"), chat_cases.SCHEMAS, ids=[n for n, _ in chat_cases.SCHEMAS])
def test_schema_to_grammar(door: Door, name: str, schema: str) -> None:
    expected = VECTORS["schemas"][name]
    case = {"template": "Qwen-Qwen3-0.6B", "bos": "", "eos": ""}
    opened = templates(door, case)
    if "refused" in expected:
        told = "the JSON schema cannot be used: " + expected["refused"].replace("\n", " ")
        with pytest.raises(GrammarError) as refused:
            opened.schema_to_grammar(schema)
        assert refused.value.message == told
        with pytest.raises(GrammarError) as refused:
            opened.render([Message("user", "x")], ChatOptions(json_schema=schema))
        assert refused.value.message == told
    else:
        assert opened.schema_to_grammar(schema) == expected["grammar"]


def test_the_vectors_cover_what_they_are_for() -> None:
    """Guards against a recording in which llama.cpp refused everything."""
    assert {c["name"] for c in CASES} == set(VECTORS["cases"])
    assert len({c["template"] for c in CASES}) >= 25
    called = {n.split(":")[0] for n, v in VECTORS["cases"].items() for r in v["replies"] if called_in(r)}
    thought = {n.split(":")[0] for n, v in VECTORS["cases"].items() for r in v["replies"] if thought_in(r)}
    assert len(called) >= 15
    assert len(thought) >= 12


def called_in(reply: dict[str, Any]) -> bool:
    return bool(reply.get("message", {}).get("tool_calls"))


def thought_in(reply: dict[str, Any]) -> bool:
    return "Oslo" in reply.get("message", {}).get("reasoning", "")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def undated(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d|[A-Z][a-z]+ \d\d?, \d{4}", "DATE", text)
