"""The routes, and what stands before them. Every answer that is no answer has OpenAI's error shape."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pagedrun import __version__
from pagedrun.errors import PagedrunError
from pagedrun.server import chat, completions, embeddings, messages, messages_fields, responses_fields
from pagedrun.server.body import Gone
from pagedrun.server.chat_fields import REFUSED, ChatRequest
from pagedrun.server.completions import CompletionPresenter, CompletionRequest
from pagedrun.server.direct import CancelRequest, GenerateRequest
from pagedrun.server.docs import describe, page
from pagedrun.server.embeddings import EmbeddingRequest
from pagedrun.server.errors import ApiError, of_ours
from pagedrun.server.fields import validated
from pagedrun.server.guard import Guard, api_path, body_for
from pagedrun.server.http import Answering, Begun, asked_of, body_of, gone, unless_gone
from pagedrun.server.kept import SaveRequest, UseRequest
from pagedrun.server.messages_fields import CountRequest, MessagesRequest
from pagedrun.server.models import Models
from pagedrun.server.own import Own
from pagedrun.server.responses import ResponsesPresenter
from pagedrun.server.responses_fields import ResponsesRequest
from pagedrun.server.responses_items import ListQuery, check_get, items_of, page_of
from pagedrun.server.routes import add_get, add_post
from pagedrun.server.serving import Serving, of_kind
from pagedrun.server.views import add_views
from pagedrun.server.web import add_page


def make_app(models: Models) -> FastAPI:
    """The application over a server's models."""
    app = FastAPI(title="pagedrun", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    _add_answers(app, models)
    _add_embeddings(app, models)
    _add_messages(app, models)
    _add_responses(app, models)
    _add_own(app, Own(models))
    add_views(app, models)
    _add_docs(app)
    add_page(app)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(PagedrunError, _our_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Gone, gone)
    paths = frozenset(path for route in app.routes if (path := getattr(route, "path", None)))
    app.add_middleware(Guard, models=models, paths=paths)
    if models.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(models.settings.cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-ID", "Request-ID"],
        )
    return app


def _add_answers(app: FastAPI, models: Models) -> None:
    async def chat_completions(request: Request) -> Response:
        """Answer a chat, as a whole or as a stream of events."""
        asked = await asked_of(models, request, ChatRequest, REFUSED)
        wants = {"wants_usage": asked.wants_usage(), "wants_logprobs": bool(asked.logprobs)}

        def begin(serving: Serving) -> Begun:
            return partial(chat.task_of, serving, asked), chat.ChatPresenter(serving, **wants)

        return Answering(models, asked.model, begin, stream=asked.streams(), form=chat.form_of(asked))

    async def complete(request: Request) -> Response:
        """Go on from a prompt, without a chat template."""
        asked = await asked_of(models, request, CompletionRequest)
        wants = {"wants_usage": asked.wants_usage(), "wants_logprobs": asked.logprobs is not None}

        def begin(serving: Serving) -> Begun:
            return partial(completions.task_of, serving, asked), CompletionPresenter(serving, **wants)

        form = "response_format" if asked.grammar is None else "grammar"
        return Answering(models, asked.model, begin, stream=asked.streams(), form=form)

    add_post(app, "/v1/chat/completions", chat_completions, ChatRequest)
    add_post(app, "/v1/completions", complete, CompletionRequest)


def _add_embeddings(app: FastAPI, models: Models) -> None:
    async def create_embeddings(request: Request) -> Response:
        """Make a vector of each text."""
        asked = await asked_of(models, request, EmbeddingRequest)
        body = await unless_gone(request.receive, embeddings.answer(models, asked))
        return Response(body, media_type="application/json")

    add_post(app, "/v1/embeddings", create_embeddings, EmbeddingRequest)


def _add_messages(app: FastAPI, models: Models) -> None:
    async def create_message(request: Request) -> Response:
        """Answer a chat, as Anthropic's API does."""
        asked = await asked_of(models, request, MessagesRequest, messages_fields.REFUSED)

        def begin(serving: Serving) -> Begun:
            presenter = messages.MessagesPresenter(serving, tuple(asked.stop_sequences or ()))
            return partial(messages.task_of, serving, asked), presenter

        return Answering(models, asked.model, begin, stream=bool(asked.stream))

    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a chat."""
        asked = await asked_of(models, request, CountRequest, messages_fields.REFUSED)
        serving = of_kind(await models.serving(asked.model), Serving)
        return JSONResponse(await serving.aside(partial(messages.count, serving, asked)))

    add_post(app, "/v1/messages", create_message, MessagesRequest)
    add_post(app, "/v1/messages/count_tokens", count_tokens, CountRequest)


def _add_responses(app: FastAPI, models: Models) -> None:
    kept = models.responses

    async def create_response(request: Request) -> Response:
        """Answer a chat as items; `previous_response_id` goes on from an earlier one."""
        data = await body_of(models, request)
        asked = validated(ResponsesRequest, data, responses_fields.REFUSED)

        def begin(serving: Serving) -> Begun:
            presenter = ResponsesPresenter(serving, asked, data, kept)
            return presenter.task, presenter

        form = None if asked.tools else "text.format"
        return Answering(models, asked.model, begin, stream=bool(asked.stream), form=form)

    def get_response(response_id: str, request: Request) -> Response:  # these read files: not in the event loop
        check_get(request.query_params)
        return JSONResponse(kept.get(response_id).response)

    def delete_response(response_id: str) -> Response:
        kept.remove(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    def input_items(response_id: str, request: Request) -> Response:
        """The conversation that a response answers, the newest items first: limit, order, after."""
        query = validated(ListQuery, dict(request.query_params))
        found = kept.get(response_id)
        return JSONResponse(page_of(items_of(response_id, found.messages[:-1], found.marks), query))

    add_post(app, "/v1/responses", create_response, ResponsesRequest)
    one = "/v1/responses/{response_id}"
    add_get(app, one, get_response, "A response that is still kept.")
    add_get(app, f"{one}/input_items", input_items, input_items.__doc__ or "")
    app.add_api_route(one, delete_response, methods=["DELETE"], description="Forget one.", response_model=None)


def _add_own(app: FastAPI, own: Own) -> None:
    add_get(app, "/v1/pagedrun/engine", own.engine, own.engine.__doc__ or "", head=False)  # it loads the model
    add_post(app, "/v1/pagedrun/generate", own.generate, GenerateRequest)
    add_post(app, "/v1/pagedrun/cancel", own.cancel, CancelRequest)
    add_post(app, "/v1/pagedrun/sessions/use", own.use_session, UseRequest)
    add_post(app, "/v1/pagedrun/sessions/save", own.save_session, SaveRequest)


def _add_docs(app: FastAPI) -> None:
    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app)
        return app.openapi_schema

    async def openapi() -> Response:
        return JSONResponse(description())

    async def docs() -> Response:
        return HTMLResponse(page(description()))

    app.add_api_route("/openapi.json", openapi, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", docs, methods=["GET", "HEAD"], include_in_schema=False)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(body_for(api_path(request.scope), error), error.status, error.headers)


async def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PagedrunError)
    return await _api_error(request, of_ours(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    known = {getattr(route, "path", "") for route in request.app.routes} - {"/", path}
    near = next((one for one in (f"/v1{path}", path.removeprefix("/v1")) if one in known), "")
    more = f" (did you mean {near}?)" if error.status_code == 404 and near else ""
    told = ApiError(error.status_code, f"{request.method} {path[:200]}: {error.detail}{more}")
    headers = error.headers if error.status_code != 405 else {"Allow": ", ".join(_methods(request))}
    return JSONResponse(body_for(path, told), told.status, headers)


def _methods(request: Request) -> list[str]:
    """Those that a path has."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.path_regex.match(request.url.path)]
    return sorted({method for methods in found for method in methods})
