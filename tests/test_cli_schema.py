"""JSON schemas on the command line: refused when they are none, and held against the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedrun.chat.enforced import first_unenforced
from pagedrun.cli.schema import check_answer, read_schema
from pagedrun.errors import GrammarError, PagedrunError
from tests.cli_fakes import Complete, Fake, folders

SCHEMA = '{"type": "object", "properties": {"age": {"type": "number", "maximum": 150}}}'


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary) -> Complete:
    return Complete(folders(tmp_path, monkeypatch), monkeypatch, capfdbinary)


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_an_answer_that_does_not_follow_the_schema(complete, raw: list[str]) -> None:
    says = '{"age": 200}'
    for options, shown in (([], says), (["--no-stream"], ""), (["--json"], ""), (["-n", str(len(says))], says)):
        ran = complete(Fake(says=says), "hi", "--json-schema", SCHEMA, *raw, *options)
        assert (ran.code, ran.out) == (1, shown)
        told, hint = ran.err.splitlines()
        assert told.startswith("error: the answer does not follow the schema: $.age: maximum: 200 is greater than")
        assert "cannot enforce 'maximum'" in hint
    assert first_unenforced(json.loads(SCHEMA)) == ("maximum", "properties.age")  # as a server says


def test_an_answer_that_follows_it(complete) -> None:
    for options in ([], ["--no-stream"]):
        ran = complete(Fake(says='{"age": 20}'), "hi", "--json-schema", SCHEMA, *options)
        assert (ran.code, ran.out, ran.err) == (0, '{"age": 20}', "")
    ran = complete(Fake(says='{"age": 20}'), "hi", "--json-schema", SCHEMA, "--json")
    assert (ran.code, json.loads(ran.out)["text"]) == (0, '{"age": 20}')


def test_half_an_answer_is_kept_back_without_streaming(complete) -> None:
    ran = complete(Fake(says='{"age": 20}'), "hi", "--json-schema", SCHEMA, "--stop", ":", "--no-stream")
    assert (ran.code, ran.out) == (1, "")
    assert "not complete JSON" in ran.err


@pytest.mark.parametrize("text", ["true", " false ", '{"enum": ["' + "x" * 5000 + '"]}'])
def test_what_is_json_and_no_file_is_the_schema_itself(complete, text: str) -> None:
    fake = Fake(says="{")  # and nothing to hold against the schema
    assert complete(fake, "hi", "--json-schema", text).code == 1
    assert fake.request.grammar is not None and fake.request.grammar.text == f"schema {text}"


def test_a_file_that_is_there_goes_first(complete, tmp_path: Path) -> None:
    (tmp_path / "true").write_text(SCHEMA)
    (tmp_path / "[s].json").write_text(SCHEMA)
    for name in ("true", "[s].json"):
        assert read_schema(name) == SCHEMA


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"type": "wat"}', "not valid: $.type"),
        ('{"$schema": "http://json-schema.org/draft-07/schema#", "minLength": "x"}', "not valid: $.minLength"),
        ('{"type": "object", "required": true}', "not valid: $.required"),
        ('{"type": "string", "pattern": "("}', "not valid: $.pattern"),
        ("[]", "not valid: $: []"),
        ("3", "not valid: $: 3"),
        ("null", "not valid: $: None"),
        ('{"items": ' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
        ('{"items": ' * 400 + "{}" + "}" * 400, "nested too deeply"),
    ],
    ids=["type", "draft", "required", "pattern", "list", "number", "null", "very deep", "deep"],
)
def test_what_is_no_schema_is_refused_before_anything_is_loaded(complete, schema: str, told: str) -> None:
    fake = Fake()
    ran = complete(fake, "hi", "--json-schema", schema)
    assert (ran.code, ran.out, fake.loads) == (1, "", [])
    assert told in ran.err
    assert len(ran.err.splitlines()) == 2


@pytest.mark.parametrize("option", [["--json-schema", SCHEMA], ["--grammar", "g.gbnf"]])
def test_no_ignore_eos_with_a_grammar(complete, tmp_path: Path, option: list[str]) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "x"')
    fake = Fake()
    ran = complete(fake, "hi", "--ignore-eos", *option)
    assert (ran.code, fake.loads) == (1, [])
    assert "ignore_eos cannot be combined" in ran.err and "hint:" in ran.err


def test_schemas_of_older_drafts() -> None:
    tuple_of_7 = '{"items": [{"type": "integer"}, {"const": "a"}]}'
    assert read_schema(tuple_of_7) == tuple_of_7
    check_answer(tuple_of_7, '[1, "a"]')
    with pytest.raises(PagedrunError, match=r"\$\[1\]: const"):
        check_answer(tuple_of_7, '[1, "b"]')
    below_5 = '{"type": "integer", "maximum": 5, "exclusiveMaximum": true}'
    assert read_schema(below_5) == below_5
    with pytest.raises(PagedrunError, match="maximum"):
        check_answer(below_5, "5")


def test_a_schema_is_named_by_its_draft() -> None:
    draft = '{"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}'
    with pytest.raises(GrammarError, match="items"):
        read_schema(draft)


@pytest.mark.parametrize("schema", ['{"$ref": "http://localhost:9/x"}', '{"$ref": "#"}'])
def test_what_cannot_be_checked_is_said(schema: str) -> None:
    with pytest.raises(PagedrunError, match="could not be checked"):
        check_answer(schema, '"text"')


def test_long_messages_are_cut() -> None:
    with pytest.raises(PagedrunError) as refused:
        check_answer('{"type": "object"}', json.dumps("x" * 10_000))
    assert len(refused.value.message) < 400
