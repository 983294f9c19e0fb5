"""The body of /v1/chat/completions, and what of it the chat templates take."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from pagedrun.chat import Message, ToolCall
from pagedrun.server.errors import invalid, missing, unsupported
from pagedrun.server.fields import TAG, Shared, Strict, choice_tag, list_tag
from pagedrun.server.functions import arguments_of, function_tool
from pagedrun.server.schemas import Given

#: Fields of OpenAI's that change the answer and that nobody here can honour.
REFUSED = {
    "audio": "is not supported: answers are text",
    "function_call": "is no longer in use: send 'tool_choice'",
    "functions": "is no longer in use: send 'tools'",
    "web_search_options": "is not supported: nothing is searched",
    "moderation": "is not supported",
}

#: Variables of templates that follow from other fields, and from the model.
_SET_BY_SERVER = frozenset(
    {
        "add_generation_prompt", "bos_token", "continue_final_message", "eos_token", "json_schema", "messages",
        "parallel_tool_calls", "tool_choice", "tools",
    }
)  # fmt: skip

_PARTS = {
    "image_url": "images are not supported",
    "input_audio": "audio is not supported",
    "file": "files are not supported",
}


class TextPart(Strict):
    """Text, or what an assistant said instead of an answer."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    cache_control: dict[str, Any] | None = None  # of Anthropic's API; some clients leave it in


class OtherPart(Strict):
    """A part that is no text; refused with its name."""

    model_config = ConfigDict(extra="ignore")
    type: str


def _part_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"{TAG}other" if isinstance(kind, str) and kind in _PARTS else f"{TAG}part"


Part = Annotated[
    Annotated[TextPart, Tag(f"{TAG}part")] | Annotated[OtherPart, Tag(f"{TAG}other")], Discriminator(_part_tag)
]
Content = Annotated[
    Annotated[str, Tag(f"{TAG}one")] | Annotated[list[Part], Tag(f"{TAG}list")], Discriminator(list_tag)
]


class FunctionCall(Strict):
    """A function with its arguments, as JSON text."""

    name: str = Field(min_length=1, max_length=256)
    arguments: str


class ToolCallField(Strict):
    """One call of an assistant's message. `index` is left in by clients that put streams together."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class MessageField(Strict):
    """One message of any role. Members that only repeat what OpenAI answered (audio, annotations) may be null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[ToolCallField] | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class Function(Strict):
    """What a model may call. `strict`: parameters that the grammar of calls cannot enforce are refused."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; functions are the only ones."""

    type: Literal["function"]
    function: Function

    def as_template(self) -> dict[str, Any]:
        """What templates read."""
        return function_tool(self.function.name, self.function.description, self.function.parameters)


class Named(Strict):
    """A function's name."""

    name: str


class NamedTool(Strict):
    """The one function that has to be called."""

    type: Literal["function"]
    function: Named


class AllowedTools(Strict):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class Allowed(Strict):
    """OpenAI's wrapping of AllowedTools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
    | Annotated[NamedTool, Tag(f"{TAG}named")]
    | Annotated[Allowed, Tag(f"{TAG}allowed")],
    Discriminator(choice_tag),
]


class SchemaField(Strict):
    """A JSON schema with a name. `strict`: one that the grammar cannot enforce is refused."""

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What form the answer has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaField | None = None

    def schema_text(self) -> str | None:
        """The schema that the content follows; None: any text. Raises ApiError."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return '{"type": "object"}'
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise missing("response_format.json_schema.schema")
        return json.dumps(self.json_schema.schema_)

    def given(self) -> list[Given]:
        """The schema, to be checked."""
        if self.type != "json_schema" or self.json_schema is None:
            return []
        return [Given("response_format.json_schema.schema", self.json_schema.schema_, self.json_schema.strict)]


class ChatRequest(Shared):
    """A chat. Beside OpenAI's fields: sampling by llama.cpp's names, `grammar`, `chat_template_kwargs`, ..."""

    messages: list[MessageField] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(None, max_length=1024)
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    enable_thinking: bool | None = None
    thinking_budget_tokens: int | None = Field(None, ge=0, lt=2**31)
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None  # the answer as it is


def template_kwargs(asked: ChatRequest) -> dict[str, Any]:
    """Variables for the template, with `enable_thinking`. Raises ApiError for one that the server sets."""
    kwargs = dict(asked.chat_template_kwargs or {})
    for name in sorted(_SET_BY_SERVER & kwargs.keys()):
        raise invalid(f"'chat_template_kwargs.{name}' is set by the server", f"chat_template_kwargs.{name}")
    if asked.enable_thinking is not None and kwargs.setdefault("enable_thinking", asked.enable_thinking) is not (
        asked.enable_thinking
    ):
        raise invalid("'enable_thinking' and 'chat_template_kwargs.enable_thinking' differ", "enable_thinking")
    return kwargs


def message_of(field: MessageField, where: str) -> Message:
    """A message as the templates take it; `where` names it in errors. Raises ApiError."""
    content = _text(field.content, f"{where}.content")
    if content is None and not (field.role == "assistant" and (field.tool_calls or field.refusal)):
        raise missing(f"{where}.content")
    if field.role == "tool" and not field.tool_call_id:
        raise missing(f"{where}.tool_call_id")
    if field.tool_calls and field.role != "assistant":
        raise invalid("only an assistant's message has tool calls", f"{where}.tool_calls")
    return Message(
        role="system" if field.role == "developer" else field.role,
        content=content or field.refusal or "",
        reasoning=(field.reasoning_content or field.reasoning or "") if field.role == "assistant" else "",
        tool_calls=tuple(
            ToolCall(
                c.id, c.function.name, arguments_of(c.function.arguments, f"{where}.tool_calls[{i}].function.arguments")
            )
            for i, c in enumerate(field.tool_calls or ())
        ),
        tool_call_id=field.tool_call_id or "" if field.role == "tool" else "",
        name=field.name or "",
    )


def _text(content: str | list[TextPart | OtherPart] | None, where: str) -> str | None:
    """Parts are put together with a line end in between, as llama-server and vLLM do."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, OtherPart):
            raise unsupported(f"{where}[{i}].type", f"is {part.type!r}: {_PARTS[part.type]}")
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise invalid(f"missing '{where}[{i}].{part.type}'", f"{where}[{i}]", "missing_required_parameter")
        texts.append(text)
    return "\n".join(texts)
