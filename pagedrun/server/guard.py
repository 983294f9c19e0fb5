"""What a request has to pass before anything looks at it: host, origin, key; and what is counted after it.

Every response says what the request is called: `x-request-id` for OpenAI's clients, `request-id` for Anthropic's.

Pages of other sites can send requests to loopback from a browser. They are kept out by their Origin, and where a name
of theirs leads here (DNS rebinding) by the Host that they have to give.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagedrun.server import messages, request_id, web
from pagedrun.server.errors import ApiError
from pagedrun.server.models import Models
from pagedrun.server.replies import sse

log = logging.getLogger("pagedrun.server")

#: Where no key is needed: whether it runs, what can be asked, and the page, which asks for a key itself.
OPEN = frozenset({"/health", "/ready", "/docs", "/openapi.json"}) | web.paths()

_NO_KEY = "No API key was sent: this server wants it as 'Authorization: Bearer KEY'."


class Guard:
    """ASGI middleware. paths: those that metrics may name."""

    def __init__(self, app: ASGIApp, models: Models, paths: frozenset[str]) -> None:
        self._app = app
        self._models = models
        self._settings = models.settings
        self._paths = paths
        self._keys = [_digest(key) for key in models.settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 499
        called = request_id.id_of(Headers(scope=scope))
        request_id.current.set(called)
        named = [(name, called.encode()) for name in (b"x-request-id", b"request-id")]

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            await send(message)

        try:
            if (refused := self._refused(scope)) is not None:
                body = body_for(api_path(scope), refused)
                await JSONResponse(body, refused.status, refused.headers)(scope, receive, sending)
            else:
                with self._models.request():
                    await self._app(scope, receive, sending)
        except Exception:
            log.exception("a request failed")
            if status != 499:  # the response has begun: it can only be cut off
                raise
            failed = ApiError(500, "the server failed; its log says more", code="internal_error")
            await JSONResponse(body_for(api_path(scope), failed), failed.status)(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._models.metrics.requests.labels(path, str(status)).inc()
            seconds = time.perf_counter() - began
            log.info("%s %s %d %.3fs %s", scope["method"], path, status, seconds, called)

    def _refused(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = _host(headers.get("host", ""))
        if self._settings.hosts and host not in self._settings.hosts and not is_loopback(host):
            return ApiError(403, f"this server is not called '{host[:100]}' (--allowed-host)", code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin, headers.get("host", "")):
            return ApiError(403, "pages of this origin may not ask here (--cors)", code="origin_not_allowed")
        if self._keys and scope["path"] not in OPEN and scope["method"] != "OPTIONS" and not self._knows_key(headers):
            wanted = {"WWW-Authenticate": "Bearer"}
            said = "Incorrect API key provided." if any(_given(headers)) else _NO_KEY
            return ApiError(401, said, code="invalid_api_key", headers=wanted)
        return None

    def _may_ask(self, origin: str, host: str) -> bool:
        allowed = self._settings.cors
        return "*" in allowed or origin in allowed or origin.partition("://")[2] == host

    def _knows_key(self, headers: Headers) -> bool:
        """Whether a key is one of ours, of two that are sent either. Takes the same time for every wrong one."""
        known = False
        for given in _given(headers):
            digest = _digest(given)
            for key in self._keys:
                known |= hmac.compare_digest(key, digest)
        return known


def api_path(scope: Scope) -> str:
    """The path of a request, or one of Anthropic's API where its clients ask for models."""
    path: str = scope["path"]
    if path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope):
        return f"/v1/messages{path}"
    return path


def body_for(path: str, error: ApiError) -> dict[str, Any]:
    """The error in the shape of the API that a path belongs to."""
    return messages.error_body(error) if path.startswith("/v1/messages") else error.body


def event_for(path: str, error: ApiError) -> bytes:
    """The last event of a stream that has not begun its answer, in the shape of the API that a path belongs to."""
    if path.startswith("/v1/messages"):
        return sse(messages.error_body(error), "error")
    if path.startswith("/v1/responses"):
        told = {"code": error.code or "server_error", "message": error.message, "param": error.param}
        return sse({"type": "error", "sequence_number": 0, **told}, "error")
    return sse(error.body)


def _given(headers: Headers) -> list[str]:
    """The keys that were sent: OpenAI's clients do it in one header, Anthropic's in another, and some in both."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    found = [token.strip()] if scheme.lower() == "bearer" else []
    return [*found, headers["x-api-key"]] if "x-api-key" in headers else found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    """Whether a name or an address, without brackets, is this machine's for itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
