"""/v1/chat/completions: from its fields to an `Ask`, and from pieces to OpenAI's objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pagedrun.chat import ChatOptions, ReplyDelta
from pagedrun.request import TokenLogprob
from pagedrun.server.answers import Answers, Choice, Piece, Task
from pagedrun.server.asking import Ask, chat_task
from pagedrun.server.calls import check_names, check_results
from pagedrun.server.chat_fields import Allowed, ChatRequest, NamedTool, Tool, message_of, template_kwargs
from pagedrun.server.chunks import ChunkPresenter
from pagedrun.server.errors import invalid
from pagedrun.server.replies import timings_of, token_logprob
from pagedrun.server.schemas import Given
from pagedrun.server.serving import Serving
from pagedrun.server.thinking import NAMES


def ask_of(asked: ChatRequest) -> Ask:
    """What the templates and the engine are to do. Raises ApiError, ParameterError."""
    if asked.top_logprobs and not asked.logprobs:
        raise invalid("'top_logprobs' is only for 'logprobs': true", "top_logprobs")
    if asked.grammar is not None and asked.response_format is not None and asked.response_format.type != "text":
        raise invalid("'grammar' and 'response_format' exclude each other", "grammar")
    if asked.max_tokens is not None and asked.max_completion_tokens not in (None, asked.max_tokens):
        raise invalid("'max_tokens' is another name of 'max_completion_tokens', and they differ", "max_tokens")
    if asked.continue_final_message and asked.add_generation_prompt:
        raise invalid(
            "'continue_final_message' and 'add_generation_prompt' exclude each other", "add_generation_prompt"
        )
    messages = [message_of(m, f"messages[{i}]") for i, m in enumerate(asked.messages)]
    check_results(messages, "messages[{}].tool_call_id")
    if asked.continue_final_message and (messages[-1].role != "assistant" or messages[-1].tool_calls):
        raise invalid("only an assistant's message without tool calls can be continued", "continue_final_message")
    tools, choice = tools_of(asked)
    if asked.grammar is not None and tools:
        raise invalid("'grammar' and 'tools' exclude each other", "grammar")
    opens = asked.add_generation_prompt
    options = ChatOptions(
        add_generation_prompt=True if opens is None or asked.continue_final_message else opens,
        continue_final_message=bool(asked.continue_final_message),
        tools=tuple(tool.as_template() for tool in tools),
        tool_choice=cast(Any, choice),
        # of the function that is named there is one call
        parallel_tool_calls=asked.parallel_tool_calls is not False and not isinstance(asked.tool_choice, NamedTool),
        json_schema=asked.response_format.schema_text() if asked.response_format else None,
        grammar=asked.grammar,
    )
    return Ask(
        messages=messages,
        sampling=asked.params(),
        options=options,
        kwargs=template_kwargs(asked),
        effort=asked.reasoning_effort,
        budget=asked.thinking_budget_tokens,
        max_tokens=asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens,
        stop=asked.stops(),
        n=asked.n or 1,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        priority=asked.priority or 0,
        names=NAMES if asked.enable_thinking is None else NAMES._replace(switch="enable_thinking"),
        schemas=_schemas(asked),
    )


def _schemas(asked: ChatRequest) -> list[Given]:
    functions = enumerate(tool.function for tool in asked.tools or ())
    of_tools = [Given(f"tools[{i}].function.parameters", f.parameters, f.strict, f.name) for i, f in functions]
    return of_tools + (asked.response_format.given() if asked.response_format else [])


def tools_of(asked: ChatRequest) -> tuple[Sequence[Tool], str]:
    """The tools that may be called, and whether one has to be. Raises ApiError."""
    tools, choice = asked.tools or [], asked.tool_choice
    check_names(tool.function.name for tool in tools)
    if choice is None:
        return tools, "auto"
    if not tools:
        if choice in ("none", "auto"):
            return tools, "auto"
        raise invalid("'tool_choice' is only for requests with 'tools'", "tool_choice")
    if isinstance(choice, str):
        return tools, choice
    names = {tool.function.name for tool in tools}
    wanted = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    for named in wanted:
        if named.function.name not in names:
            raise invalid(f"'tool_choice' names {named.function.name!r}, which is not in 'tools'", "tool_choice")
    chosen = {named.function.name for named in wanted}
    mode = choice.allowed_tools.mode if isinstance(choice, Allowed) else "required"
    return [tool for tool in tools if tool.function.name in chosen], mode


def form_of(asked: ChatRequest) -> str | None:
    """The field that a grammar for the answer is made of; None where it may be another."""
    if asked.grammar is not None:
        return "grammar"
    formed = asked.response_format is not None and asked.response_format.type != "text"
    if formed and asked.tools:
        return None
    return "response_format" if formed else "tools"


def task_of(serving: Serving, asked: ChatRequest) -> Task:
    """The requests of the engine. Raises ApiError, RequestError."""
    return chat_task(serving, ask_of(asked))


def finish_reason(choice: Choice) -> str:
    """OpenAI's word for why an answer ended."""
    if choice.cut_off:
        return "length"
    return "tool_calls" if choice.calls else "stop"


class ChatPresenter(ChunkPresenter):
    """Objects and chunks of a chat completion."""

    prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk = "chat.completion.chunk"

    def started(self, answers: Answers) -> Iterator[bytes]:
        """The role, for each choice."""
        for index in range(len(answers.choices)):
            yield self._chunk(_part(index, {"role": "assistant", "content": ""}))

    def piece(self, answers: Answers, piece: Piece) -> Iterator[bytes]:
        """Text, calls, and the end of one choice."""
        delta = _delta(piece.delta)
        if delta or piece.logprobs:
            yield self._chunk(_part(piece.index, delta, logprobs=self._logprobs(piece.logprobs)))
        if piece.finished is not None:
            last = _part(piece.index, {}, reason=finish_reason(answers.choices[piece.index]))
            yield self._chunk(last, timings=timings_of(piece.finished))

    def whole(self, answers: Answers) -> dict[str, Any]:
        """All choices at once."""
        choices = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": self._logprobs(choice.logprobs) if self.wants_logprobs else None,
                "finish_reason": finish_reason(choice),
            }
            for index, choice in enumerate(answers.choices)
        ]
        return self._object(choices, answers)

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.wants_logprobs or not tokens:
            return None
        vocab = self.serving.service.vocab
        return {"content": [token_logprob(vocab, token) for token in tokens], "refusal": None}


def _part(index: int, delta: Any, *, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _delta(delta: ReplyDelta) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if delta.reasoning:
        found["reasoning_content"] = delta.reasoning
    if delta.content:
        found["content"] = delta.content
    if delta.tool_calls:
        found["tool_calls"] = [
            {
                "index": call.index,
                **({"id": call.id, "type": "function"} if call.name else {}),
                "function": {**({"name": call.name} if call.name else {}), "arguments": call.arguments},
            }
            for call in delta.tool_calls
        ]
    return found


def _message(choice: Choice) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning:
        found["reasoning_content"] = choice.reasoning
    if choice.calls:
        found["content"] = choice.content or None
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return found
