"""Messages to a prompt through the model's template: what to ask of llama.cpp, and what its answer means for us."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagedrun.chat.jinja import JinjaTemplate, TagReplies, opens_thinking
from pagedrun.chat.replies import ReplyParser
from pagedrun.chat.tool_prelude import with_tools, without_preamble
from pagedrun.chat.types import (
    ChatDoor,
    ChatOptions,
    Message,
    RenderedChat,
    TemplateDoor,
)
from pagedrun.errors import GrammarError, ParameterError, TemplateError
from pagedrun.request import Grammar, GrammarKind, GrammarTrigger, Reasoning

_TRIGGER_WORD = 1  # COMMON_GRAMMAR_TRIGGER_TYPE_WORD

# Templates that switch thinking with a variable other than llama.cpp's `enable_thinking`:
# (what shows that it is one of them, variable, value for on, value for off); None leaves the variable alone.
_SWITCHES: tuple[tuple[str, str, Any, Any], ...] = (
    (r"\bthinking\b", "thinking", True, False),  # Granite 3.3, DeepSeek V3.1, Kimi K3
    (r"\bthinking_mode\b", "thinking_mode", "enabled", "disabled"),  # MiniMax M3
    (r"\bthinking_budget\b", "thinking_budget", None, 0),  # Seed-OSS
    (r"reasoning if reasoning is not undefined", "reasoning", True, False),  # Command A (cohere2moe)
    (r"reasoning_effort == 'no_think'", "reasoning_effort", "high", "no_think"),  # Hunyuan 3
)
# Nemotron Nano 2 reads the switch out of the messages, and takes it out of what it renders.
_SWITCH_IN_MESSAGE = "'/no_think' in content"


class ChatTemplates:
    """The chat template of a loaded model, or `source` in its place.

    model: a llama_model pointer (whatever the door takes). Raises TemplateError, showing the line, when `source` does
    not parse. A model whose own template is missing or broken can still be used without one: then `render` raises.
    """

    def __init__(self, door: ChatDoor, model: Any, source: str | None = None) -> None:
        self._door = door
        self._model = model
        self._facts = dict(door.template_facts(model))
        if source is not None:
            self._facts["source"] = source
        self.source: str = self._facts["source"]
        self.supports_thinking = False
        self._jinja: JinjaTemplate | None = None
        self._template: TemplateDoor | None = None
        self._with_tools: TemplateDoor | None = None
        self._caps: Mapping[str, bool] = {}
        self._broken: TemplateError | None = None
        try:
            self._template = self._open(model, source)
        except TemplateError as e:
            self._broken = e
            if source is not None:
                raise
            return
        with contextlib.suppress(TemplateError):  # it fails on a plain message: maybe not on those to come
            info = self._template.info()
            self.supports_thinking, self._caps = info["supports_thinking"], info["caps"]

    def render(self, messages: Sequence[Message], options: ChatOptions | None = None) -> RenderedChat:
        """The prompt for these messages, and what the answer is bound to.

        Raises TemplateError when the template refuses the messages, GrammarError for a schema or grammar that cannot
        be used, ParameterError for options that exclude each other.
        """
        options = options or ChatOptions()
        inputs = _inputs(self.source, messages, options)
        params = self._apply(inputs)
        return RenderedChat(
            prompt=params["prompt"],
            grammar=self._grammar(params, options, inputs),
            reasoning=_reasoning(params, options),
            stop=tuple(params.get("additional_stops", ())),
            preserved_tokens=_preserved(params),
            supports_thinking=params["supports_thinking"],
            params=params,
            continued=options.continue_final_message,
        )

    def reply_parser(self, rendered: RenderedChat) -> ReplyParser:
        """A parser for one reply to what `render` made."""
        params = rendered.params
        tags = TagReplies(params)
        if self._template is None or "parser" not in params:  # jinja2 rendered it
            return ReplyParser(tags, tags)
        return ReplyParser(self._template.reply(params), tags, continued=rendered.continued)

    def schema_to_grammar(self, schema: str) -> str:
        """GBNF for text that follows a JSON schema, without any template. Raises GrammarError."""
        return self._door.schema_to_grammar(_schema(schema))

    def _open(self, model: Any, source: str | None) -> TemplateDoor:
        try:
            return self._door.open_templates(model, source)
        except TemplateError as e:
            if not self._facts["source"]:
                raise
            try:
                self._jinja = JinjaTemplate(self._facts)
            except TemplateError as by_jinja:
                # jinja2 knows the line of every syntax error, llama.cpp's parser of most
                raise (e if "line" in e.message else by_jinja) from None
            return self._jinja

    def _apply(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._template is None:
            raise self._broken or TemplateError("there is no chat template")
        try:
            if not self._leaves_tools_out(inputs):
                return self._template.apply(inputs)
            if self._with_tools is None:
                source = with_tools(self.source, system_role=self._caps.get("supports_system_role", True))
                self._with_tools = self._door.open_templates(self._model, source)
            return without_preamble(self._with_tools.apply(inputs), inputs)
        except TemplateError as e:
            try:
                self._jinja = self._jinja or JinjaTemplate(self._facts)
                return self._jinja.apply(inputs)
            except TemplateError:
                raise _told(e) from None

    def _leaves_tools_out(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the model's own template would not say a word of the chat's tools and calls."""
        calls = any("tool_calls" in m or m["role"] == "tool" for m in inputs["messages"])
        knows = self._caps.get("supports_tools", True) or self._caps.get("supports_tool_calls", True)
        return not knows and (calls or "tools" in inputs)

    def _grammar(self, params: Mapping[str, Any], options: ChatOptions, inputs: Mapping[str, Any]) -> Grammar | None:
        if options.grammar is not None:
            return _after_thinking(options.grammar, params)
        if "parser" not in params and "json_schema" in inputs:
            return _after_thinking(self._door.schema_to_grammar(inputs["json_schema"]), params)
        if not params.get("grammar"):
            return None
        return Grammar(
            text=params["grammar"],
            kind=GrammarKind.OUTPUT_FORMAT if options.json_schema is not None else GrammarKind.TOOL_CALLS,
            lazy=params["grammar_lazy"],
            triggers=tuple(GrammarTrigger(t["type"], t["value"], t["token"]) for t in params["grammar_triggers"]),
            generation_prompt=params["generation_prompt"],
            preserved_tokens=_preserved(params),
        )


def _told(error: TemplateError) -> TemplateError:
    """llama.cpp's message, without what it says of its own parser generator."""
    whole, found, cause = error.message.partition("Automatic parser generation failed: ")
    cause = cause.strip("-\n ")
    return TemplateError(f"the chat template failed: {cause}" if found else whole, hint=error.hint)


def _inputs(source: str, messages: Sequence[Message], options: ChatOptions) -> dict[str, Any]:
    _check(messages, options)
    think = options.think
    if think is None and options.grammar is not None:
        think = False
    inputs: dict[str, Any] = {
        "messages": [_message(m) for m in messages],
        "add_generation_prompt": options.add_generation_prompt,
        "continue_final_message": options.continue_final_message,
        "template_kwargs": _switches(source, think) | dict(options.template_kwargs),
    }
    if think is not None:
        inputs["enable_thinking"] = think
        if _SWITCH_IN_MESSAGE in source:
            _switch_in_message(inputs["messages"], think)
    if options.tools:
        inputs["tools"] = [dict(tool) for tool in options.tools]
        inputs["tool_choice"] = options.tool_choice
        inputs["parallel_tool_calls"] = options.parallel_tool_calls
    if options.json_schema is not None:
        inputs["json_schema"] = _schema(options.json_schema)
    return inputs


def _check(messages: Sequence[Message], options: ChatOptions) -> None:
    if not messages:
        raise ParameterError("a chat needs at least one message")
    if options.grammar is not None and (options.json_schema is not None or options.tools):
        raise ParameterError("a grammar cannot be combined with a JSON schema or with tools")
    if options.continue_final_message and (messages[-1].role != "assistant" or messages[-1].tool_calls):
        raise ParameterError("only an assistant's message without tool calls can be continued")


def _message(message: Message) -> dict[str, Any]:
    """In the form of OpenAI's API, which the door reads."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def _switches(source: str, think: bool | None) -> dict[str, Any]:
    if think is None:
        return {}
    values = ((name, on if think else off) for mark, name, on, off in _SWITCHES if re.search(mark, source))
    return {name: value for name, value in values if value is not None}


def _switch_in_message(messages: list[dict[str, Any]], think: bool) -> None:
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"] += " /think" if think else " /no_think"
            return


def _schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise GrammarError(f"the JSON schema is not valid JSON: {e}") from e
    except RecursionError:  # a smaller depth is the door's to refuse
        raise GrammarError(
            "the JSON schema is nested too deeply", hint="1,000 nested brackets are the most; move parts of it to $defs"
        ) from None
    # {} allows anything at all, which the templates take for "no schema"; like llama-server, read it as any object
    return text if schema != {} else '{"type": "object"}'


def _reasoning(params: Mapping[str, Any], options: ChatOptions) -> Reasoning | None:
    if not params.get("thinking_end_tags"):
        return None
    return Reasoning(
        start_tag=params["thinking_start_tag"],
        end_tags=tuple(params["thinking_end_tags"]),
        budget_tokens=options.reasoning_budget,
        generation_prompt=params["generation_prompt"],
    )


def _preserved(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Special tokens that the reply parser must see; a trigger word is one of them."""
    words = [t["value"] for t in params.get("grammar_triggers", ()) if t["type"] == _TRIGGER_WORD]
    return tuple(dict.fromkeys([*params.get("preserved_tokens", ()), *words]))


def _after_thinking(grammar: str, params: Mapping[str, Any]) -> Grammar:
    """A grammar for the content alone: where the prompt opens the thinking, it begins with the tag that ends it."""
    if not opens_thinking(params):
        return Grammar(text=grammar)
    tag = min(params["thinking_end_tags"], key=len)
    text = f"root ::= {json.dumps(tag, ensure_ascii=False)} [\\n\\t ]* answer-root\n{_rename_root(grammar)}"
    return Grammar(text=text, lazy=True, triggers=(GrammarTrigger(_TRIGGER_WORD, tag),), preserved_tokens=(tag,))


def _rename_root(grammar: str) -> str:
    """The rule `root` under the name `answer-root`; literals, character classes, <tokens> and comments stay."""
    parts = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|<[^>]*>|#[^\n]*|[A-Za-z0-9-]+'
    return re.sub(parts, lambda m: "answer-root" if m[0] == "root" else m[0], grammar)
