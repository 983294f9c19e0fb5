"""What chat asks of the template, and what it makes of the answer: a fake door, no library."""

from __future__ import annotations

from typing import Any

import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message, RenderedChat, ToolCall
from pagedrun.errors import GrammarError, ParameterError, TemplateError
from pagedrun.request import Grammar, GrammarKind, GrammarTrigger, Reasoning
from tests.chat_doors import PARAMS, FakeDoor

USER = Message("user", "Hi")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
THINKING: dict[str, Any] = PARAMS | {
    "supports_thinking": True,
    "thinking_start_tag": "<think>",
    "thinking_end_tags": ["\n</think>", "</think>"],
    "generation_prompt": "ANSWER:<think>\n",
}


def render(options: ChatOptions | None = None, *messages: Message, door: FakeDoor | None = None) -> RenderedChat:
    return ChatTemplates(door or FakeDoor(), None).render(messages or (USER,), options)


def asked(options: ChatOptions | None = None, *messages: Message, source: str = "TEMPLATE") -> dict[str, Any]:
    door = FakeDoor(source=source)
    render(options, *messages, door=door)
    return dict(door.asked[0])


def test_defaults_ask_for_nothing_special() -> None:
    assert asked() == {
        "messages": [{"role": "user", "content": "Hi"}],
        "add_generation_prompt": True,
        "continue_final_message": False,
        "template_kwargs": {},
    }


def test_messages_in_the_form_of_openais_api() -> None:
    call = ToolCall("id1", "f", '{"a": 1}')
    messages = asked(
        None,
        Message("assistant", "Let me see.", reasoning="Hm.", tool_calls=(call,)),
        Message("tool", "42", tool_call_id="id1", name="f"),
    )["messages"]
    assert messages == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "id1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "id1", "name": "f"},
    ]


def test_tools() -> None:
    inputs = asked(ChatOptions(tools=(TOOL,), tool_choice="required", parallel_tool_calls=True))
    assert inputs["tools"] == [TOOL]
    assert inputs["tool_choice"] == "required"
    assert inputs["parallel_tool_calls"] is True


@pytest.mark.parametrize(
    ("source", "think", "kwargs"),
    [
        ("{{ messages }}", False, {}),
        ("{% if thinking %}", False, {"thinking": False}),
        ("{% if thinking %}", True, {"thinking": True}),
        ("{% if thinking %}", None, {}),
        ("{% if enable_thinking %}", False, {}),  # llama.cpp sets this one itself
        ("{% if thinking_mode == 'x' %}", False, {"thinking_mode": "disabled"}),
        ("{% if thinking_budget %}", False, {"thinking_budget": 0}),
        ("{% if thinking_budget %}", True, {}),
        ("{% if reasoning_effort == 'no_think' %}", True, {"reasoning_effort": "high"}),
    ],
)
def test_switches_of_thinking(source: str, think: bool | None, kwargs: dict[str, Any]) -> None:
    inputs = asked(ChatOptions(think=think), source=source)
    assert inputs["template_kwargs"] == kwargs
    assert inputs.get("enable_thinking") is think


def test_the_users_template_variables_win() -> None:
    inputs = asked(ChatOptions(think=False, template_kwargs={"thinking": "a lot", "x": 1}), source="{{ thinking }}")
    assert inputs["template_kwargs"] == {"thinking": "a lot", "x": 1}


def test_a_switch_in_the_message_goes_into_the_last_of_the_user() -> None:
    source = "{% if '/no_think' in content %}"
    messages = (USER, Message("assistant", "Yes?"), USER, Message("assistant", "Hm"))
    contents = [m["content"] for m in asked(ChatOptions(think=False), *messages, source=source)["messages"]]
    assert contents == ["Hi", "Yes?", "Hi /no_think", "Hm"]


def test_the_answer_goes_into_the_request() -> None:
    door = FakeDoor(
        THINKING
        | {
            "grammar": "root ::= x",
            "grammar_lazy": True,
            "grammar_triggers": [
                {"type": 1, "value": "<tool>", "token": -1},
                {"type": 2, "value": "a.*", "token": -1},
            ],
            "preserved_tokens": ["<p>"],
            "additional_stops": ["<stop>"],
        }
    )
    chat = render(ChatOptions(tools=(TOOL,), reasoning_budget=7), door=door)
    assert chat.prompt == "PROMPT"
    assert chat.stop == ("<stop>",)
    assert chat.preserved_tokens == ("<p>", "<tool>"), "a trigger word must be seen by the parser"
    assert chat.supports_thinking
    assert chat.grammar == Grammar(
        text="root ::= x",
        kind=GrammarKind.TOOL_CALLS,
        lazy=True,
        triggers=(GrammarTrigger(1, "<tool>"), GrammarTrigger(2, "a.*")),
        generation_prompt="ANSWER:<think>\n",
        preserved_tokens=("<p>", "<tool>"),
    )
    assert chat.reasoning == Reasoning(
        start_tag="<think>",
        end_tags=("\n</think>", "</think>"),
        budget_tokens=7,
        generation_prompt="ANSWER:<think>\n",
    )


def test_no_grammar_and_no_thinking() -> None:
    chat = render()
    assert chat.grammar is None
    assert chat.reasoning is None


def test_an_empty_schema_means_any_object() -> None:
    assert asked(ChatOptions(json_schema=" {} "))["json_schema"] == '{"type": "object"}'
    assert asked(ChatOptions(json_schema='{"enum": [1]}'))["json_schema"] == '{"enum": [1]}'


@pytest.mark.parametrize(("text", "told"), [("{", "not valid JSON"), ("", "not valid JSON"), ("[" * 100_000, "deeply")])
def test_a_schema_that_is_no_json(text: str, told: str) -> None:
    with pytest.raises(GrammarError, match=told):
        render(ChatOptions(json_schema=text))


def test_a_schema_without_a_template() -> None:
    templates = ChatTemplates(FakeDoor(), None)
    assert templates.schema_to_grammar("{}") == 'root ::= {"type": "object"}'
    with pytest.raises(GrammarError):
        templates.schema_to_grammar('{"type": "wat"}')


def test_a_grammar_switches_thinking_off() -> None:
    assert asked(ChatOptions(grammar='root ::= "a"'))["enable_thinking"] is False
    assert asked(ChatOptions(grammar='root ::= "a"', think=True))["enable_thinking"] is True


def test_a_grammar_applies_at_once_where_nothing_is_thought() -> None:
    closed = THINKING | {"generation_prompt": "ANSWER:<think>\n</think>\n"}
    for params in (PARAMS, closed):
        chat = render(ChatOptions(grammar='root ::= "a"'), door=FakeDoor(params))
        assert chat.grammar == Grammar(text='root ::= "a"')


def test_a_grammar_waits_for_the_end_of_thinking() -> None:
    grammar = 'root ::= "root" [root] x # root\nx ::= <root> root | "\\"root" | a-root'
    chat = render(ChatOptions(grammar=grammar), door=FakeDoor(THINKING))
    assert chat.grammar is not None
    assert chat.grammar.text == (
        'root ::= "</think>" [\\n\\t ]* answer-root\n'
        'answer-root ::= "root" [root] x # root\nx ::= <root> answer-root | "\\"root" | a-root'
    )
    assert chat.grammar.lazy
    assert chat.grammar.triggers == (GrammarTrigger(1, "</think>"),)


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (ChatOptions(), ()),
        (ChatOptions(grammar="g", json_schema="{}"), (USER,)),
        (ChatOptions(grammar="g", tools=(TOOL,)), (USER,)),
        (ChatOptions(continue_final_message=True), (USER,)),
        (
            ChatOptions(continue_final_message=True),
            (Message("assistant", tool_calls=(ToolCall("i", "f", "{}"),)),),
        ),
    ],
)
def test_options_that_make_no_sense(options: ChatOptions, messages: tuple[Message, ...]) -> None:
    with pytest.raises(ParameterError):
        ChatTemplates(FakeDoor(), None).render(messages, options)


def test_a_model_without_a_template_can_be_loaded_but_not_chatted_with() -> None:
    door = FakeDoor(source="")
    door.open_error = TemplateError("the model has no chat template", hint="give one with --chat-template FILE")
    templates = ChatTemplates(door, None)
    assert not templates.supports_thinking
    assert templates.schema_to_grammar("{}")
    with pytest.raises(TemplateError, match="no chat template") as refused:
        templates.render([USER])
    assert "--chat-template" in refused.value.hint


def test_a_broken_template_given_by_the_user_is_refused_at_once_with_its_line() -> None:
    door = FakeDoor()
    door.open_error = TemplateError("Unexpected token", hint="hint")
    with pytest.raises(TemplateError) as refused:
        ChatTemplates(door, None, "{% for m in messages %}\nHello\n  {{ m.content( }}\n{% endfor %}")
    assert "line 3" in refused.value.message
    assert "{{ m.content( }}" in refused.value.message


def test_llama_cpps_message_is_kept_where_it_has_the_line() -> None:
    door = FakeDoor()
    door.open_error = TemplateError("parser: at line 9, column 4: oh")
    with pytest.raises(TemplateError, match="line 9, column 4"):
        ChatTemplates(door, None, "{% if %}")


def test_a_template_that_refuses_the_messages() -> None:
    door = FakeDoor(source="{{ raise_exception('roles must alternate') }}")
    told = "Unable to generate parser. Automatic parser generation failed: \n----\nAt line 1: roles must alternate"
    door.apply_error = TemplateError(told, hint="hint")
    with pytest.raises(TemplateError) as refused:
        render(door=door)
    assert refused.value.message == "the chat template failed: At line 1: roles must alternate"
    assert refused.value.hint == "hint"
