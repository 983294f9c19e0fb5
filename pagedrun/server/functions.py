"""Functions that a model may call, whatever API names them: as templates read them, and what they are called with."""

from __future__ import annotations

import json
from typing import Any

from pagedrun.server.errors import invalid


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """What templates read."""
    parameters = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}


def arguments_of(text: str | None, param: str) -> str:
    """A call's arguments, which templates take for an object; none are an empty one. Raises ApiError."""
    if text is None or not text.strip():
        return "{}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(f"'{param}' is no JSON object", param)
    return text
