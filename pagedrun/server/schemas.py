"""JSON schemas that clients send: refused where no grammar can be made of them, or a strict one is not enforced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pagedrun.chat.enforced import Unenforced, first_unenforced
from pagedrun.errors import GrammarError
from pagedrun.server.errors import ApiError, invalid, of_ours

_KEPT = 4096
_MOST_IN_ONE = 500  # properties of an object, and of all
_MOST = 5000
_LONGEST = 1000  # characters of an error that is kept; it may quote the schema

#: Keywords whose value is no schema, and those whose value has schemas by names, which are no keywords.
DATA = frozenset({"const", "default", "enum", "examples"})
NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})

#: Digest of a schema's text, and whether it is strict -> what is wrong with it. The same tools come again and again.
_known: dict[tuple[bytes, bool], str | Unenforced | None] = {}


class Given(NamedTuple):
    """A schema as it was sent. at: its field. tool: the function whose parameters it describes."""

    at: str
    schema: dict[str, Any] | None
    strict: bool | None = None
    tool: str | None = None


def check_schemas(to_grammar: Callable[[str], str], given: Iterable[Given]) -> None:
    """Raise ApiError, with the field, for the first schema that cannot be used, or not be enforced as asked."""
    n_properties = 0
    for one in given:
        if not one.schema:
            continue
        n_properties += _n_properties(one)
        if n_properties > _MOST:
            raise invalid(f"the schemas up to '{one.at}' have more than {_MOST:,} properties", one.at)
        whose = f"'{one.at}'" if one.tool is None else f"'{one.at}' of the function {one.tool!r}"
        if one.tool is not None and one.schema.get("type") not in (None, "object"):
            raise invalid(f"{whose} must have the type 'object'", one.at)
        wrong = _wrong(to_grammar, one)
        if isinstance(wrong, Unenforced):
            at = f"{one.at}.{wrong.path}".rstrip(".")
            of = "" if one.tool is None else f", of the function {one.tool!r},"
            message = f"{wrong.keyword!r} at '{at}'{of} cannot be enforced; 'strict': false takes the schema as far as"
            raise ApiError(400, f"{message} the grammar goes", param=at, code="unsupported_parameter")
        if wrong is not None:
            raise invalid(f"{whose}: {wrong}", one.at)


def _wrong(to_grammar: Callable[[str], str], given: Given) -> str | Unenforced | None:
    text = json.dumps(given.schema)
    key = (hashlib.sha256(text.encode()).digest(), bool(given.strict))
    if key in _known:
        return _known[key]
    if _repeats_a_type(given.schema):
        return "a type stands twice in a list of types"
    try:
        to_grammar(text)
        found: str | Unenforced | None = first_unenforced(given.schema) if given.strict else None
    except GrammarError as e:
        found = of_ours(e).message
    if len(_known) >= _KEPT:
        _known.clear()
    if found is None or sum(map(len, found)) <= _LONGEST:
        _known[key] = found
    return found


def _repeats_a_type(schema: Any) -> bool:
    """Which no schema may, and which makes a grammar twice as large each time."""
    types = (one.get("type") for one in _objects(schema))
    return any(isinstance(of, list) and len({str(one) for one in of}) < len(of) for of in types)


def _n_properties(given: Given) -> int:
    """In all of its objects. Raises ApiError for one that has too many: grammars take the cube of the time."""
    counts = [len(of) for one in _objects(given.schema) if isinstance(of := one.get("properties"), dict)]
    if max(counts, default=0) > _MOST_IN_ONE:
        raise invalid(f"'{given.at}' has an object with more than {_MOST_IN_ONE} properties", given.at)
    return sum(counts)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and those within it, wherever one may stand."""
    left = [(schema, False)]
    while left:
        value, named = left.pop()
        if isinstance(value, list):
            left += [(one, False) for one in value]
        elif isinstance(value, dict):
            if not named:
                yield value
            left += [(one, not named and key in NAMED) for key, one in value.items() if named or key not in DATA]
