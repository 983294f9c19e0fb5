"""The page at /: files of `page`, as they are. It loads nothing from elsewhere, and runs no script but its own."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response

_FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # what a model says cannot become markup, not even by mistake
)
_HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def _files() -> dict[str, Path]:
    """Where each is found."""
    return {
        "/" if path.name == "index.html" else f"/page/{path.name}": path
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _TYPES
    }


def paths() -> frozenset[str]:
    """What a browser may load without a key: there is nothing of anybody in it."""
    return frozenset(_files())


def add_page(app: FastAPI) -> None:
    """The routes."""

    async def page(request: Request) -> Response:
        path = _files()[request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"]
        data = path.read_bytes()
        headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=_TYPES[path.suffix], headers=headers)

    for path in _files():
        app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
