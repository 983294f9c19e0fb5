"""Responses that later ones may go on from, by their ids: the newest, in memory, until the server stops."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedrun.chat import Message
from pagedrun.server.errors import ApiError

_MOST = 1000
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A response, and the conversation that it ends, without instructions: those are of one request."""

    response: Mapping[str, Any]
    messages: tuple[Message, ...]

    @property
    def n_bytes(self) -> int:
        """What it takes, roughly. Conversations that go on share what they have in common."""
        return sum(len(m.content) + len(m.reasoning) for m in self.messages[-2:]) + 2048


class Responses:
    """Not more than fit; the oldest goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._n_bytes = 0

    def add(self, response: Mapping[str, Any], messages: tuple[Message, ...]) -> None:
        """Keep one."""
        kept = self._kept[response["id"]] = Kept(response, messages)
        self._n_bytes += kept.n_bytes
        while len(self._kept) > 1 and (len(self._kept) > _MOST or self._n_bytes > _MOST_BYTES):
            _, oldest = self._kept.popitem(last=False)
            self._n_bytes -= oldest.n_bytes

    def get(self, response_id: str, param: str | None = None) -> Kept:
        """One of them. Raises ApiError."""
        try:
            return self._kept[response_id]
        except KeyError:
            raise ApiError(
                404 if param is None else 400,
                f"there is no response '{response_id[:100]}' here, or it was forgotten",
                param=param,
                code="previous_response_not_found" if param else "not_found",
            ) from None

    def remove(self, response_id: str) -> None:
        """Forget one. Raises ApiError."""
        self._n_bytes -= self.get(response_id).n_bytes
        del self._kept[response_id]
