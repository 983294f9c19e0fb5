"""What can be read off one JSON schema, as the converter of llama.cpp reads it: its kind, values, types, bounds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeGuard

FORMATS = ("date", "time", "date-time", "uuid")
_INT64 = 1 << 63


def kind_of(schema: Mapping[str, Any]) -> str:
    """What the converter takes a schema for that is neither a $ref, a choice nor values: a type, allOf, or any."""
    kind = schema.get("type") or ""
    has_properties = "properties" in schema or schema.get("additionalProperties", True) is not True
    if "allOf" in schema and (kind == "string" or (kind in ("", "object") and not has_properties)):
        return "allOf"
    if kind:
        return str(kind)
    if has_properties:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    texts = {"pattern", "minLength", "maxLength"} & schema.keys()
    return "string" if texts or has_rule(schema.get("format")) else "any"


def has_rule(name: Any) -> bool:
    """Whether the converter has a rule for this format of strings."""
    return isinstance(name, str) and (name in FORMATS or bool(re.fullmatch(r"uuid[1-5]", name)))


def is_list_of_values(schema: Mapping[str, Any]) -> bool:
    """Whether the converter takes it for the values that are listed."""
    others = {"$ref", "oneOf", "anyOf", "const"} & schema.keys()
    return not others and bool(values_of(schema)) and not isinstance(schema.get("type"), list)


def values_of(schema: Mapping[str, Any]) -> list[Any]:
    """The only values that can follow it; none are listed: []."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else []


def differ(a: Any, b: Any) -> bool:
    """Whether both are lists of values without one in common."""
    ours, theirs = ({text_of(v) for v in values_of(s)} if isinstance(s, Mapping) else set() for s in (a, b))
    return bool(ours and theirs and not ours & theirs)


def text_of(value: Any) -> str:
    """The JSON of a value, the same for equal ones."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def type_of(value: Any) -> str:
    """The type of a value; integers are not called numbers."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
    return kinds.get(type(value), "null")


def listed(types: Any) -> AbstractSet[str]:
    """The types, where one is given or several."""
    return frozenset(k for k in (types if isinstance(types, list) else [types]) if isinstance(k, str))


def with_numbers(types: AbstractSet[str]) -> AbstractSet[str]:
    """The types; integers are numbers, and some numbers integers."""
    return types | {"integer", "number"} if types & {"integer", "number"} else types


def names(required: Any) -> AbstractSet[str]:
    """What is required; {""} for what is no list of names."""
    if required is None:
        return frozenset()
    are_names = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return frozenset(required) if are_names else frozenset({""})


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be a bound."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def bound(bounds: Mapping[str, Any], plain: str, exclusive: str) -> tuple[str, int | None]:
    """The name and the least whole number of a bound from below; the converter takes the plain one before the other."""
    name = plain if plain in bounds else exclusive
    value = bounds.get(name)
    if not is_number(value):
        return "", None
    return name, math.ceil(value) if name == plain else math.floor(value) + 1


def is_exact(least: int | None, most: int | None) -> bool:
    """Whether the digits that the converter allows for a range of integers are those of the range."""
    if any(bound is not None and not -_INT64 < bound < _INT64 for bound in (least, most)):
        return False
    if least is not None and most is not None:
        return least <= most
    if least is not None:
        # It takes the digits after the first for a number, without leading zeros: 1000 allows 100.
        return least < 10 or (least < 10**15 and "0" not in str(least)[1:-1])
    return most is None or most >= 0  # -5 allows -00
