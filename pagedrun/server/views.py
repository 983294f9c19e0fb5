"""The routes of what is no answer: tokens and templates, models and their loading, health, figures, a look inside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from pagedrun.server import listing, model_infos, tools
from pagedrun.server.chat_fields import REFUSED, ChatRequest
from pagedrun.server.fields import validated
from pagedrun.server.http import asked_of, unless_gone
from pagedrun.server.models import Models
from pagedrun.server.routes import add_get, add_post
from pagedrun.server.serving import Loaded

M = TypeVar("M", bound=BaseModel)


def add_views(app: FastAPI, models: Models) -> None:
    """The routes."""
    _add_tools(app, models)
    _add_looks(app, models)
    _add_models(app, models)


def _add_tools(app: FastAPI, models: Models) -> None:
    def add(
        path: str,
        work: Callable[[Models, M], Awaitable[dict[str, Any]]],
        kind: type[M],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        async def run(request: Request) -> Response:
            return JSONResponse(await work(models, await asked_of(models, request, kind, refused)))

        run.__doc__ = work.__doc__
        run.__name__ = work.__name__
        add_post(app, path, run, kind)

    add("/tokenize", tools.tokenize, tools.TokenizeRequest)
    add("/detokenize", tools.detokenize, tools.DetokenizeRequest)
    add("/apply-template", tools.apply_template, ChatRequest, REFUSED)


def _add_looks(app: FastAPI, models: Models) -> None:
    def add(path: str, look: Callable[[Models], dict[str, Any]]) -> None:
        async def run() -> Response:
            return JSONResponse(look(models))

        run.__name__ = look.__name__
        add_get(app, path, run, look.__doc__ or "")

    def add_of_one(path: str, look: Callable[[Loaded], dict[str, Any]]) -> None:
        async def run(model: str | None = None) -> Response:
            return JSONResponse(look(models.peek(model)))

        run.__name__ = look.__name__
        add_get(app, path, run, look.__doc__ or "")

    async def memory(model: str | None = None) -> Response:
        return JSONResponse(await tools.memory(models.peek(model)))

    async def metrics() -> Response:
        return Response(models.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    add("/health", tools.health)
    add("/ready", tools.ready)
    add_of_one("/v1/pagedrun/properties", tools.properties)
    add_of_one("/v1/pagedrun/plan", tools.plan)
    add_of_one("/v1/pagedrun/stats", tools.statistics)
    add_get(app, "/v1/pagedrun/memory", memory, tools.memory.__doc__ or "")
    add_get(app, "/metrics", metrics, "Figures for Prometheus.")


def _add_models(app: FastAPI, models: Models) -> None:
    async def all_models(request: Request) -> Response:
        found = await listing.listed(models)
        if "anthropic-version" in request.headers:
            known = {k: v for k, v in request.query_params.items() if k in model_infos.ListQuery.model_fields}
            found = model_infos.page_of(found, validated(model_infos.ListQuery, known))
        return JSONResponse(found)

    async def one_model(model_id: str, request: Request) -> Response:
        found = await listing.one(models, model_id)
        return JSONResponse(model_infos.info_of(found) if "anthropic-version" in request.headers else found)

    async def move(request: Request, work: Callable[[Models, str | None], Awaitable[dict[str, Any]]]) -> Response:
        asked = await asked_of(models, request, listing.ModelRequest)
        return JSONResponse(await unless_gone(request.receive, work(models, asked.model)))

    async def load_model(request: Request) -> Response:
        """Load a model before somebody asks for it."""
        return await move(request, listing.load)

    async def unload_model(request: Request) -> Response:
        """Save a model's conversations and give its memory back."""
        return await move(request, listing.unload)

    add_get(app, "/v1/models", all_models, "All names that requests may use.")
    add_post(app, "/v1/pagedrun/models/load", load_model, listing.ModelRequest)
    add_post(app, "/v1/pagedrun/models/unload", unload_model, listing.ModelRequest)
    add_get(app, "/v1/models/{model_id:path}", one_model, "One of the models.")
