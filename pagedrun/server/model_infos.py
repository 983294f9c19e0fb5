"""/v1/models in Anthropic's form, for who sends `anthropic-version`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from pydantic import BaseModel, Field

from pagedrun.server.errors import invalid


class ListQuery(BaseModel):
    """Which of the models: those after one, or before it."""

    limit: int = Field(20, ge=1, le=1000)
    after_id: str | None = Field(None, max_length=512)
    before_id: str | None = Field(None, max_length=512)


def info_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model of OpenAI's list."""
    created = datetime.fromtimestamp(model["created"], timezone.utc)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model["max_model_len"],
        "max_tokens": model["max_model_len"],
        "pagedrun": model["pagedrun"],
    }


def page_of(listed: Mapping[str, Any], query: ListQuery) -> dict[str, Any]:
    """One page of OpenAI's list. Raises ApiError."""
    infos = [info_of(model) for model in listed["data"]]
    if query.after_id is not None:
        infos = infos[_place(infos, query.after_id, "after_id") + 1 :]
    if query.before_id is not None:
        infos = infos[: _place(infos, query.before_id, "before_id")]
    backwards = query.before_id is not None and query.after_id is None
    data = infos[-query.limit :] if backwards else infos[: query.limit]
    return {
        "data": data,
        "has_more": len(infos) > len(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _place(infos: list[dict[str, Any]], name: str, param: str) -> int:
    for number, info in enumerate(infos):
        if info["id"] == name:
            return number
    raise invalid(f"'{param}' names '{name[:100]}', which is not there", param)
