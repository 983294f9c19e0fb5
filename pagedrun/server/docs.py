"""The OpenAPI description of bodies, and /docs: a page without scripts or anything from elsewhere."""

from __future__ import annotations

import html
import json
from typing import Any

from pydantic import BaseModel

_REF = "#/components/schemas/{model}"

#: What `request_body` referred to; goes into the description's components.
SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
}

_ERROR = {"description": "An error", "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """What a route says of its body, and of its errors."""
    schema = model.model_json_schema(ref_template=_REF)
    SCHEMAS.update(schema.pop("$defs", {}))
    SCHEMAS[model.__name__] = schema
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {
        "requestBody": {"required": True, "content": content},
        "responses": {"4XX": _ERROR, "503": {**_ERROR, "description": "Loading or stopping: see Retry-After"}},
    }


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { overflow: auto; padding: .75rem; border: 1px solid #8886; border-radius: 6px }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884 }
"""


def page(description: dict[str, Any]) -> str:
    """All routes with their fields."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>pagedrun {html.escape(description['info']['version'])}</title><style>{_STYLE}</style>",
        "<h1>pagedrun</h1><p>OpenAI-compatible. The description for programs is at "
        "<a href=/openapi.json>/openapi.json</a>.</p>",
    ]
    schemas = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(f"{method.upper()} {path}", operation, schemas))
    return "\n".join(parts)


def _operation(title: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = html.escape(operation.get("description", ""))
    head = f"<h2><code>{html.escape(title)}</code></h2><p>{text}</p>"
    body = operation.get("requestBody")
    if body is None:
        return head
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = schemas[name]
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code>{' (required)' if field in required else ''}"
        f"<td><code>{html.escape(_kind(found))}</code></tr>"
        for field, found in schema["properties"].items()
    )
    return f"{head}<details><summary>Fields</summary><table>{rows}</table></details>"


def _kind(found: dict[str, Any]) -> str:
    """A field's type in few words."""
    options = [o for o in found.get("anyOf", found.get("oneOf", [found])) if o.get("type") != "null"]
    return " or ".join(_word(option) for option in options)


def _word(option: dict[str, Any]) -> str:
    if "$ref" in option:
        return str(option["$ref"]).rpartition("/")[2]
    if "enum" in option or "const" in option:
        return json.dumps(option.get("enum", [option.get("const")]))
    if "anyOf" in option or "oneOf" in option:
        return _kind(option)
    if option.get("type") == "array":
        return f"list of {_kind(option.get('items', {}))}"
    limits = [f"{sign} {option[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in option]
    return " ".join([str(option.get("type", "any")), *limits])
