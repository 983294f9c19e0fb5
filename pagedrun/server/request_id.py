"""What a request is called in its response, in an error's body and in the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers

#: The request's that is being answered; "": none is.
current: ContextVar[str] = ContextVar("request_id", default="")

_GIVEN = re.compile(r"[\x20-\x7e]{1,128}")


def id_of(headers: Headers) -> str:
    """The client's own, where it is printable and not too long; otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _GIVEN.fullmatch(given) else f"req_{secrets.token_hex(16)}"
