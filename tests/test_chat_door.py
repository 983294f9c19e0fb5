"""The door's own promises: errors that carry the line, stacks that do not overflow, nothing printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message
from pagedrun.errors import EngineError, GrammarError, ParameterError, TemplateError
from tests.chat_doors import TemplateFileDoor

if TYPE_CHECKING:
    from pagedrun.native.door import Door
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = """{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}},
}


@pytest.fixture
def door(library: Library, capfd: pytest.CaptureFixture[str]) -> Any:
    from pagedrun.native.door import Door

    yield Door(library.common)
    assert capfd.readouterr() == ("", "")


def templates(door: Door, source: str) -> ChatTemplates:
    return ChatTemplates(TemplateFileDoor(door, bos="", eos=""), None, source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("Hello\n{% for m in messages %}\n  {{ m.content( }}\n{% endfor %}", "line 3"),
        ("Hello\n{{ m", "line 2"),
        ("Hello\n\n{% if x %}", "line 3"),
    ],
)
def test_a_template_that_does_not_parse_is_refused_with_its_line(door: Door, source: str, line: str) -> None:
    with pytest.raises(TemplateError) as refused:
        templates(door, source)
    assert line in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("source", ["Hello\n{{ messages[0].x.y() }}", "Hello\n{{ raise_exception('roles') }}"])
def test_a_template_that_fails_shows_its_line(door: Door, source: str) -> None:
    with pytest.raises(TemplateError) as refused:
        templates(door, source).render([Message("user", "Hi")])
    assert "line 2" in refused.value.message
    assert "Automatic parser generation" not in refused.value.message


def test_no_template_at_all(door: Door) -> None:
    with pytest.raises(TemplateError, match="no chat template") as refused:
        door.open_templates(None, "")
    assert "--chat-template" in refused.value.hint


def test_the_models_own_template(library: Library, service: Any) -> None:
    """Rendered with the model's tokens; SmolLM2's template adds a system message."""
    chat = service.templates.render([Message("user", "Hi")])
    assert chat.prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_model_that_writes_brackets_for_ever(door: Door) -> None:
    """llama.cpp's parser recurses at each of them, and would overflow the stack."""
    opened = templates(door, TOOLS)
    reply = opened.reply_parser(opened.render([Message("user", "Hi")], ChatOptions(tools=(TOOL,))))
    text = 'Yes.<tool_call>\n{"name": "f", "arguments": {"a": '
    deltas = [reply.feed(text), *[reply.feed("[" * 5000) for _ in range(20)]]
    assert deltas[0].content == "Yes."
    assert not any(deltas[1:])
    assert reply.finish().content.startswith("Yes.")


def test_schemas_without_end(door: Door) -> None:
    schema = '{"type": "array", "items": ' * 5000 + "{}" + "}" * 5000
    with pytest.raises(GrammarError, match="nested brackets"):
        door.schema_to_grammar(schema)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"type": "string", "minLength": 5, "maxLength": 2}', "minLength 5 is above maxLength 2"),
        ('{"properties": {"a": {"items": [{"minItems": 3, "maxItems": 1}]}}}', "minItems 3 is above maxItems 1"),
        ('{"properties": {"enum": {"type": "integer", "minimum": 2, "maximum": 1}}}', "minimum 2 is above maximum 1"),
        ('{"type": "wat"}', "JSON schema conversion failed"),
    ],
)
def test_schemas_that_nothing_can_follow(door: Door, schema: str, told: str) -> None:
    """llama.cpp's grammar parser never ends at a repetition whose minimum is above its maximum."""
    with pytest.raises(GrammarError, match=told) as refused:
        door.schema_to_grammar(schema)
    assert refused.value.message.startswith("the JSON schema cannot be used: ")
    assert "\n" not in refused.value.message
    assert refused.value.hint
    opened = templates(door, TOOLS)
    with pytest.raises(GrammarError, match=told):
        opened.render([Message("user", "Hi")], ChatOptions(json_schema=schema))


def test_parameters_of_tools_that_nothing_can_follow(door: Door) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5, "maxLength": 2}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(GrammarError, match="tool cannot be used: minLength 5 is above maxLength 2"):
        templates(door, TOOLS).render([Message("user", "Hi")], ChatOptions(tools=(tool,)))


@pytest.mark.parametrize(
    "schema",
    [
        '{"properties": {"minLength": {"type": "integer"}, "maxLength": {"type": "integer"}}}',
        '{"enum": [{"minLength": 5, "maxLength": 2}]}',
        '{"type": "string", "minLength": 2, "maxLength": 2}',
    ],
)
def test_names_and_values_are_no_bounds(door: Door, schema: str) -> None:
    assert door.schema_to_grammar(schema)


def test_warnings_about_a_schema_are_not_printed(door: Door) -> None:
    """0003-quiet-schema-warnings.patch; what cannot be expressed is left out of the grammar."""
    assert door.schema_to_grammar('{"type": "string", "pattern": "^(?=a)b$"}')


@pytest.mark.parametrize("inputs", [{}, {"messages": 5}, {"messages": [{"content": "no role"}]}])
def test_inputs_that_make_no_sense(door: Door, inputs: dict[str, Any]) -> None:
    with pytest.raises((TemplateError, ParameterError)):
        door.open_templates(None, CHATML).apply(inputs)


def test_text_that_is_no_unicode(door: Door) -> None:
    opened = door.open_templates(None, CHATML)
    with pytest.raises(ParameterError):
        opened.apply({"messages": [{"role": "user", "content": "\ud800"}]})
    params = opened.apply({"messages": [{"role": "user", "content": "a\0b"}]})
    assert "a\0b" in params["prompt"]
    assert opened.reply(params).parse("a\0\ud800b", partial=False)["content"] == "a\0?b"


def test_a_reply_parser_out_of_nonsense(door: Door) -> None:
    with pytest.raises(TemplateError):
        door.open_templates(None, CHATML).reply({"parser": json.dumps({"parsers": [{"type": "wat"}]})})


def test_a_closed_handle(door: Door) -> None:
    opened = door.open_templates(None, CHATML)
    opened.close()
    with pytest.raises(EngineError, match="closed"):
        opened.info()
