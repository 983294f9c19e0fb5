"""Anthropic's /v1/messages: objects and events of one answer, and counting tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from pagedrun.request import Finished
from pagedrun.server import request_id
from pagedrun.server.answers import Answers, Choice, Piece, Task
from pagedrun.server.asking import chat_task, render
from pagedrun.server.errors import ApiError
from pagedrun.server.messages_fields import CountRequest, MessagesRequest, ask_of
from pagedrun.server.replies import Presenter, sse, timings_of
from pagedrun.server.serving import Serving
from pagedrun.server.tokens import tokens_of

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

_NOT_CACHED = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    called = request_id.current.get() or None
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": called}


def task_of(serving: Serving, asked: MessagesRequest) -> Task:
    """The request of the engine. Raises ApiError, RequestError."""
    return chat_task(serving, ask_of(asked))


def count(serving: Serving, asked: CountRequest) -> dict[str, Any]:
    """How many tokens the prompt would have. Raises ApiError, RequestError."""
    return {"input_tokens": len(tokens_of(serving, render(serving, ask_of(asked)).prompt))}


class MessagesPresenter(Presenter):
    """The one answer as blocks: thinking, text, and each use of a tool. stops: the client's own stop strings."""

    prefix = "msg_"

    def __init__(self, serving: Serving, stops: tuple[str, ...]) -> None:
        super().__init__(serving)
        self._stops = stops
        self._index = -1
        self._open = ""  # what the open block is: thinking, text, or the number of a call

    def started(self, answers: Answers) -> Iterator[bytes]:
        """The message without content."""
        # What of the prompt is in the cache is not said before the end; `message_delta` has the split.
        usage = {"input_tokens": len(answers.task.requests[0].prompt), **_NOT_CACHED, "output_tokens": 0}
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event({"type": "message_start", "message": message})

    def piece(self, answers: Answers, piece: Piece) -> Iterator[bytes]:
        """More of a block, or the next one."""
        delta = piece.delta
        if delta.reasoning:
            yield from self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self._into("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls:
            use = {"type": "tool_use", "id": answers.choices[0].calls[call.index].id, "input": {}}
            name = answers.choices[0].calls[call.index].name
            yield from self._into(str(call.index), {**use, "name": name})
            if call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def ended(self, answers: Answers) -> Iterator[bytes]:
        """Why it ended, and the token counts."""
        yield from self._close()
        choice = answers.choices[0]
        reason, stop = self._reason(choice)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        yield _event({"type": "message_delta", "delta": delta, "usage": _usage(choice.finished)})
        yield _event({"type": "message_stop"})

    def whole(self, answers: Answers) -> dict[str, Any]:
        """All blocks at once."""
        choice = answers.choices[0]
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.content:
            content.append({"type": "text", "text": choice.content})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
            for call in choice.calls
        ]
        assert choice.finished is not None
        reason, stop = self._reason(choice)
        return {
            **self._head(),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": _usage(choice.finished),
            "timings": timings_of(choice.finished),
        }

    def failed(self, error: ApiError) -> bytes:
        """The event for an error after the first one."""
        return _event(error_body(error))

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """The response for an error before the first event."""
        return error_body(error)

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.serving.name}

    def _into(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        """Events that make the open block one of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        yield _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._open:
            yield _event({"type": "content_block_stop", "index": self._index})
        self._open = ""

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _reason(self, choice: Choice) -> tuple[str, str | None]:
        assert choice.finished is not None
        if choice.cut_off:
            return "max_tokens", None
        if choice.calls:
            return "tool_use", None
        if choice.finished.stop in self._stops:
            return "stop_sequence", choice.finished.stop
        return "end_turn", None


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])


def _usage(finished: Finished | None) -> dict[str, int]:
    """Anthropic counts what was found in the cache apart."""
    assert finished is not None
    usage = finished.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object; of those that were cut off the whole members, as Anthropic's clients read streams."""
    try:
        value = from_json(arguments or "{}", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
