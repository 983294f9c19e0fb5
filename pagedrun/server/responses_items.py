"""/v1/responses/{id}/input_items: the conversation that a response answers, as items."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from pagedrun.chat import Message
from pagedrun.server.errors import invalid


class ListQuery(BaseModel):
    """Which of the items. after: the id of the one before the first that is wanted."""

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(None, max_length=256)


def items_of(response_id: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as items, in their order, each with an id that is always the same."""
    items = [item for message in messages for item in _of(message)]
    prefixes = {"reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
    for number, item in enumerate(items):
        digest = hashlib.sha256(f"{response_id} {number}".encode()).hexdigest()[:32]
        item["id"] = f"{prefixes.get(item['type'], 'msg')}_{digest}"
    return items


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
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
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
