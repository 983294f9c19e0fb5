"""A model that is named and not here: fetched if somebody at a terminal agrees, or if --pull was given."""

from __future__ import annotations

import shlex

from pagedrun import hub
from pagedrun.catalog import load_catalog
from pagedrun.cli import console
from pagedrun.cli.models import fetching
from pagedrun.errors import ModelNotFoundError


def find_or_pull(name: str | None, *, pull: bool) -> hub.LocatedModel:
    """The file behind what the user typed, fetched first where need be and allowed.

    Raises ModelNotFoundError with how to get it where nobody can be asked, or the answer is no; and what fetching
    raises.
    """
    try:
        return hub.locate(name)
    except ModelNotFoundError as e:
        name = name or load_catalog().default
        if not _can_be_pulled(name):
            raise
        if not pull and not console.can_ask():
            how = e.hint if "pagedrun " in e.hint else f"{e.hint}; get it with: pagedrun pull {shlex.quote(name)}"
            raise ModelNotFoundError(e.message, hint=f"{how} (or add --pull)") from e
        absent = e
    pullable = fetching.resolve(name)
    if not fetching.here(pullable):  # the same content may have come under another revision
        fetching.show(pullable)
        if not pull and not console.confirm("Download?", default=True):
            raise absent
        fetching.bring(pullable)
    return hub.locate(name if pullable.url else pullable.name)


def _can_be_pulled(name: str) -> bool:
    """Whether it names something to fetch, not a file, nor a name that nobody knows."""
    from pagedrun.hub.reference import HubReference, NameReference, UrlReference, parse

    reference = parse(name)
    if isinstance(reference, NameReference):
        return load_catalog().get(reference.name) is not None
    return isinstance(reference, (HubReference, UrlReference))
