"""The body of Anthropic's /v1/messages, and the chat that it stands for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Discriminator, Field, Tag

from pagedrun.chat import ChatOptions, Message, ToolCall
from pagedrun.server.asking import Ask
from pagedrun.server.calls import check_names, check_results
from pagedrun.server.errors import invalid, missing, unsupported
from pagedrun.server.fields import TAG, SamplingFields, Strict, list_tag
from pagedrun.server.functions import function_tool
from pagedrun.server.schemas import Given
from pagedrun.server.thinking import Names

REFUSED = {
    "container": "is not supported: nothing is executed here",
    "context_management": "is not supported: the whole conversation is read",
    "mcp_servers": "is not supported: nothing is called from here",
    "inference_geo": "is not supported: the model runs here",
}

_NAMES = Names("thinking", "output_config.effort", "thinking.budget_tokens")


class Block(Strict):
    """A part of a message. Which members it has depends on its type; images and documents are refused by name."""

    model_config = ConfigDict(extra="ignore")
    type: str = Field(max_length=64)
    text: str | None = None
    thinking: str | None = None
    id: str | None = Field(None, max_length=256)
    name: str | None = Field(None, max_length=256)
    input: dict[str, Any] | None = None
    tool_use_id: str | None = Field(None, max_length=256)
    content: Blocks | None = None
    is_error: bool | None = None


Blocks = Annotated[
    Annotated[str, Tag(f"{TAG}one")] | Annotated[list[Block], Tag(f"{TAG}list")], Discriminator(list_tag)
]
Block.model_rebuild()


class Turn(Strict):
    """What one side said."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class ToolField(Strict):
    """A tool of the client's own. `strict`: a schema that the grammar of calls cannot enforce is refused."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[Any] | None = None


class ToolChoice(Strict):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether the model thinks first, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1024, lt=2**31)
    display: str | None = None


class OutputFormat(Strict):
    """A schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Strict):
    """What a prompt is made of."""

    model: str | None = Field(None, max_length=512)
    messages: list[Turn] = Field(min_length=1)
    system: Blocks | None = None
    tools: list[ToolField] | None = Field(None, max_length=1024)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """A message to be answered. `top_k` 0 is all."""

    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: Annotated[list[str], Field(max_length=64)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    top_p: float | None = Field(None, ge=0, le=1)


def ask_of(asked: CountRequest) -> Ask:
    """The chat; a last message of the assistant's is continued. Raises ApiError, ParameterError."""
    messages = [Message("system", _plain(asked.system, "system"))] if asked.system is not None else []
    for i, turn in enumerate(asked.messages):
        messages += _messages(turn, f"messages[{i}]")
    check_results(messages, "messages")
    if messages[-1].tool_calls:
        at = f"messages[{len(asked.messages) - 1}]"
        raise invalid(f"'{at}' uses tools, and their results are missing", at)
    tools, choice = _tools(asked)
    config = asked.output_config or OutputConfig()
    form = config.format or asked.output_format
    options = ChatOptions(
        tools=tools,
        tool_choice=cast(Any, choice),
        parallel_tool_calls=not (asked.tool_choice and asked.tool_choice.disable_parallel_tool_use),
        json_schema=json.dumps(form.schema_) if form else None,
        continue_final_message=messages[-1].role == "assistant",
    )
    whole = asked if isinstance(asked, MessagesRequest) else None
    stop = tuple(whole.stop_sequences or ()) if whole else ()
    if "" in stop:
        raise invalid("'stop_sequences' has an empty string, which is everywhere", "stop_sequences")
    sampling = SamplingFields(**{k: getattr(whole, k) for k in ("temperature", "top_k", "top_p")} if whole else {})
    thinking = asked.thinking
    if thinking is not None and thinking.type == "enabled":
        _check_budget(thinking.budget_tokens, whole)
    kwargs = {} if thinking is None or thinking.type == "adaptive" else {"enable_thinking": thinking.type == "enabled"}
    return Ask(
        messages=messages,
        sampling=sampling.params(),
        options=options,
        kwargs=kwargs,
        effort=None if kwargs.get("enable_thinking") is False else _effort(config.effort),
        budget=thinking.budget_tokens if thinking else None,
        max_tokens=whole.max_tokens if whole else None,
        stop=stop,
        names=_NAMES,
        schemas=_schemas(asked, form),
    )


def _check_budget(budget: int | None, whole: MessagesRequest | None) -> None:
    """Raise ApiError for thinking without a budget, or with one that leaves no room for an answer."""
    at = "thinking.budget_tokens"
    if budget is None:
        raise missing(at)
    if whole is not None and budget >= whole.max_tokens:
        raise invalid(f"'{at}' must be less than 'max_tokens'", at)


def _effort(word: str | None) -> str | None:
    return "xhigh" if word == "max" else word


def _messages(turn: Turn, where: str) -> list[Message]:
    """A turn as messages: results of tools come before what else the user says."""
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for i, block in enumerate(turn.content):
        at = f"{where}.content[{i}]"
        if block.type == "text":
            texts.append(_given(block.text, f"{at}.text"))
        elif block.type == "thinking" and turn.role == "assistant":
            thoughts.append(_given(block.thinking, f"{at}.thinking"))
        elif block.type == "tool_use" and turn.role == "assistant":
            name, call_id = _given(block.name, f"{at}.name"), _given(block.id, f"{at}.id")
            calls.append(ToolCall(call_id, name, json.dumps(block.input or {})))
        elif block.type == "tool_result" and turn.role == "user":
            content = _plain(block.content, f"{at}.content")
            results.append(Message("tool", content, tool_call_id=_given(block.tool_use_id, f"{at}.tool_use_id")))
        elif block.type != "redacted_thinking":
            raise unsupported(f"{at}.type", f"is {block.type!r}, which is not supported here")
    if results and not texts:
        return results
    said = Message(turn.role, "\n".join(texts), "\n".join(thoughts), tuple(calls))
    return [*results, said]


def _plain(content: str | list[Block] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for i, block in enumerate(content):
        if block.type != "text":
            raise unsupported(f"{where}[{i}].type", f"is {block.type!r}: only text is supported here")
    return "\n".join(_given(block.text, f"{where}[{i}].text") for i, block in enumerate(content))


def _given(text: str | None, where: str) -> str:
    if text is None:
        raise missing(where)
    return text


def _schemas(asked: CountRequest, form: OutputFormat | None) -> list[Given]:
    tools = enumerate(asked.tools or ())
    of_tools = [Given(f"tools[{i}].input_schema", tool.input_schema, tool.strict, tool.name) for i, tool in tools]
    at = "output_format.schema" if form is asked.output_format else "output_config.format.schema"
    return [*of_tools, Given(at, form.schema_ if form else None)]


def _tools(asked: CountRequest) -> tuple[tuple[dict[str, Any], ...], str]:
    fields, choice = asked.tools or [], asked.tool_choice
    check_names(tool.name for tool in fields)
    if choice is not None and choice.type == "tool":
        fields = [tool for tool in fields if tool.name == choice.name]
    if choice is not None and choice.type in ("any", "tool") and not fields:
        raise invalid("'tool_choice' asks for a tool that is not in 'tools'", "tool_choice")
    tools = tuple(function_tool(tool.name, tool.description, tool.input_schema) for tool in fields)
    kind = choice.type if choice is not None and tools else "auto"
    return tools, {"any": "required", "tool": "required"}.get(kind, kind)
