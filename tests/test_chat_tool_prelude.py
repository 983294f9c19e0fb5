"""Tools for templates that know none, over llama.cpp's own reading of templates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message, ToolCall
from tests.chat_doors import TemplateFileDoor

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}<turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
CHAT = [
    Message("user", "What is above?"),
    Message("assistant", "I look.", tool_calls=(ToolCall("a", "look", '{"at": "sky"}'), ToolCall("b", "look", "{}"))),
    Message("tool", "blue", tool_call_id="a"),
    Message("tool", "dark", tool_call_id="b"),
]


@pytest.fixture(params=[CHATML, GEMMA], ids=["chatml", "gemma"])
def templates(library: Library, request: pytest.FixtureRequest) -> ChatTemplates:
    from pagedrun.native.door import Door

    return ChatTemplates(TemplateFileDoor(Door(library.common), bos="", eos=""), None, request.param)


def test_tools_calls_and_answers_are_in_the_prompt(templates: ChatTemplates) -> None:
    prompt = templates.render(CHAT, ChatOptions(tools=(TOOL,))).prompt
    assert '"name": "look"' in prompt.partition("What is above?")[0]
    assert 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>\n<tool_call>' in prompt
    assert "<tool_response>\nblue\n</tool_response>\n<tool_response>\ndark\n</tool_response>" in prompt


def test_a_system_message_keeps_its_place(templates: ChatTemplates) -> None:
    prompt = templates.render([Message("system", "Be brief."), *CHAT], ChatOptions(tools=(TOOL,))).prompt
    assert prompt.count("Be brief.") == 1 and prompt.index("Be brief.") < prompt.index("What is above?")


def test_without_tools_nothing_is_different(templates: ChatTemplates) -> None:
    assert "Tools" not in templates.render(CHAT[:1]).prompt
    assert "<tool_call>" in templates.render(CHAT).prompt


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_calls_are_read_back(templates: ChatTemplates, cut: int) -> None:
    rendered = templates.render(CHAT[:1], ChatOptions(tools=(TOOL,), parallel_tool_calls=True))
    assert rendered.grammar is not None and rendered.grammar.lazy
    parser = templates.reply_parser(rendered)
    text = 'Well.\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
    said = "".join(parser.feed(text[i : i + cut]).content for i in range(0, len(text), cut))
    reply = parser.finish()
    assert said.strip() == reply.content.strip() == "Well."
    (call,) = reply.tool_calls
    assert call.name == "look" and json.loads(call.arguments) == {"at": "sky"}


def test_where_a_call_is_required_it_comes_first(templates: ChatTemplates) -> None:
    rendered = templates.render(CHAT[:1], ChatOptions(tools=(TOOL,), tool_choice="required"))
    assert rendered.grammar is not None and not rendered.grammar.lazy
    root = next(line for line in rendered.grammar.text.splitlines() if line.startswith("root ::="))
    assert root.endswith("tool-call") or root.endswith("tool-calls")
    assert "until" not in root
