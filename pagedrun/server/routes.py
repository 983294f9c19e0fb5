"""How a route comes into the application, and into its description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from pagedrun.server.docs import request_body

Endpoint = Callable[[Request], Awaitable[Response]]


def add_post(app: FastAPI, path: str, endpoint: Endpoint, model: type[Any]) -> None:
    """One with a body of that model; the endpoint's docstring says what it does."""
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        description=endpoint.__doc__ or "",
        response_model=None,
        openapi_extra=request_body(model),
    )


def add_get(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Response | Awaitable[Response]],
    description: str,
    *,
    head: bool = True,
) -> None:
    """One without a body. head: whether HEAD is answered too, as who asks so does not want anything to be done."""
    app.add_api_route(path, endpoint, methods=["GET"], description=description, response_model=None)
    if head:
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)
