"""Tools and their results, whatever API they came through: what cannot be meant is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagedrun.chat import Message
from pagedrun.server.errors import invalid


def check_names(names: Iterable[str], param: str = "tools") -> None:
    """Raise ApiError where two tools have one name: a call of it would be of either."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid(f"'{param}' has two tools called {name!r}", param)
        seen.add(name)


def check_results(messages: Sequence[Message], param: str) -> None:
    """Raise ApiError for the result of a call that nobody made. {} in `param` is the number of its message."""
    number = _stray_result(messages)
    if number is not None:
        at = param.format(number)
        given = messages[number].tool_call_id[:100]
        raise invalid(f"'{at}': no call before it has the id {given!r}", at)


def _stray_result(messages: Sequence[Message]) -> int | None:
    """Which message is the result of a call that nobody made, where the message with the calls is there.

    A result without any calls before it may be what a client has left of a longer chat. Calls may have no ids at all.
    """
    ids: set[str] = set()
    called = False
    for number, message in enumerate(messages):
        if message.role != "tool":
            called = bool(message.tool_calls)
            ids |= {call.id for call in message.tool_calls}
        elif called and "" not in ids and message.tool_call_id not in ids:
            return number
    return None
