"""OpenAI's /v1/responses: one answer as items, whole or as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pagedrun.chat import Message, ToolCall
from pagedrun.request import TokenLogprob
from pagedrun.server.answers import Answers, Choice, Piece, Task
from pagedrun.server.asking import chat_task
from pagedrun.server.errors import ApiError
from pagedrun.server.replies import Presenter, new_id, sse, timings_of, token_logprob, usage_of
from pagedrun.server.responses_fields import ResponsesRequest, ask_of, read_input, wants_logprobs
from pagedrun.server.responses_items import Marks, marks_of_output
from pagedrun.server.responses_store import Responses
from pagedrun.server.serving import Serving

#: Nobody pays for what is put into the cache, and how long it stays there is not promised.
_NOT_WRITTEN = {"cache_write_tokens": 0}


class ResponsesPresenter(Presenter):
    """Makes the task too, because what is kept of a response has its whole conversation.

    given: the body, of which responses repeat some fields.
    """

    prefix = "resp_"

    def __init__(self, serving: Serving, asked: ResponsesRequest, given: dict[str, Any], kept: Responses) -> None:
        super().__init__(serving)
        self._wants_logprobs = wants_logprobs(asked)
        self._asked = asked
        self._given = given
        self._kept = kept
        self._before: tuple[Message, ...] = ()
        self._marks: Marks = {}
        self._items: list[dict[str, Any]] = []
        self._open = ""
        self._n_events = 0
        self._logprobs: list[dict[str, Any]] = []

    def task(self) -> Task:
        """The request of the engine. Reads what is gone on from. Raises ApiError, RequestError."""
        before = self._asked.previous_response_id
        if before is not None:
            kept = self._kept.get(before, "previous_response_id")
            self._before, self._marks = kept.messages, dict(kept.marks)
        return chat_task(self.serving, ask_of(self._asked, self._before))

    def started(self, answers: Answers) -> Iterator[bytes]:
        """The response, without output."""
        response = self._response("in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def piece(self, answers: Answers, piece: Piece) -> Iterator[bytes]:
        """More of an item, or the next one."""
        delta = piece.delta
        if delta.reasoning:
            yield from self._into("reasoning", {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []})
            self._items[-1]["content"][0]["text"] += delta.reasoning
            yield self._part_event("response.reasoning_text.delta", delta=delta.reasoning)
        if delta.content:
            yield from self._into("message", _message_item("in_progress"))
            self._items[-1]["content"][0]["text"] += delta.content
            logprobs = self._take(piece.logprobs)
            yield self._part_event("response.output_text.delta", delta=delta.content, logprobs=logprobs)
        for call in delta.tool_calls:
            known = answers.choices[0].calls[call.index]
            yield from self._into(str(call.index), _call_item(known.id, known.name, "", "in_progress"))
            self._items[-1]["arguments"] += call.arguments
            yield self._item_event("response.function_call_arguments.delta", delta=call.arguments)

    def ended(self, answers: Answers) -> Iterator[bytes]:
        """The response as a whole."""
        yield from self._close(_status(answers.choices[0]))
        response = self._finished(answers, self._items)
        yield self._event(f"response.{response['status']}", response=response)

    def whole(self, answers: Answers) -> dict[str, Any]:
        """All items at once."""
        choice = answers.choices[0]
        items: list[dict[str, Any]] = []
        if choice.reasoning:
            part = {"type": "reasoning_text", "text": choice.reasoning}
            items.append({"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": [part]})
        if choice.content:
            item = _message_item("completed" if choice.calls else _status(choice))
            item["content"] = [{**_text_part(choice.content), "logprobs": self._take(choice.logprobs)}]
            items.append(item)
        items += [_call_item(call.id, call.name, call.arguments, "completed") for call in choice.calls]
        if choice.calls:
            items[-1]["status"] = _status(choice)
        return self._finished(answers, items)

    def failed(self, error: ApiError) -> bytes:
        """The event for an error after the first one."""
        told = {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}
        return self._event("response.failed", response={**self._response("failed", self._items), "error": told})

    def _finished(self, answers: Answers, items: list[dict[str, Any]]) -> dict[str, Any]:
        choice = answers.choices[0]
        assert choice.finished is not None
        status = _status(choice)
        usage = usage_of(answers)
        response = {
            **self._response(status, items),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], **_NOT_WRITTEN},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
            "timings": timings_of(choice.finished),
        }
        if self._asked.store is not False:
            given, marks = read_input(self._asked, len(self._before))
            before = (*self._before, *given)
            marks = {**self._marks, **marks, **marks_of_output(len(before), items)}
            self._kept.add(response, (*before, _answered(choice)), marks)
        return response

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        asked = self._asked
        given = self._given
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.serving.name,
            "output": items,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            "store": asked.store is not False,
            "temperature": asked.temperature,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given.get("tool_choice") or "auto",
            "tools": [{"strict": None, "description": None, "parameters": None, **t} for t in given.get("tools") or ()],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _into(self, kind: str, item: dict[str, Any]) -> Iterator[bytes]:
        """Events that make the open item one of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._items.append(item)
        self._logprobs = []
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=dict(item))
        if kind in ("reasoning", "message"):
            part = _text_part("") if kind == "message" else {"type": "reasoning_text", "text": ""}
            yield self._part_event("response.content_part.added", part=part)
            item["content"] = [dict(part)]

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        if not self._open:
            return
        item = self._items[-1]
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._item_event("response.function_call_arguments.done", **done)
        else:
            part = item["content"][0]
            if item["type"] == "message":
                part["logprobs"] = self._logprobs
                yield self._part_event("response.output_text.done", text=part["text"], logprobs=self._logprobs)
            else:
                yield self._part_event("response.reasoning_text.done", text=part["text"])
            yield self._part_event("response.content_part.done", part=part)
        if "status" in item:
            item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._open = ""

    def _take(self, tokens: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> list[dict[str, Any]]:
        if not self._wants_logprobs:
            return []
        found = [token_logprob(self.serving.service.vocab, token) for token in tokens]
        self._logprobs += found
        return found

    def _item_event(self, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **more)

    def _part_event(self, kind: str, **more: Any) -> bytes:
        return self._item_event(kind, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._n_events += 1
        return sse({"type": kind, "sequence_number": self._n_events - 1, **more}, kind)


def _status(choice: Choice) -> str:
    """Of the response, and of its last item."""
    return "incomplete" if choice.cut_off else "completed"


def _message_item(status: str) -> dict[str, Any]:
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": status, "content": []}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    item = {"id": new_id("fc_"), "type": "function_call", "call_id": call_id, "name": name}
    return {**item, "arguments": arguments, "status": status}


def _answered(choice: Choice) -> Message:
    """The answer, as the next prompt has it."""
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in choice.calls)
    return Message("assistant", choice.content, choice.reasoning, calls)
