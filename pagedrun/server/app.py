"""The routes, and what stands before them. Every answer that is no answer has OpenAI's error shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from pagedrun import __version__
from pagedrun.errors import PagedrunError
from pagedrun.server import chat, completions, messages, messages_fields, responses_fields, tools
from pagedrun.server.body import Gone, read_json
from pagedrun.server.chat_fields import REFUSED, ChatRequest
from pagedrun.server.completions import CompletionPresenter, CompletionRequest
from pagedrun.server.docs import SCHEMAS, page, request_body
from pagedrun.server.errors import ApiError, of_ours
from pagedrun.server.fields import validated
from pagedrun.server.guard import Guard, body_for
from pagedrun.server.http import Answering, gone
from pagedrun.server.messages_fields import CountRequest, MessagesRequest
from pagedrun.server.responses import ResponsesPresenter
from pagedrun.server.responses_fields import ResponsesRequest
from pagedrun.server.responses_items import ListQuery, items_of, page_of
from pagedrun.server.serving import Serving
from pagedrun.server.web import add_page

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(serving: Serving) -> FastAPI:
    """The application over a loaded model."""
    app = FastAPI(title="pagedrun", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    _add_answers(app, serving)
    _add_messages(app, serving)
    _add_responses(app, serving)
    _add_tools(app, serving)
    _add_views(app, serving)
    _add_docs(app)
    add_page(app)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(PagedrunError, _our_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Gone, gone)
    paths = frozenset(path for route in app.routes if (path := getattr(route, "path", None)))
    app.add_middleware(Guard, serving=serving, paths=paths)
    if serving.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(serving.settings.cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


def _add_answers(app: FastAPI, serving: Serving) -> None:
    async def chat_completions(request: Request) -> Response:
        """Answer a chat, as a whole or as a stream of events."""
        asked = validated(ChatRequest, await read_json(request, serving.settings.max_body, serving.prepare), REFUSED)
        serving.check_model(asked.model)
        stream = asked.streams()
        presenter = chat.ChatPresenter(serving, wants_usage=asked.wants_usage(), wants_logprobs=bool(asked.logprobs))
        return Answering(serving, partial(chat.task_of, serving, asked), presenter, stream=stream)

    async def complete(request: Request) -> Response:
        """Go on from a prompt, without a chat template."""
        data = await read_json(request, serving.settings.max_body, serving.prepare)
        asked = validated(CompletionRequest, data, completions.REFUSED)
        serving.check_model(asked.model)
        stream = asked.streams()
        presenter = CompletionPresenter(
            serving, wants_usage=asked.wants_usage(), wants_logprobs=asked.logprobs is not None
        )
        return Answering(serving, partial(completions.task_of, serving, asked), presenter, stream=stream)

    _post(app, "/v1/chat/completions", chat_completions, ChatRequest)
    _post(app, "/v1/completions", complete, CompletionRequest)


def _add_messages(app: FastAPI, serving: Serving) -> None:
    async def create_message(request: Request) -> Response:
        """Answer a chat, as Anthropic's API does."""
        data = await read_json(request, serving.settings.max_body, serving.prepare)
        asked = validated(MessagesRequest, data, messages_fields.REFUSED)
        serving.check_model(asked.model)
        presenter = messages.MessagesPresenter(serving, tuple(asked.stop_sequences or ()))
        return Answering(serving, partial(messages.task_of, serving, asked), presenter, stream=bool(asked.stream))

    async def count_tokens(request: Request) -> Response:
        """Count the tokens of a chat."""
        data = await read_json(request, serving.settings.max_body, serving.prepare)
        asked = validated(CountRequest, data, messages_fields.REFUSED)
        serving.check_model(asked.model)
        return JSONResponse(await tools.aside(serving, partial(messages.count, serving, asked)))

    _post(app, "/v1/messages", create_message, MessagesRequest)
    _post(app, "/v1/messages/count_tokens", count_tokens, CountRequest)


def _add_responses(app: FastAPI, serving: Serving) -> None:
    kept = serving.responses

    async def create_response(request: Request) -> Response:
        """Answer a chat as items; `previous_response_id` goes on from an earlier one."""
        data = await read_json(request, serving.settings.max_body, serving.prepare)
        asked = validated(ResponsesRequest, data, responses_fields.REFUSED)
        serving.check_model(asked.model)
        presenter = ResponsesPresenter(serving, asked, data, kept)
        return Answering(serving, presenter.task, presenter, stream=bool(asked.stream))

    def get_response(response_id: str) -> Response:  # these read files: not in the event loop
        return JSONResponse(kept.get(response_id).response)

    def delete_response(response_id: str) -> Response:
        kept.remove(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    def input_items(response_id: str, request: Request) -> Response:
        """The conversation that a response answers, the newest items first: limit, order, after."""
        query = validated(ListQuery, dict(request.query_params))
        return JSONResponse(page_of(items_of(response_id, kept.get(response_id).messages[:-1]), query))

    _post(app, "/v1/responses", create_response, ResponsesRequest)
    one = "/v1/responses/{response_id}"
    _get(app, one, get_response, "A response that is still kept.")
    _get(app, f"{one}/input_items", input_items, input_items.__doc__ or "")
    app.add_api_route(one, delete_response, methods=["DELETE"], description="Forget one.", response_model=None)


def _add_tools(app: FastAPI, serving: Serving) -> None:
    def endpoint(work: Callable[[Serving, dict[str, Any]], Awaitable[Response]]) -> Endpoint:
        async def run(request: Request) -> Response:
            data = await read_json(request, serving.settings.max_body, serving.prepare)
            return await work(serving, data)

        run.__doc__ = work.__doc__
        run.__name__ = work.__name__
        return run

    _post(app, "/tokenize", endpoint(tools.tokenize), tools.TokenizeRequest)
    _post(app, "/detokenize", endpoint(tools.detokenize), tools.DetokenizeRequest)
    _post(app, "/apply-template", endpoint(tools.apply_template), ChatRequest)


def _add_views(app: FastAPI, serving: Serving) -> None:
    views = {
        "/v1/models": tools.models,
        "/health": tools.health,
        "/ready": tools.ready,
        "/v1/pagedrun/properties": tools.properties,
        "/v1/pagedrun/plan": tools.plan,
        "/v1/pagedrun/stats": tools.statistics,
    }
    for path, view in views.items():
        _get(app, path, _view(serving, view), view.__doc__ or "")

    async def memory() -> Response:
        return JSONResponse(await tools.memory(serving))

    async def one_model(model_id: str) -> Response:
        return JSONResponse(tools.model(serving, model_id))

    async def metrics() -> Response:
        return Response(serving.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    _get(app, "/v1/models/{model_id:path}", one_model, "One of the models.")
    _get(app, "/v1/pagedrun/memory", memory, tools.memory.__doc__ or "")
    _get(app, "/metrics", metrics, "Figures for Prometheus.")


def _view(serving: Serving, view: Callable[[Serving], dict[str, Any]]) -> Callable[[], Awaitable[Response]]:
    async def run() -> Response:
        return JSONResponse(view(serving))

    run.__name__ = view.__name__
    return run


def _add_docs(app: FastAPI) -> None:
    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes)
            found.setdefault("components", {}).setdefault("schemas", {}).update(SCHEMAS)
            app.openapi_schema = found
        return app.openapi_schema

    async def openapi() -> Response:
        return JSONResponse(description())

    async def docs() -> Response:
        return HTMLResponse(page(description()))

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _post(app: FastAPI, path: str, endpoint: Endpoint, model: type[Any]) -> None:
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        description=endpoint.__doc__ or "",
        response_model=None,
        openapi_extra=request_body(model),
    )


def _get(app: FastAPI, path: str, endpoint: Callable[..., Response | Awaitable[Response]], description: str) -> None:
    app.add_api_route(path, endpoint, methods=["GET"], description=description, response_model=None)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(body_for(request.url.path, error), error.status, error.headers)


async def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PagedrunError)
    return await _api_error(request, of_ours(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    told = ApiError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}")
    return JSONResponse(body_for(request.url.path, told), told.status, error.headers)
