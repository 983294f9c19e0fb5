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


def stray_result(messages: Sequence[Message]) -> int | None:
    """Which message is the result of a call that nobody made, where the message with the calls is there.

    A result without any calls before it may be what a client has left of a longer chat. Calls may have no ids at all.
    """
    ids: set[str] = set()
    for number, message in enumerate(messages):
        ids |= {call.id for call in message.tool_calls}
        if message.role != "tool" or not ids or "" in ids:
            continue
        if _answers_calls(messages, number) and message.tool_call_id not in ids:
            return number
    return None


def check_results(messages: Sequence[Message], param: str) -> None:
    """Raise ApiError for such a message. {} in `param` is its number."""
    number = stray_result(messages)
    if number is not None:
        at = param.format(number)
        given = messages[number].tool_call_id[:100]
        raise invalid(f"'{at}': no call before it has the id {given!r}", at)


def _answers_calls(messages: Sequence[Message], number: int) -> bool:
    """Whether the calls that a result is for are right before it, with only other results in between."""
    while messages[number].role == "tool" and number:
        number -= 1
    return bool(messages[number].tool_calls)
