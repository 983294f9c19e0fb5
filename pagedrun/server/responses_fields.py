"""The body of OpenAI's /v1/responses, and the chat that it stands for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Discriminator, Field, Tag

from pagedrun.chat import ChatOptions, Message, ToolCall
from pagedrun.server.asking import Ask
from pagedrun.server.calls import check_names, check_results
from pagedrun.server.errors import invalid, missing, unsupported
from pagedrun.server.fields import TAG, Priority, SamplingFields, StreamOptions, Strict, choice_tag, list_tag
from pagedrun.server.functions import arguments_of, function_tool
from pagedrun.server.responses_items import Marks, place_of
from pagedrun.server.schemas import Given
from pagedrun.server.thinking import NAMES

REFUSED = {
    "conversation": "is not supported: send 'previous_response_id'",
    "prompt": "is not supported: there are no stored prompts",
    "context_management": "is not supported: the whole conversation is read",
    "moderation": "is not supported",
}

_TEXTS = ("input_text", "output_text", "text")
_OURS = ("message", "function_call", "function_call_output", "reasoning")


class Part(Strict):
    """A part of a message; images and files are refused by name."""

    model_config = ConfigDict(extra="ignore")
    type: str = Field(max_length=64)
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[Annotated[str, Tag(f"{TAG}one")] | Annotated[list[Part], Tag(f"{TAG}list")], Discriminator(list_tag)]


class Item(Strict):
    """One item of a conversation, as it was sent or as it was answered."""

    model_config = ConfigDict(extra="ignore")
    type: str = Field("message", max_length=64)
    id: str | None = Field(None, max_length=256)
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: str | None = Field(None, max_length=256)
    name: str | None = Field(None, max_length=256)
    arguments: str | None = None
    output: Parts | None = None


Input = Annotated[Annotated[str, Tag(f"{TAG}one")] | Annotated[list[Item], Tag(f"{TAG}list")], Discriminator(list_tag)]


class FunctionTool(Strict):
    """A function; other kinds of tools run at OpenAI's. `strict`: parameters that cannot be enforced are refused."""

    type: Literal["function"]
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Named(Strict):
    """A function by its name."""

    type: Literal["function"]
    name: str


class Allowed(Strict):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[Named] = Field(min_length=1)


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
    | Annotated[Named, Tag(f"{TAG}named")]
    | Annotated[Allowed, Tag(f"{TAG}allowed")],
    Discriminator(choice_tag),
]


class Format(Strict):
    """What form the answer has. `strict`: a schema that the grammar cannot enforce is refused."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(Strict):
    """How text is answered."""

    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Strict):
    """How much the model thinks. Summaries are not made: the thinking is there itself."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None


class ResponsesRequest(Strict):
    """A response to be made. `previous_response_id` goes on from one that this server still has."""

    model: str | None = Field(None, max_length=512)
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=1e6)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=1024)
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = Field(None, max_length=256)
    store: bool | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    priority: Priority | None = None


def ask_of(asked: ResponsesRequest, before: Sequence[Message]) -> Ask:
    """The chat. before: what an earlier response ended with. Raises ApiError, ParameterError."""
    messages = [*before, *read_input(asked)[0]]
    check_results(messages, "input")
    if asked.instructions is not None:
        messages.insert(0, Message("system", asked.instructions))
    tools, choice = _tools(asked)
    form = asked.text.format if asked.text and asked.text.format else Format(schema=None)
    options = ChatOptions(
        tools=tools,
        tool_choice=cast(Any, choice),
        # of the function that is named there is one call
        parallel_tool_calls=asked.parallel_tool_calls is not False and not isinstance(asked.tool_choice, Named),
        json_schema=_schema(form),
    )
    return Ask(
        messages=messages,
        sampling=SamplingFields.model_validate({"temperature": asked.temperature, "top_p": asked.top_p}).params(),
        options=options,
        effort=asked.reasoning.effort if asked.reasoning else None,
        max_tokens=asked.max_output_tokens,
        logprobs=(asked.top_logprobs or 0) if wants_logprobs(asked) else None,
        priority=asked.priority or 0,
        names=NAMES._replace(effort="reasoning.effort"),
        schemas=_schemas(asked, form),
    )


def wants_logprobs(asked: ResponsesRequest) -> bool:
    """Whether log-probabilities are to be in the response. Raises ApiError for what cannot be included."""
    for i, name in enumerate(asked.include or ()):
        if name not in ("message.output_text.logprobs", "reasoning.encrypted_content"):
            raise unsupported(f"include[{i}]", f"asks for {name[:100]!r}, which is not there")
    return bool(asked.top_logprobs) or "message.output_text.logprobs" in (asked.include or ())


def read_input(asked: ResponsesRequest, n_before: int = 0) -> tuple[list[Message], Marks]:
    """The input as messages, and what those do not say of its items. Raises ApiError.

    An assistant's thinking, text and calls are one message. n_before: messages of earlier responses.
    """
    if isinstance(asked.input, str):
        return [Message("user", asked.input)], {}
    if not asked.input:
        raise invalid("'input' is empty", "input")
    messages: list[Message] = []
    marks: Marks = {}
    for i, item in enumerate(asked.input):
        _add(messages, _message(item, f"input[{i}]"))
        role = {"role": "developer"} if item.role == "developer" else {}
        if mark := ({"id": item.id} if item.id else {}) | role:
            number = len(messages[-1].tool_calls) - 1 if item.type == "function_call" else 0
            marks.setdefault(place_of(n_before + len(messages) - 1, item.type, number), mark)
    return messages, marks


def _add(messages: list[Message], more: Message) -> None:
    """Append; what an assistant says after its thinking, or calls after its text, goes into one message."""
    last = messages[-1] if messages else None
    if (
        more.role == "assistant"
        and last is not None
        and last.role == "assistant"
        and not (last.content and more.content)
    ):
        messages[-1] = Message(
            "assistant",
            last.content + more.content,
            last.reasoning + more.reasoning,
            last.tool_calls + more.tool_calls,
        )
        return
    messages.append(more)


def _message(item: Item, at: str) -> Message:
    if item.type == "message":
        if item.role is None:
            raise missing(f"{at}.role")
        return Message("system" if item.role == "developer" else item.role, _plain(item.content, f"{at}.content"))
    if item.type == "function_call":
        if not item.call_id or not item.name:
            raise invalid(f"missing '{at}.call_id' or '{at}.name'", at, "missing_required_parameter")
        arguments = arguments_of(item.arguments, f"{at}.arguments")
        return Message("assistant", tool_calls=(ToolCall(item.call_id, item.name, arguments),))
    if item.type == "function_call_output":
        if not item.call_id:
            raise missing(f"{at}.call_id")
        return Message("tool", _plain(item.output, f"{at}.output"), tool_call_id=item.call_id)
    if item.type == "reasoning":
        parts = item.content if isinstance(item.content, list) else []
        return Message("assistant", reasoning="".join(part.text or "" for part in parts))
    raise unsupported(f"{at}.type", f"is {item.type!r}: it can be one of {', '.join(_OURS)}")


def _plain(content: str | list[Part] | None, at: str) -> str:
    if content is None:
        raise missing(at)
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXTS, "refusal") or text is None:
            raise unsupported(f"{at}[{i}].type", f"is {part.type!r}: only text is supported here")
        texts.append(text)
    return "\n".join(texts)


def _schema(form: Format) -> str | None:
    if form.type == "text":
        return None
    if form.type == "json_object":
        return '{"type": "object"}'
    if form.schema_ is None:
        raise missing("text.format.schema")
    return json.dumps(form.schema_)


def _schemas(asked: ResponsesRequest, form: Format) -> list[Given]:
    tools = enumerate(asked.tools or ())
    of_tools = [Given(f"tools[{i}].parameters", tool.parameters, tool.strict, tool.name) for i, tool in tools]
    return [*of_tools, Given("text.format.schema", form.schema_ if form.type == "json_schema" else None, form.strict)]


def _tools(asked: ResponsesRequest) -> tuple[tuple[dict[str, Any], ...], str]:
    fields, choice = asked.tools or [], asked.tool_choice
    check_names(tool.name for tool in fields)
    mode = "auto"
    if isinstance(choice, (Named, Allowed)):
        wanted = [choice] if isinstance(choice, Named) else choice.tools
        names = {named.name for named in wanted}
        if not names <= {tool.name for tool in fields}:
            raise invalid("'tool_choice' names a function that is not in 'tools'", "tool_choice")
        fields = [tool for tool in fields if tool.name in names]
        mode = "required" if isinstance(choice, Named) else choice.mode
    elif choice is not None:
        mode = choice
        if mode == "required" and not fields:
            raise invalid("'tool_choice' is only for requests with 'tools'", "tool_choice")
    tools = tuple(function_tool(tool.name, tool.description, tool.parameters) for tool in fields)
    return tools, mode if tools else "auto"
