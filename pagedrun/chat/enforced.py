"""What of a JSON schema llama.cpp's grammar does not enforce.

Follows common/json-schema.cpp and json-schema-to-grammar.cpp of our base, which take the first of a schema's keywords
that they know and pass over the others: text by the grammar may then not follow the schema. A grammar may be narrower
than the schema (objects have no further properties, integers 16 digits); that is no harm.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from pagedrun.chat.patterns import is_enforced
from pagedrun.chat.schema_facts import (
    FORMATS,
    bound,
    differ,
    has_rule,
    is_exact,
    is_list_of_values,
    is_number,
    kind_of,
    listed,
    names,
    text_of,
    type_of,
    values_of,
    with_numbers,
)  # fmt: skip
from pagedrun.errors import GrammarError

_ANY = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_OF_TYPES = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
               "maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains",
              "unevaluatedItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
_OF = {keyword: kind for kind, keywords in _OF_TYPES.items() for keyword in keywords}
_ALWAYS = ("$ref", "$dynamicRef", "$recursiveRef", "type", "const", "enum", "allOf", "anyOf", "oneOf", "not", "if")
_ALL_WHEN_EMPTY = frozenset(
    {"required", "properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas",
     "minProperties", "minItems", "minLength", "uniqueItems"}
)  # fmt: skip
_OF_OTHERS = ("additionalProperties", "unevaluatedProperties")
_ALL_WHEN_TRUE = frozenset({*_OF_OTHERS, "unevaluatedItems", "propertyNames"})
_BY_TYPE = {"$ref", "oneOf", "anyOf", "const", "enum"}  # what goes before a type
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MOST_CHOICES = 100  # whose pairs are compared


class Unenforced(NamedTuple):
    """A keyword that the grammar passes over. path: to the schema that has it, `properties.a`; "" is the whole one."""

    keyword: str
    path: str


class _Found(Exception):  # noqa: N818 - no error
    pass


def first_unenforced(schema: Any) -> Unenforced | None:
    """The first keyword that answers may break although they follow the grammar; None: there is none.

    Of what no grammar can be made of, it says nothing. Raises GrammarError for one that is nested too deeply.
    """
    try:
        _Walk(schema).visit(schema, ())
    except _Found as found:
        return Unenforced(*found.args)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply", hint="move parts of it to $defs") from None
    return None


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._refs: dict[str, str] = {}  # name of the converter's rule -> $ref

    def visit(self, schema: Any, path: tuple[str, ...]) -> None:
        """Raise _Found for the first keyword of this schema and those inside."""
        if not isinstance(schema, Mapping):
            return  # no grammar
        if "$ref" in schema:
            self._ref(schema, path)
        elif "oneOf" in schema or "anyOf" in schema:
            self._choice(schema, path)
        elif "const" in schema or "enum" in schema:
            self._values(schema, path)
        elif isinstance(schema.get("type"), list):
            for kind in dict.fromkeys(k for k in schema["type"] if isinstance(k, str)):
                self.visit({**schema, "type": kind}, path)
        elif (kind := kind_of(schema)) in _BY_KIND:
            _BY_KIND[kind](self, schema, path)
        else:
            self._rest(schema, path, ("type",), _ANY if kind == "any" else {kind})

    def _rest(
        self, schema: Mapping[str, Any], path: tuple[str, ...], done: Iterable[str], types: AbstractSet[str]
    ) -> None:
        """Raise _Found for a keyword that has a say for values of these types and is not among `done`."""
        done, applies = set(done), with_numbers(types)
        named = listed(schema.get("type"))
        if types <= (named | {"integer"} if "number" in named else named):
            done.add("type")
        if "then" not in schema and "else" not in schema:
            done.add("if")
        for keyword, value in schema.items():
            if keyword in done or not (keyword in _ALWAYS or _OF.get(keyword) in applies):
                continue
            if keyword not in (_ALL_WHEN_TRUE if value is True else () if value else _ALL_WHEN_EMPTY):
                raise _Found(keyword, ".".join(path))

    def _target(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return None
        target = self._root
        for part in ref[2:].split("/"):
            if isinstance(target, list):
                target = target[int(part)] if part.isdecimal() and int(part) < len(target) else None
            else:
                target = target.get(part) if isinstance(target, Mapping) else None
        return target

    def _ref(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        ref = str(schema["$ref"])
        self._rest(schema, path, ("$ref",), self._types(schema))
        rule = re.sub(r"[^a-zA-Z0-9-]+", "-", ref[1:])
        if self._refs.get(rule, ref) != ref:
            raise _Found("$ref", ".".join(path))  # both become one rule
        if rule not in self._refs:
            self._refs[rule] = ref
            self.visit(self._target(ref), tuple(ref[2:].split("/")))

    def _behind(self, schema: Any) -> Any:
        """What is at the end of its $refs."""
        seen: set[str] = set()
        while isinstance(schema, Mapping) and "$ref" in schema and str(schema["$ref"]) not in seen:
            seen.add(str(schema["$ref"]))
            schema = self._target(schema["$ref"])
        return schema

    def _types(self, schema: Any, depth: int = 0) -> AbstractSet[str]:
        """Types of values that can follow the schema, and maybe more."""
        schema = self._behind(schema)
        if not isinstance(schema, Mapping) or depth > 8:
            return _ANY
        parts = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(parts, list):
            return frozenset().union(*(self._types(part, depth + 1) for part in parts))
        if values := values_of(schema):
            return frozenset(map(type_of, values))
        return listed(schema["type"]) if schema.get("type") else _ANY

    def _choice(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        keyword = "oneOf" if "oneOf" in schema else "anyOf"
        parts = schema[keyword]
        if not isinstance(parts, list):
            return  # no grammar
        self._rest(schema, path, (keyword,), self._types(schema))
        for i, part in enumerate(parts):
            self.visit(part, (*path, keyword, str(i)))
        pairs = itertools.combinations(parts, 2) if keyword == "oneOf" else ()
        if (pairs and len(parts) > _MOST_CHOICES) or not all(self._apart(a, b) for a, b in pairs):
            raise _Found(keyword, ".".join(path))

    def _apart(self, a: Any, b: Any) -> bool:
        """Whether nothing can follow both."""
        a, b = self._behind(a), self._behind(b)
        if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
            return False
        if not with_numbers(self._types(a)) & with_numbers(self._types(b)) or differ(a, b):
            return True
        ours, theirs = a.get("properties"), b.get("properties")
        if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
            return False
        both = names(a.get("required")) & names(b.get("required")) & ours.keys() & theirs.keys()
        return any(differ(self._behind(ours[name]), self._behind(theirs[name])) for name in both)

    def _values(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        values = values_of(schema)
        done = ["const" if "const" in schema else "enum"]
        if "const" in schema and text_of(schema["const"]) in map(text_of, values_of({"enum": schema.get("enum")})):
            done.append("enum")
        self._rest(schema, path, done, frozenset(map(type_of, values)))

    def _all(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        """Only objects, of which all properties are put together, and lists of values are more than a name here."""
        parts = schema["allOf"] if isinstance(schema["allOf"], list) else []
        for i, part in enumerate(parts):
            self.visit(part, (*path, "allOf", str(i)))
        ends = [self._behind(part) for part in parts]
        if not ends:
            return None  # no grammar
        if all(isinstance(end, Mapping) and is_list_of_values(end) for end in ends):
            texts = [list(map(text_of, end["enum"])) for end in ends]
            types = frozenset(type_of(json.loads(text)) for text in texts[0])
            if all(len(t) == len(set(t)) for t in texts) and set(texts[0]).intersection(*texts[1:]):
                return self._rest(schema, path, ("allOf",), types)
        found: list[str] = []
        for end in ends:
            if not isinstance(end, Mapping) or _BY_TYPE & end.keys() or kind_of(end) != "object":
                raise _Found("allOf", ".".join(path))
            if len(ends) > 1 and any(end.get(k, True) is not True for k in _OF_OTHERS):
                raise _Found("allOf", ".".join(path))  # refuses what the others have
            found += end.get("properties") or ()
        if len(set(found)) < len(found):
            raise _Found("allOf", ".".join(path))
        done = ("allOf", "required") if names(schema.get("required")) <= set(found) else ("allOf",)
        return self._rest(schema, path, done, {"object"})

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        if not isinstance(properties, Mapping):
            return  # no grammar
        if properties and more not in (None, False):
            raise _Found("additionalProperties", ".".join(path))  # they may have the others' names, written in escapes
        required = names(schema.get("required"))
        done = {"type", "properties", "additionalProperties"}
        if required <= properties.keys():
            done.add("required")
            if is_number(least := schema.get("minProperties")) and least <= len(required):
                done.add("minProperties")
        if "properties" in schema and not more:
            if schema.get("unevaluatedProperties") is False:
                done.add("unevaluatedProperties")
            if is_number(most := schema.get("maxProperties")) and most >= len(properties):
                done.add("maxProperties")
        self._rest(schema, path, done, {"object"})
        for name, value in properties.items():
            self.visit(value, (*path, "properties", name))
        self.visit(more, (*path, "additionalProperties"))

    def _array(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        key = "items" if "items" in schema else "prefixItems"
        inner = schema.get(key)
        done = {"type", key, "additionalItems"}
        if inner is not None:
            done.add("unevaluatedItems")
        if not isinstance(inner, list):
            self._rest(schema, path, done | {"minItems", "maxItems"}, {"array"})
            return self.visit(inner, (*path, key))
        if is_number(least := schema.get("minItems")) and least <= len(inner):  # there are always as many
            done.add("minItems")
        if is_number(most := schema.get("maxItems")) and most >= len(inner):
            done.add("maxItems")
        self._rest(schema, path, done, {"array"})
        for i, item in enumerate(inner):
            self.visit(item, (*path, key, str(i)))
        return None

    def _string(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        pattern = schema.get("pattern")
        if pattern:
            done = ["pattern"] if isinstance(pattern, str) and is_enforced(pattern) else []
        elif has_rule(schema.get("format")):
            done = ["pattern", "format"] if schema["format"] in FORMATS else ["pattern"]  # uuid4: of any version
        else:
            done = ["pattern", "minLength", "maxLength"]
        self._rest(schema, path, done, {"string"})

    def _integer(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
        bounds = {k: schema[k] for k in _BOUNDS if k in schema and schema[k] is not False}
        done = {k for k in _BOUNDS if schema.get(k) is False}
        done |= {"multipleOf"} if schema.get("multipleOf") == 1 else set()
        low, least = bound(bounds, "minimum", "exclusiveMinimum")
        high, most = bound({k: -v if is_number(v) else v for k, v in bounds.items()}, "maximum", "exclusiveMaximum")
        if not is_exact(least, None if most is None else -most):
            raise _Found(low or high, ".".join(path))
        self._rest(schema, path, done | {low, high}, {"integer"})


_BY_KIND = {
    "allOf": _Walk._all,
    "object": _Walk._object,
    "array": _Walk._array,
    "string": _Walk._string,
    "integer": _Walk._integer,
}
