"""The values of chat: messages, what is asked of a template, what came of it. `pagedrun.chat` exports them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pagedrun.request import Grammar, Reasoning


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the model wants called. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the tool call number `index`: id and name come once, with the first piece of the arguments."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    role: system, user, assistant or tool (its `tool_call_id` says which call the content answers).
    reasoning: the thinking before an assistant's content; whether the model sees it again is the template's choice.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What is asked of the template beside the messages.

    continue_final_message: the answer goes on where the last message (an assistant's) ends.
    think: False switches thinking off and True on, where the template knows how; None leaves the default, which is on
        for most, but off under a `grammar`, because that has no room for thinking.
    tools: definitions as in OpenAI's API, `{"type": "function", "function": {name, description, parameters}}`.
    json_schema: text of a schema that the content must follow. grammar: GBNF for the content; not with tools.
    template_kwargs: further variables of the template, any JSON values.
    reasoning_budget: tokens of thinking, after which its end is forced; None is no limit.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    think: bool | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    parallel_tool_calls: bool = False
    json_schema: str | None = None
    grammar: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A conversation as the model reads it, and what its answer is bound to.

    prompt: to be tokenised with special tokens read and added (a BOS that the vocabulary adds is left out here).
    grammar, reasoning, stop, preserved_tokens go into the GenerationRequest as they are.
    supports_thinking: whether the template knows of thinking at all.
    params: what the reply parser is made from; continued: whether the answer goes on from the last message.
    """

    prompt: str
    grammar: Grammar | None = None
    reasoning: Reasoning | None = None
    stop: tuple[str, ...] = ()
    preserved_tokens: tuple[str, ...] = ()
    supports_thinking: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    continued: bool = False


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """What one more piece of text added to the reply."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


class ReplyDoor(Protocol):
    """Parses replies: `native.door.ReplyHandle`, or a fake."""

    def parse(self, text: str, *, partial: bool) -> Mapping[str, Any]:
        """`{content, reasoning, tool_calls: [{id, name, arguments}]}`. Raises TemplateError when it does not match."""
        ...


class TemplateDoor(Protocol):
    """One parsed template: `native.door.TemplateHandle`, or a fake."""

    def info(self) -> Mapping[str, Any]:
        """`{source, caps, supports_thinking}`."""
        ...

    def apply(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render; the JSON of both sides is described in patches/README.md."""
        ...

    def reply(self, params: Mapping[str, Any]) -> ReplyDoor:
        """A parser for replies to what `apply` answered."""
        ...


class ChatDoor(Protocol):
    """What chat needs of the native library: `native.door.Door`, or a fake."""

    def open_templates(self, model: Any, source: str | None = None) -> TemplateDoor:
        """The model's template, or `source` in its place. Raises TemplateError."""
        ...

    def template_facts(self, model: Any) -> Mapping[str, Any]:
        """`{source, bos, eos, add_bos}` of the model; the source is empty when there is none."""
        ...

    def schema_to_grammar(self, schema: str) -> str:
        """GBNF for a JSON schema. Raises GrammarError."""
        ...
