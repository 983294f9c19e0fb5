"""The OpenAPI description of bodies and errors, and /docs: a page without scripts or anything from elsewhere."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from pagedrun.server.guard import OPEN

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
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": ["string", "null"]},
        },
    },
}

#: What each status means, unless a route says it otherwise.
_MEANS = {
    400: "The request makes no sense, or asks for what nobody here can honour; param names the field",
    401: "A key is needed (--api-key), and none was sent that the server knows",
    403: "Pages of this origin (--cors), or requests under this host name (--allowed-host), are not answered",
    404: "There is no such model",
    413: "The body is larger than --max-body",
    429: "The queue is full: see Retry-After",
    500: "It failed here: the message says why, or the server's log",
    503: "There is no memory for the model, or the server is stopping: see Retry-After",
}
_BODY = (400, 413)
_LOADS = (404, 429, 500, 503)  # what needs a model, which may have to be loaded first
_NOT_LOADED = {404: "There is no such model (model_not_found), or it is not loaded (model_not_loaded)"}
_NO_RESPONSE = {404: "There is no such response, or it was forgotten"}
_SESSION = {
    403: "Only the server's own user may ask (owner_only)",
    404: "There is no such model or session, or the model has no pages (no_keeper)",
    409: "Another process has the session (session_in_use)",
}
#: Of these paths, what there is beside `_BODY` and `_LOADS` of every POST; None: just as usual.
_MORE: dict[str, dict[int, str | None]] = {
    "/ready": {503: "It is stopping, or an engine has stopped"},
    "/v1/models/{model_id}": {404: None},
    "/v1/responses/{response_id}": {**_NO_RESPONSE, 500: "DELETE: the file cannot be removed"},
    "/v1/responses/{response_id}/input_items": {400: None, **_NO_RESPONSE},
    "/v1/pagedrun/engine": {400: None, **dict.fromkeys(_LOADS)},
    "/v1/pagedrun/generate": {409: "The model is loaded otherwise than the request says (loaded_otherwise)"},
    "/v1/pagedrun/memory": {**_NOT_LOADED},
    "/v1/pagedrun/models/unload": {409: "Answers are under way (model_in_use)"},
    "/v1/pagedrun/plan": {404: f"{_NOT_LOADED[404]}, or llama.cpp placed it by itself (no_plan)"},
    "/v1/pagedrun/properties": {**_NOT_LOADED},
    "/v1/pagedrun/sessions/save": {**_SESSION},
    "/v1/pagedrun/sessions/use": {**_SESSION},
    "/v1/pagedrun/stats": {**_NOT_LOADED},
}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """What a route says of its body."""
    schema = model.model_json_schema(ref_template=_REF)
    SCHEMAS.update(schema.pop("$defs", {}))
    SCHEMAS[model.__name__] = schema
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The description of all routes, with their errors."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            operation["responses"] = {"200": operation["responses"]["200"], **_errors(method, path)}
    found["components"] = {"schemas": SCHEMAS}
    return found


def _errors(method: str, path: str) -> dict[str, Any]:
    more = _MORE.get(path, {})
    statuses = {403, *more} if path in OPEN else {401, 403, *more}
    if method == "post":
        statuses |= {*_BODY, *(_LOADS if path != "/v1/pagedrun/cancel" else ())}
    shape = _REF.format(model="AnthropicError" if path.startswith("/v1/messages") else "Error")
    content = {"application/json": {"schema": {"$ref": shape}}}
    return {
        str(status): {"description": more.get(status) or _MEANS[status], "content": content}
        for status in sorted(statuses)
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
    means = "".join(
        f"<tr><td><code>{status}</code><td>{html.escape(answer['description'])}</tr>"
        for status, answer in operation["responses"].items()
        if status != "200"
    )
    head = f"<h2><code>{html.escape(title)}</code></h2><p>{text}</p>"
    head += f"<details><summary>Errors</summary><table>{means}</table></details>"
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
