"""Whether a model can do what a request asks of its thinking. What it cannot is refused, never left out silently."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pagedrun.server.errors import unsupported

if TYPE_CHECKING:
    from pagedrun.server.serving import Serving


class Names(NamedTuple):
    """What an API calls the fields: whether the model thinks, with which effort, and for how many tokens."""

    switch: str
    effort: str
    budget: str


#: Those of chat completions.
NAMES = Names("chat_template_kwargs.enable_thinking", "reasoning_effort", "thinking_budget_tokens")


def check_can_think(serving: Serving, names: Names, *, switch: Any, effort: str | None, budget: int | None) -> None:
    """Raise ApiError, which names the field, for a request to think to a model that does not.

    A request not to think asks for what happens anyway.
    """
    if switch is True:
        field, instead = names.switch, "Leave the field out"
    elif effort not in (None, "none"):
        field, instead = names.effort, "Leave the field out"
    elif budget:
        field, instead = names.budget, "Leave the field out, or send 0"
    else:
        return
    if not thinks(serving):
        raise unsupported(
            field, f"is not supported: the model '{serving.name}' does not think before it answers. {instead}."
        )


def thinks(serving: Serving) -> bool:
    """Whether the model thinks before it answers, as far as its template tells."""
    templates = serving.service.templates
    return templates.supports_thinking or "</think>" in templates.source or knows_effort(serving)


def knows_effort(serving: Serving) -> bool:
    """Whether the template has a word for it."""
    return re.search(r"\breasoning_effort\b", serving.service.templates.source) is not None
