"""What of a JSON schema the grammar does not enforce is named; where nothing is, all texts by it follow the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pagedrun.chat.enforced import first_unenforced
from pagedrun.chat.patterns import is_enforced
from pagedrun.errors import GrammarError
from tests.grammar_texts import Texts

if TYPE_CHECKING:
    from pagedrun.native.door import Door
    from pagedrun.native.library import Library

Schema = dict[str, Any]


def obj(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def one(**keywords: Any) -> Schema:
    return obj({"a": keywords})


INT, STR = {"type": "integer"}, {"type": "string"}
NODE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": obj({"value": INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})},
}

ENFORCED: list[Schema] = [
    {},
    {"type": "object"},
    {"title": "T", "description": "D", "type": "object", "properties": {"a": INT}, "additionalProperties": False},
    obj({"a": INT, "b": STR}, additionalProperties=False),
    {"type": "object", "properties": {"a": INT, "b": STR}, "required": ["b"]},
    obj({"a": INT}, minProperties=1, maxProperties=1, unevaluatedProperties=False),
    {"type": "object", "additionalProperties": INT},
    one(type="integer", minimum=3),
    one(type="integer", minimum=1234),
    one(type="integer", minimum=120),
    one(type="integer", minimum=-3),
    one(type="integer", maximum=7),
    one(type="integer", minimum=1000, maximum=2005),
    one(type="integer", exclusiveMinimum=0, maximum=9007199254740991),
    one(type="integer", exclusiveMinimum=0.5, exclusiveMaximum=4),
    one(type="integer", minimum=-9007199254740991, maximum=9007199254740991),
    one(type="integer", multipleOf=1, exclusiveMinimum=False, minimum=2),
    one(type="number"),
    one(type=["string", "null"], minLength=2),
    one(type=["string", "null"], enum=["x", None]),
    one(type="string", minLength=2, maxLength=5),
    one(type="string", pattern="^[a-z]{2,4}-(x|y1)+$"),
    one(type="string", pattern=r"^\+?[0-9 ()-]+$", minLength=0),
    one(type="string", format="date"),
    one(type="string", format="date-time"),
    one(type="string", format="uuid"),
    one(type="integer", maxLength=3, format="int32", pattern="x"),
    one(const=1.0, type="integer"),
    one(enum=["a", 2], type=["string", "number"]),
    one(type="array", items=INT, minItems=1, maxItems=3, uniqueItems=False),
    one(type="array", prefixItems=[INT, STR], minItems=2, maxItems=2, additionalItems=False),
    one(type="array", items=[INT, STR]),
    one(anyOf=[INT, {"type": "null"}], default=None),
    one(type=["integer", "null"], anyOf=[INT, {"type": "null"}]),
    one(oneOf=[one(const="x"), one(const="y")], discriminator={"propertyName": "a"}),
    one(oneOf=[INT, STR, {"type": "null"}]),
    one(allOf=[obj({"x": INT}), obj({"y": STR})]),
    {**one(allOf=[{"$ref": "#/definitions/color"}]), "definitions": {"color": {"enum": ["red", "blue"]}}},
    {**one(type="object", allOf=[{"$ref": "#/$defs/p"}], required=["x"]), "$defs": {"p": obj({"x": INT})}},
    NODE,
]

#: Schema, keyword, path, and a value that the grammar allows and the schema does not.
UNENFORCED: list[tuple[Schema, str, str]] = [
    (one(type="integer", minimum=1000), "minimum", "properties.a"),
    (one(type="integer", exclusiveMinimum=99), "exclusiveMinimum", "properties.a"),
    (one(type="integer", maximum=-5), "maximum", "properties.a"),
    (one(type="integer", minimum=3, exclusiveMinimum=True), "exclusiveMinimum", "properties.a"),
    (one(type="integer", minimum=3, exclusiveMinimum=7), "exclusiveMinimum", "properties.a"),
    (one(type="integer", multipleOf=5), "multipleOf", "properties.a"),
    (one(type="number", minimum=1), "minimum", "properties.a"),
    (one(type="number", exclusiveMaximum=1), "exclusiveMaximum", "properties.a"),
    (one(type="number", multipleOf=0.5), "multipleOf", "properties.a"),
    (one(type=["null", "number"], maximum=1), "maximum", "properties.a"),
    (one(type="string", format="email"), "format", "properties.a"),
    (one(format="ipv4"), "format", "properties.a"),
    (one(type="string", format="uuid4"), "format", "properties.a"),
    (one(type="string", format="date", maxLength=3), "maxLength", "properties.a"),
    (one(type="string", pattern="^[a-z]+$", minLength=3), "minLength", "properties.a"),
    (one(type="string", pattern="^(?=a).*$"), "pattern", "properties.a"),
    (one(type="string", pattern=r"^\d+$"), "pattern", "properties.a"),
    (one(type="string", pattern="abc"), "pattern", "properties.a"),
    (one(type="array", items=INT, uniqueItems=True), "uniqueItems", "properties.a"),
    (one(type="array", contains=INT), "contains", "properties.a"),
    (one(type="array", prefixItems=[INT], items=STR), "prefixItems", "properties.a"),
    (one(type="array", prefixItems=[INT], minItems=2), "minItems", "properties.a"),
    (one(type="array", unevaluatedItems=False), "unevaluatedItems", "properties.a"),
    (one(type="array", items={"type": "number", "minimum": 1}), "minimum", "properties.a.items"),
    (one(type="array", items=[INT, {"not": INT}]), "not", "properties.a.items.1"),
    ({"type": "object", "minProperties": 1}, "minProperties", ""),
    ({"type": "object", "maxProperties": 0}, "maxProperties", ""),
    ({"type": "object", "required": ["b"]}, "required", ""),
    (obj({"a": INT}, required=["a", "b"]), "required", ""),
    (obj({"a": INT}, additionalProperties=True), "additionalProperties", ""),
    ({"type": "object", "patternProperties": {".": INT}}, "patternProperties", ""),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, "propertyNames", ""),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", ""),
    ({"type": "object", "additionalProperties": {"type": "number", "minimum": 1}}, "minimum", "additionalProperties"),
    (obj({"a": INT}, **{"if": obj({"a": INT}), "then": obj({"b": INT})}), "if", ""),
    (obj({"a": INT}, dependentRequired={"a": ["b"]}), "dependentRequired", ""),
    (obj({"a": INT}, dependentSchemas={"a": False}), "dependentSchemas", ""),
    (obj({"a": INT}, **{"not": {"required": ["a"]}}), "not", ""),
    (one(const=1, type="string"), "type", "properties.a"),
    (one(enum=["a", 1], type="string"), "type", "properties.a"),
    (one(const="a", enum=["b"]), "enum", "properties.a"),
    (one(enum=["aaa", "b"], maxLength=2), "maxLength", "properties.a"),
    (one(type="object", anyOf=[{"required": ["x"]}, {"required": ["y"]}]), "type", "properties.a"),
    (one(anyOf=[{"type": "number", "minimum": 1}]), "minimum", "properties.a.anyOf.0"),
    (one(anyOf=[INT], oneOf=[INT, STR]), "anyOf", "properties.a"),
    (one(oneOf=[INT, {"type": "number"}]), "oneOf", "properties.a"),
    (one(allOf=[INT]), "allOf", "properties.a"),
    (one(allOf=[{"anyOf": [obj({"x": INT}), obj({"y": INT})]}]), "allOf", "properties.a"),
    (one(allOf=[obj({"x": INT}, additionalProperties=False), obj({"y": INT})]), "allOf", "properties.a"),
    (obj({"a": INT}, allOf=[obj({"b": INT})]), "allOf", ""),
    ({**one(**{"$ref": "#/$defs/x", "maximum": 3}), "$defs": {"x": INT}}, "maximum", "properties.a"),
    ({**one(**{"$ref": "#/$defs/x"}), "$defs": {"x": {"type": "number", "maximum": 3}}}, "maximum", "$defs.x"),
    (
        {**obj({"a": {"$ref": "#/$defs/x_"}, "b": {"$ref": "#/$defs/x."}}), "$defs": {"x_": one(const=1), "x.": STR}},
        "$ref",
        "properties.b",
    ),
]  # fmt: skip

PATTERNS = [
    ("^$", True), ("^abc$", True), ("^a|b$", True), ("^ab+c{2}$", True), ("^(?:ab)*(c|d){0,2}$", True),
    ("^[A-Za-z0-9_.-]+$", True), (r"^[a\-z]+\.[\[\]]$", True), (r"^\.+x$", True), ("^[一-龥]+$", True),
    (r"^\+?[0-9]{3,}$", True), (r"^a\.b$", True),
    ("a", False), ("^a", False), (r"^a\$", False), ("^.*$", False), ("^[^a]+$", False), (r"^\w+$", False),
    (r"^a\.+$", False), ("^a+?$", False), ("^[!-~]+$", False), ('^"$', False), (r"^\n$", False), (r"^\\$", False),
    ("^(?!a)b$", False), ("^a{,3}$", False), ("^a{5,3}$", False), ("^(a$", False), ("^a)$", False), ("^é+$", False),
    ("^(|a)$", False), ("^a|$", False), ("^+$", False), ("^a^b$", False), ("^[z-a]$", False), ("^[]a]$", False),
]  # fmt: skip


@pytest.mark.parametrize("schema", ENFORCED, ids=json.dumps)
def test_what_is_enforced(schema: Schema) -> None:
    assert first_unenforced(schema) is None


@pytest.mark.parametrize(("schema", "keyword", "path"), UNENFORCED)
def test_what_is_not_enforced(schema: Schema, keyword: str, path: str) -> None:
    assert first_unenforced(schema) == (keyword, path)


@pytest.mark.parametrize(("pattern", "enforced"), PATTERNS)
def test_patterns(pattern: str, enforced: bool) -> None:
    assert is_enforced(pattern) is enforced


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int"}, {"properties": []}, {"$ref": "#/$defs/none"}, {"$ref": 1}, {"$ref": "#"}, {"items": True},
        {"anyOf": 1}, {"allOf": 1}, {"allOf": [1]}, {"allOf": []}, {"enum": 1}, {"type": {}}, {"type": [1]},
        {"type": "integer", "minimum": "x", "maximum": []}, {"type": "object", "required": [[]]}, {"oneOf": [1, 2]},
        {"type": "array", "items": [], "minItems": "x"}, {"type": "string", "pattern": 1, "format": 1}, True, None,
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"type": "integer", "minimum": 1e300},
        {"type": "integer", "minimum": float("inf")}, {"const": None, "enum": None}, {"allOf": [{"enum": []}]},
    ],
)  # fmt: skip
def test_what_is_no_schema_is_no_defect(schema: Any) -> None:
    first_unenforced(schema)
    first_unenforced({"type": "object", "properties": {"a": schema}})


def test_deep_schemas_and_many_choices() -> None:
    deep: Schema = INT
    for _ in range(100_000):
        deep = {"anyOf": [deep]}
    with pytest.raises(GrammarError, match="nested too deeply"):
        first_unenforced(deep)
    many = {"oneOf": [{"const": i} for i in range(5000)]}
    assert first_unenforced(many) == ("oneOf", "")


@pytest.fixture(scope="session")
def door(library: Library) -> Door:
    from pagedrun.native.door import Door

    return Door(library.common)


def _number(text: str) -> float:
    return max(-1e300, min(float(text), 1e300))  # no infinity, of which there are no multiples


def broken(door: Door, schema: Schema, tries: int = 3000) -> Iterator[str]:
    """Texts by the grammar that the schema refuses, or that are no JSON."""
    texts = Texts(door.schema_to_grammar(json.dumps(schema or {"type": "object"})))
    checks = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["email", "ipv4", "uuid"]))
    if isinstance(schema.get("properties", {}).get("a", {}).get("items"), list):
        checks = jsonschema.Draft7Validator(schema)
    for _ in range(tries):
        text = texts.text()
        try:
            follows = checks.is_valid(json.loads(text, parse_float=_number))
        except ValueError:
            follows = False
        if not follows:
            yield text


@pytest.mark.real
@pytest.mark.parametrize("schema", ENFORCED, ids=json.dumps)
def test_texts_by_the_grammar_follow_the_schema(door: Door, schema: Schema) -> None:
    assert next(broken(door, schema, 500), None) is None


@pytest.mark.real
@pytest.mark.parametrize("schema", [schema for schema, _, _ in UNENFORCED], ids=json.dumps)
def test_texts_by_the_grammar_break_what_is_not_enforced(door: Door, schema: Schema) -> None:
    """So no keyword is refused without a need."""
    if any(
        part in json.dumps(schema) for part in ("uuid4", '"exclusiveMinimum": true', '"additionalProperties": true')
    ):
        pytest.skip("no validator says so, or one of very many texts")
    assert next(broken(door, schema), None)


@pytest.mark.real
@pytest.mark.parametrize("pattern", [pattern for pattern, enforced in PATTERNS if enforced])
def test_texts_of_patterns(door: Door, pattern: str) -> None:
    grammar = door.schema_to_grammar(json.dumps({"type": "string", "pattern": pattern}))
    texts = Texts(grammar)
    for _ in range(300):
        assert re.search(pattern, json.loads(texts.text()))


@pytest.mark.real
def test_ranges_of_integers(door: Door) -> None:
    """Every range that is said to be exact has only its own integers, in digits of JSON."""
    ends = [-1234, -1000, -210, -100, -99, -10, -9, -1, 0, 1, 9, 10, 19, 99, 100, 101, 110, 209, 999, 1000, 1010, 1234]
    texts = [str(n) for n in range(-2500, 2500)] + ["-0", "-00", "-01", "00", "01", "-0100"]
    for low in (None, *ends):
        for high in (None, *ends):
            schema = {"type": "integer"} | ({} if low is None else {"minimum": low})
            schema |= {} if high is None else {"maximum": high}
            if (low is None and high is None) or first_unenforced(schema) is not None:
                continue
            (rule,) = re.findall(r"^root ::= (.*)$", door.schema_to_grammar(json.dumps(schema)), re.MULTILINE)
            digits = re.compile(re.sub(r'[ "]', "", rule))
            for text in filter(digits.fullmatch, texts):
                assert (low is None or low <= json.loads(text)) and (high is None or json.loads(text) <= high), schema
