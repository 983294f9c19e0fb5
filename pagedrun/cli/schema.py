"""JSON schemas given with --json-schema: read, checked, and held against the answer.

The grammar that llama.cpp makes of a schema leaves out what it cannot express (many patterns, bounds of numbers,
minProperties, multipleOf, ...), so that an answer may follow the grammar and not the schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagedrun.cli.options import read_option_file
from pagedrun.errors import GrammarError, PagedrunError, UsageError
from pagedrun.paths import expanded

_TOO_DEEP = "the JSON schema is nested too deeply"
_TOO_DEEP_HINT = "1,000 nested brackets are the most; move parts of it to $defs"


def read_schema(value: str | None) -> str | None:
    """The text of the schema: in a file, where one is there, else given as it is.

    Raises UsageError when it is not JSON, GrammarError when it is not a JSON schema.
    """
    if value is None:
        return None
    if not value.strip():
        raise UsageError("--json-schema needs a file or a schema")
    inline = not _exists(value) and (value.lstrip()[0] in '{["' or is_json(value))
    text = value if inline else read_option_file(Path(value), "--json-schema")
    where = "--json-schema" if inline else f"--json-schema {value}"
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise UsageError(f"{where} is not JSON: {e}") from e
    except RecursionError:
        raise GrammarError(_TOO_DEEP, hint=_TOO_DEEP_HINT) from None
    _validator(schema)
    return text


def _exists(name: str) -> bool:
    try:
        return expanded(name).exists()
    except (OSError, ValueError):  # too long or not fit for a path, as a schema is
        return False


def is_json(text: str) -> bool:
    """Whether a text is JSON, of any kind."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_answer(schema: str, answer: str) -> None:
    """Raise PagedrunError, which names path and keyword, when JSON does not follow the schema."""
    import jsonschema
    from referencing.exceptions import Unresolvable

    try:
        error = jsonschema.exceptions.best_match(_validator(json.loads(schema)).iter_errors(json.loads(answer)))
    except (Unresolvable, RecursionError) as e:
        what = _shortened(str(e).split("\n")[0])
        raise PagedrunError(
            f"the answer could not be checked against the schema: {what}", hint="simplify the schema"
        ) from e
    if error is not None:
        raise PagedrunError(
            f"the answer does not follow the schema: {error.json_path}: {error.validator}: {_shortened(error.message)}",
            hint=f"the grammar cannot enforce {error.validator!r} here; ask for it in the prompt, or try again",
        )


def _validator(schema: Any) -> Any:
    """A validator of the draft that $schema names, else of the newest under which it is a schema.

    It fetches nothing: a $ref to elsewhere is not resolved. Raises GrammarError.
    """
    import jsonschema
    from referencing.jsonschema import EMPTY_REGISTRY

    named = jsonschema.validators.validator_for(schema, default=None) if isinstance(schema, dict) else None
    newest = (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
    refused = None
    for draft in newest if named is None else (named,):
        try:
            draft.check_schema(schema)
        except jsonschema.SchemaError as e:
            refused = refused or e
        except RecursionError:
            raise GrammarError(_TOO_DEEP, hint=_TOO_DEEP_HINT) from None
        else:
            return draft(schema, registry=EMPTY_REGISTRY)
    assert refused is not None
    raise GrammarError(
        f"the JSON schema is not valid: {refused.json_path}: {_shortened(refused.message)}",
        hint="json-schema.org describes the keywords",
    ) from None


def _shortened(text: str, width: int = 200) -> str:
    return text if len(text) <= width else f"{text[: width // 2]} ... {text[-width // 2 :]}"
