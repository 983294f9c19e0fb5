"""Schemas of tools and of answers: refused by the name of their field, in all APIs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagedrun.server import schemas
from tests.server_fakes import Fake, fake_server

GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LOOSE = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 2}}}
IMPOSSIBLE = {"type": "object", "properties": {"impossible": {}}}
NO_OBJECT = {"type": "string"}
WIDE = {"type": "object", "properties": {f"p{i}": {} for i in range(501)}}
MANY = {
    "type": "object",
    "properties": {f"p{i}": {"properties": dict.fromkeys(map(str, range(50)))} for i in range(100)},
}
TWICE = {"type": "object", "properties": {"a": {"anyOf": [{"type": ["object", "string", "object"]}]}}}


def chat(fake: Fake, parameters: Any, **more: Any) -> Any:
    function = {"name": "bad", "parameters": parameters, **more}
    tools = [{"type": "function", "function": f} for f in ({"name": "good", "parameters": GOOD}, function)]
    return fake.chat(tools=tools, tool_choice={"type": "function", "function": {"name": "good"}})


def responses(fake: Fake, parameters: Any, **more: Any) -> Any:
    tools = [
        {"type": "function", "name": "good"},
        {"type": "function", "name": "bad", "parameters": parameters, **more},
    ]
    return fake.post("/v1/responses", {"input": "x", "tools": tools})


def messages(fake: Fake, parameters: Any, **more: Any) -> Any:
    tools = [{"name": "good", "input_schema": GOOD}, {"name": "bad", "input_schema": parameters, **more}]
    data = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "tools": tools}
    return fake.post("/v1/messages", data)


WAYS = [
    (chat, "tools[1].function.parameters"),
    (responses, "tools[1].parameters"),
    (messages, "tools[1].input_schema"),
]


@pytest.mark.parametrize(("way", "at"), WAYS)
@pytest.mark.parametrize(
    ("parameters", "strict", "inside", "says"),
    [
        (IMPOSSIBLE, None, "", "cannot be used"),
        (NO_OBJECT, None, "", "must have the type 'object'"),
        (TWICE, None, "", "a type stands twice"),
        ({"type": "object", "properties": {"enum": TWICE["properties"]["a"]}}, None, "", "a type stands twice"),
        (LOOSE, True, ".properties.a", "'multipleOf' at "),
    ],
)
def test_tools(way: Any, at: str, parameters: Any, strict: bool | None, inside: str, says: str) -> None:
    with fake_server() as fake:
        for _ in range(2):  # known, the second time
            answer = way(fake, parameters, strict=strict)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert f"{at}{inside}" in error["message"] and says in error["message"] and "'bad'" in error["message"]
            if way is not messages:
                assert error["param"] == at + inside
                assert error["code"] == ("unsupported_parameter" if strict else "invalid_value")
        for fine, more in ((LOOSE, {}), (LOOSE, {"strict": False}), (GOOD, {}), ({}, {"strict": True})):
            assert way(fake, fine, **more).status_code == 200


@pytest.mark.parametrize("strict", [None, False, True])
def test_schemas_of_answers(strict: bool | None) -> None:
    form = {"name": "x", "schema": LOOSE, "strict": strict}
    json_schema = {"type": "json_schema", "json_schema": form}
    with fake_server() as fake:
        for answer, at in (
            (fake.chat(response_format=json_schema), "response_format.json_schema.schema.properties.a"),
            (
                fake.post("/v1/completions", {"prompt": "x", "response_format": json_schema}),
                "response_format.json_schema.schema.properties.a",
            ),
            (
                fake.post("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", **form}}}),
                "text.format.schema.properties.a",
            ),
        ):
            assert answer.status_code == (400 if strict else 200)
            if strict:
                error = answer.json()["error"]
                assert error["param"] == at and "'multipleOf' at" in error["message"]
                assert "'strict': false" in error["message"]
        form["schema"] = GOOD
        assert fake.chat(response_format=json_schema).status_code == 200
        form["schema"] = IMPOSSIBLE
        error = fake.chat(response_format=json_schema).json()["error"]
        assert error["param"] == "response_format.json_schema.schema"


def test_anthropics_format() -> None:
    data = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    form = {"type": "json_schema", "schema": IMPOSSIBLE}
    with fake_server() as fake:
        for more, at in (({"output_format": form}, "output_format"), ({"output_config": {"format": form}}, "output_c")):
            answer = fake.post("/v1/messages", {**data, **more})
            assert answer.status_code == 400 and f"'{at}" in answer.json()["error"]["message"]


def test_a_schema_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_known", {})
    monkeypatch.setattr(schemas, "_KEPT", 3)
    seen: list[str] = []

    def look(*numbers: int) -> int:
        seen.clear()
        given = [schemas.Given(f"tools[{i}]", {"title": str(i)}) for i in numbers]
        schemas.check_schemas(lambda text: seen.append(text) or "", given)  # type: ignore[func-returns-value]
        return len(seen)

    assert look(0, 1, 2, 0, 1) == 3
    assert look(0, 1, 2) == 0
    assert look(3) == 1
    assert look(3, 0) == 1  # no more than are kept


@pytest.mark.parametrize(("way", "at"), WAYS)
def test_properties_without_end(way: Any, at: str) -> None:
    with fake_server() as fake:
        for parameters, says in ((WIDE, "more than 500 properties"), (MANY, "more than 5,000 properties")):
            error = way(fake, parameters).json()["error"]
            assert at in error["message"] and says in error["message"]
        fewer = {**WIDE, "properties": {key: {} for key in list(WIDE["properties"])[1:]}}
        assert way(fake, fewer).status_code == 200


def tool(name: str, item: Any, at: str = "$defs") -> dict[str, Any]:
    """A function that takes items."""
    parameters = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": f"#/{at}/Item"}},
            "rest": {"default": {"$ref": "x"}},
            "default": {"$ref": f"#/{at}/Item"},
        },
        at: {"Item": item, "Other": {"type": "object", "properties": {"of": {"$ref": f"#/{at}/Item/properties/a"}}}},
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ITEMS = ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "object", "properties": {"a": {}}})


@pytest.mark.parametrize("at", ["$defs", "definitions"])
def test_definitions_of_one_name_are_told_apart(at: str) -> None:
    with fake_server() as fake:
        same = [tool("one", ITEMS[0], at), tool("two", ITEMS[0], at)]
        fake.chat(tools=same)
        assert [dict(t) for t in fake.options.tools] == [
            {**t, "function": {**t["function"], "description": ""}} for t in same
        ]
        fake.chat(tools=[tool("one", ITEMS[0]), tool("two", ITEMS[1], at)])
        first, second = (t["function"]["parameters"] for t in fake.options.tools)
        assert first == tool("one", ITEMS[0])["function"]["parameters"]
        assert second[at]["Item_2"] == ITEMS[1] and second[at].keys() == {"Item_2", "Other_2"}
        assert second["properties"]["items"]["items"] == {"$ref": f"#/{at}/Item_2"}
        assert second["properties"]["default"] == {"$ref": f"#/{at}/Item_2"}
        assert second["properties"]["rest"] == {"default": {"$ref": "x"}}
        assert second[at]["Other_2"]["properties"]["of"] == {"$ref": f"#/{at}/Item_2/properties/a"}


def test_a_call_that_the_template_cannot_be_held_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server() as fake:
        tools = [{"type": "function", "function": {"name": "good", "parameters": GOOD}}]
        named = {"type": "function", "function": {"name": "good"}}
        assert all(fake.chat(tools=tools, tool_choice=choice).status_code == 200 for choice in ("required", named))
        render = fake.templates.render
        monkeypatch.setattr(fake.templates, "render", lambda *args: replace(render(*args), grammar=None))
        for choice in ("required", named):
            error = fake.chat(tools=tools, tool_choice=choice).json()["error"]
            assert error["param"] == "tool_choice" and "cannot be kept" in error["message"]
        assert fake.chat(tools=tools, tool_choice="auto").status_code == 200
