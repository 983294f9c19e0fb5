"""Functions that a model may call, whatever API names them: as templates read them, and what they are called with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagedrun.server.errors import invalid
from pagedrun.server.schemas import DATA, NAMED

_DEFINITIONS = ("$defs", "definitions")


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


def with_definitions_apart(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The tools, with other names for one's definitions where another one has different ones of these names.

    llama.cpp makes one grammar of all tools, with one rule for a name.
    """
    known: dict[str, Any] = {}
    apart: list[Mapping[str, Any]] = []
    for number, tool in enumerate(tools, 1):
        function = tool["function"]
        own = _definitions(function["parameters"])
        if any(known.get(name, schema) != schema for name, schema in own.items()):
            names = {name: _free(f"{name}_{number}", {**known, **own}) for name in own}
            function = {**function, "parameters": _renamed(function["parameters"], names)}
            own = _definitions(function["parameters"])
        known |= own
        apart.append({**tool, "function": function})
    return tuple(apart)


def _definitions(parameters: Mapping[str, Any]) -> dict[str, Any]:
    found = [parameters.get(key) for key in _DEFINITIONS]
    return {name: schema for one in found if isinstance(one, dict) for name, schema in one.items()}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _renamed(parameters: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = _referring(parameters, names)
    for key in _DEFINITIONS:
        if isinstance(made.get(key), dict):
            made[key] = {names[name]: schema for name, schema in made[key].items()}
    return made


def _referring(value: Any, names: Mapping[str, str], *, named: bool = False) -> Any:
    """A schema whose references have the new names. named: `value` has schemas by names."""
    if isinstance(value, list):
        return [_referring(one, names) for one in value]
    if not isinstance(value, dict):
        return value
    made = {
        key: one if key in DATA and not named else _referring(one, names, named=key in NAMED and not named)
        for key, one in value.items()
    }
    reference = None if named else value.get("$ref")
    if isinstance(reference, str):
        root, *path = reference.split("/")
        if root == "#" and len(path) > 1 and path[0] in _DEFINITIONS and path[1] in names:
            made["$ref"] = "/".join((root, path[0], names[path[1]], *path[2:]))
    return made
