"""Errors as OpenAI's API has them: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pagedrun.errors import (
    ContextLengthError,
    EngineError,
    PagedrunError,
    ParameterError,
    ReloadedError,
    RequestError,
    SessionInUseError,
    SessionNotFoundError,
    UsageError,
)
from pagedrun.sampling import SamplingParams

_SAMPLING = {f.name for f in fields(SamplingParams)}
_KINDS = (
    (SessionNotFoundError, 404, "session_not_found"),
    (SessionInUseError, 409, "session_in_use"),
    (ReloadedError, 409, "loaded_otherwise"),
)
_TYPES = {403: "permission_error", 429: "rate_limit_error"}  # an unknown model or key is an invalid request at OpenAI


class ApiError(Exception):
    """What a client is told. more: further members of the error; headers: of the response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    @property
    def type(self) -> str:
        """OpenAI's name for the kind."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def asked_at(self, path: str) -> ApiError:
        """The same, with the name that a prompt has at this path."""
        if self.code == "context_length_exceeded" and self.param == "messages":
            self.param = _PROMPTS.get(path, self.param)
        return self

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the response."""
        found = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**found, **self.more}}


#: What a prompt is called, by path; "messages" elsewhere.
_PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input"}


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """A request that makes no sense, or asks for what is not there."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str = "is not supported") -> ApiError:
    """A field that would change the answer, and that nobody here can honour."""
    return ApiError(400, f"'{param}' {why}", param=param, code="unsupported_parameter")


def missing(param: str) -> ApiError:
    """A field that has to be there."""
    return invalid(f"missing '{param}'", param, "missing_required_parameter")


def not_ready(message: str) -> ApiError:
    """Loading or stopping; it may be asked again."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": "5"})


def of_ours(error: PagedrunError) -> ApiError:
    """One of our own errors, for a client."""
    message = f"{error.message}. {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else error.message
    if isinstance(error, ContextLengthError):
        size, n_prompt = error.max_seq_len, error.prompt_tokens
        wording = (  # clients look for OpenAI's words
            f"This model's maximum context length is {size} tokens. However, your prompt has {n_prompt} tokens."
            f" {error.hint[:1].upper()}{error.hint[1:]}."
        )
        more = {"n_prompt_tokens": n_prompt, "n_ctx": size}
        return ApiError(400, wording, param="messages", code="context_length_exceeded", more=more)
    if isinstance(error, ParameterError):
        first = error.message.partition(" ")[0]
        return invalid(message, first if first in _SAMPLING else None)
    if isinstance(error, (RequestError, UsageError)):
        return invalid(message)
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return ApiError(status, message, code=code)
    if isinstance(error, EngineError) and "stopped" in error.message:
        return not_ready(message)
    return ApiError(500, message, code="internal_error")
