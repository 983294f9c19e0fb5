"""A request's body: bytes within a limit, JSON that is text, neither too deep nor with numbers that JSON has not."""

from __future__ import annotations

import asyncio
import json
import math
from concurrent.futures import Executor
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from pagedrun.server.errors import ApiError, invalid
from pagedrun.units import size

MAX_DEPTH = 200  # brackets within each other; schemas of people have a dozen
_LARGE = 256 << 10  # bytes that take longer to parse than others should wait for


class Gone(Exception):  # noqa: N818 - nothing went wrong
    """The client left; nobody will read an answer."""


async def read_json(request: Request, limit: int, executor: Executor) -> dict[str, Any]:
    """The object that was sent, of at most `limit` bytes. Raises ApiError, and Gone when the client left."""
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise invalid(f"the body is encoded ({encoding[:50]}), which is not supported", code="unsupported_encoding")
    data = await _read(request, limit)
    if len(data) < _LARGE:
        return parse(data)
    return await asyncio.get_running_loop().run_in_executor(executor, parse, data)


async def _read(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {size(limit)}", code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    parts: list[bytes] = []
    n_bytes = 0
    try:
        async for part in request.stream():
            n_bytes += len(part)
            if n_bytes > limit:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise Gone from None
    return b"".join(parts)


def parse(data: bytes) -> dict[str, Any]:
    """The object in a body. Raises ApiError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise invalid(f"the body is not UTF-8 text: byte {e.start + 1}", code="invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as e:
        raise invalid(f"the body is not valid JSON: {e}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    _check(value, surrogates="\\ud" in text or "\\uD" in text)
    return value


def _check(value: Any, *, surrogates: bool) -> None:
    """Walk through all of it, level by level."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
                if surrogates:
                    below += one
            elif isinstance(one, list):
                below += one
            elif isinstance(one, float) and not math.isfinite(one):
                raise invalid("the body has a number that is too large", code="invalid_json")
            elif surrogates and isinstance(one, str) and not _is_text(one):
                raise invalid("the body has half of a surrogate pair (\\ud800 to \\udfff)", code="invalid_json")
        if not below:
            return
        level = below
    raise _too_deep()


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep() -> ApiError:
    return invalid(f"the body has more than {MAX_DEPTH} brackets within each other", code="invalid_json")


def _no_number(text: str) -> NoReturn:
    raise invalid(f"the body is not valid JSON: {text} is no number of JSON", code="invalid_json")
