"""The second template engine, and when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message, ToolCall
from pagedrun.chat.jinja import JinjaTemplate
from pagedrun.errors import TemplateError
from pagedrun.request import Grammar, GrammarTrigger
from tests.chat_doors import FakeDoor, TemplateFileDoor

if TYPE_CHECKING:
    from pagedrun.native.library import Library

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Opens the thinking in the prompt, unless told not to.
THINKING = CHATML.replace("<|assistant|>", "<|assistant|><think>{% if not enable_thinking %}</think>{% endif %}")


def open_failing(source: str) -> ChatTemplates:
    door = FakeDoor()
    door.open_error = TemplateError("llama.cpp cannot")
    return ChatTemplates(door, None, source)


def render(source: str, *messages: Message, **options: Any) -> str:
    return open_failing(source).render(messages or (Message("user", "Hi"),), ChatOptions(**options)).prompt


def test_renders_what_llama_cpp_cannot_parse() -> None:
    assert render(CHATML) == "<|user|>Hi</s><|assistant|>", "the BOS is the vocabulary's to add"
    assert render(CHATML, add_generation_prompt=False) == "<|user|>Hi</s>"


def test_renders_what_llama_cpp_fails_to_run() -> None:
    door = FakeDoor(source=CHATML)
    door.apply_error = TemplateError("llama.cpp cannot")
    templates = ChatTemplates(door, None)
    chat = templates.render([Message("user", "Hi")])
    assert chat.prompt == "<|user|>Hi</s><|assistant|>"
    reply = templates.reply_parser(chat)
    reply.feed("<think> is just text here")
    assert reply.finish().content == "<think> is just text here"


def test_thinking_is_split_off_by_its_tags() -> None:
    templates = open_failing(THINKING)
    chat = templates.render([Message("user", "Hi")])
    assert chat.supports_thinking
    assert chat.reasoning is not None
    reply = templates.reply_parser(chat)
    assert reply.feed("Hm</think>Yes").reasoning == "Hm"
    assert reply.finish() == Message("assistant", "Yes", "Hm")
    assert render(THINKING, think=False).endswith("<think></think>")


def test_a_message_is_continued() -> None:
    messages = (Message("user", "Hi"), Message("assistant", "Hello, "))
    assert render(CHATML, *messages, continue_final_message=True) == "<|user|>Hi</s><|assistant|>Hello, "


def test_schema_and_grammar() -> None:
    templates = open_failing(CHATML)
    chat = templates.render([Message("user", "Hi")], ChatOptions(json_schema='{"type": "null"}'))
    assert chat.grammar == Grammar(text='root ::= {"type": "null"}')
    thinking = open_failing(THINKING).render([Message("user", "Hi")], ChatOptions(json_schema='{"type": "null"}'))
    assert thinking.grammar is not None
    assert thinking.grammar.triggers == (GrammarTrigger(1, "</think>"),)


def test_what_templates_of_the_field_use() -> None:
    call = ToolCall("id", "f", '{"a": "é"}')
    source = (
        "{%- for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
        "{{ c.function.arguments.a }}"
        "{% endfor %}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ tools | tojson(indent=1) | length > 20 }}{{ extra }}"
    )
    tool = {"type": "function", "function": {"name": "f"}}
    messages = (Message("assistant", tool_calls=(call,)),)
    prompt = render(source, *messages, tools=(tool,), template_kwargs={"extra": "!"})
    assert prompt == '{"a": "é"}é4True!'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.foo.bar.baz }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(1000000000) | list }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_or_breaks_out(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_syntax_error_shows_its_line() -> None:
    with pytest.raises(TemplateError, match=r"line 2: (?s:.*)\{% endfor") as refused:
        JinjaTemplate({"source": "Hello\n  {% endfor %}", "bos": "", "eos": "", "add_bos": False})
    assert refused.value.hint


@pytest.mark.real
@pytest.mark.parametrize(
    "expression",
    [
        "{% block b %}HELLO{% endblock %}",
        "{{ 'hello' | wordwrap(80) | upper }}",
        "{% include [] ignore missing %}HELLO",
    ],
)
def test_a_construct_that_only_jinja2_has(library: Library, expression: str) -> None:
    from pagedrun.native.door import Door

    door = Door(library.common)
    source = expression + CHATML
    with pytest.raises(TemplateError):
        door.open_templates(None, source).apply({"messages": [{"role": "user", "content": "Hi"}]})
    templates = ChatTemplates(TemplateFileDoor(door, bos="<s>", eos="</s>"), None, source)
    chat = templates.render([Message("user", "Hi")])
    assert chat.prompt == "HELLO<s><|user|>Hi</s><|assistant|>"
    reply = templates.reply_parser(chat)
    reply.feed("Yes")
    assert reply.finish() == Message("assistant", "Yes")
