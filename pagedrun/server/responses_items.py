"""/v1/responses/{id}/input_items: the conversation that a response answers, as items."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from pagedrun.chat import Message
from pagedrun.server.errors import invalid, unsupported

#: What messages do not say of the items that they were made of, by `place_of`: id, and role where it is another.
Marks = dict[str, dict[str, str]]


class ListQuery(BaseModel):
    """Which of the items. after: the id of the one before the first that is wanted."""

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(None, max_length=256)


def place_of(message: int, kind: str, number: int) -> str:
    """An item's place in a conversation: its message, its type, and which one of that type it is there."""
    return f"{message} {kind} {number}"


def marks_of_output(message: int, items: Sequence[Mapping[str, Any]]) -> Marks:
    """The ids of the items that an answer has, the message of that number."""
    return {place: {"id": item["id"]} for place, item in _placed(message, items)}


def items_of(response_id: str, messages: Sequence[Message], marks: Marks) -> list[dict[str, Any]]:
    """What a response answers as items, in their order, each with an id that is always the same: its own, if any."""
    placed = [one for number, message in enumerate(messages) for one in _placed(number, _of(message))]
    prefixes = {"reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
    seen: set[str] = set()
    items = []
    for number, (place, item) in enumerate(placed):
        mark = marks.get(place, {})
        if "id" not in mark or mark["id"] in seen:  # a client may have sent one twice
            digest = hashlib.sha256(f"{response_id} {number}".encode()).hexdigest()[:32]
            mark = {**mark, "id": f"{prefixes.get(item['type'], 'msg')}_{digest}"}
        seen.add(mark["id"])
        items.append({**item, **mark})
    return items


def check_get(query: Mapping[str, str]) -> None:
    """Raise ApiError for a response that is to be streamed once more: its events are not kept."""
    if query.get("stream", "").lower() in ("true", "1"):
        raise unsupported("stream", "is not supported here: a response is streamed only while it is made")
    if "starting_after" in query:
        raise unsupported("starting_after", "is not supported: a response is streamed only while it is made")


def _placed(message: int, items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    numbers: Counter[str] = Counter()
    for item in items:
        yield place_of(message, item["type"], numbers[item["type"]]), item
        numbers[item["type"]] += 1


def page_of(items: list[dict[str, Any]], query: ListQuery) -> dict[str, Any]:
    """One page of a list, in OpenAI's form. Raises ApiError."""
    found = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [number for number, item in enumerate(found) if item["id"] == query.after]
        if not places:
            raise invalid(f"'after' names '{query.after[:100]}', which is not there", "after")
        found = found[places[0] + 1 :]
    data = found[: query.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > query.limit,
    }


def _of(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        output = {"call_id": message.tool_call_id, "output": message.content}
        return [{"type": "function_call_output", **output, "status": "completed"}]
    if message.role != "assistant":
        return [_text(message.role, {"type": "input_text", "text": message.content})]
    items: list[dict[str, Any]] = []
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        items.append({"type": "reasoning", "summary": [], "content": [part]})
    if message.content:
        items.append(_text("assistant", {"type": "output_text", "text": message.content, "annotations": []}))
    items += [
        {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments, "status": "completed"}
        for c in message.tool_calls
    ]
    return items


def _text(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": role, "status": "completed", "content": [part]}
