"""What options of `pagedrun serve` cannot be. option: what to call one in an error. All raise UsageError."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagedrun.config import n_bytes
from pagedrun.errors import UsageError


def check_origins(origins: Sequence[str], option: str) -> None:
    """Those of web pages that may ask."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise UsageError(f"{option} {origin!r} is not an origin", hint="for example http://localhost:3000, or *")


def check_names(names: Sequence[str], option: str) -> None:
    """What clients may call a model."""
    for name in names:
        if not name.strip() or not name.isprintable():
            raise UsageError(f"{option} {name!r} is no name", hint="for example gpt-4")


def check_hosts(hosts: Sequence[str], option: str) -> None:
    """Names in a Host header, without their port."""
    for host in hosts:
        if not re.fullmatch(r"[^\s/:\[\]]+", host):
            raise UsageError(f"{option} {host!r} is not the name of a machine", hint="for example chat.example.org")


def largest_body(text: str, option: str) -> int:
    """Bytes of the largest request."""
    found = n_bytes(text, option)
    if not found:
        raise UsageError(f"{option} must be 1 or more, not {text}", hint="for example 32MiB")
    return found
