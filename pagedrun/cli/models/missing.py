"""A model that is named and not here: fetched if somebody at a terminal agrees, or if --pull was given."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pagedrun import hub
from pagedrun.catalog import load_catalog
from pagedrun.cli import console
from pagedrun.cli.models import fetching
from pagedrun.errors import ModelNotFoundError

if TYPE_CHECKING:
    from pagedrun.hub.pullable import Pullable


def find_or_pull(name: str | None, *, pull: bool) -> hub.LocatedModel:
    """The file behind what the user typed, fetched first where need be and allowed.

    Raises ModelNotFoundError with how to get it where nobody can be asked, or the answer is no; and what fetching
    raises.
    """
    try:
        return hub.locate(name)
    except ModelNotFoundError as e:
        absent = e
    name = name or load_catalog().default
    require_consent(name, absent, pull=pull)
    return bring(fetching.resolve(name), name, absent, pull=pull)


def require_consent(name: str, absent: ModelNotFoundError, *, pull: bool) -> None:
    """Raises `absent`, with how to get it, for what cannot be fetched, or where nobody can be asked."""
    if not _can_be_pulled(name):
        raise absent
    if not pull and not console.can_ask():
        how = absent.hint
        how = how if "pagedrun " in how else f"{how}; get it with: pagedrun pull {shlex.quote(name)}"
        raise ModelNotFoundError(absent.message, hint=f"{how} (or add --pull)") from absent


def bring(pullable: Pullable, name: str, absent: ModelNotFoundError, *, pull: bool) -> hub.LocatedModel:
    """The file, fetched once that is agreed to. Raises `absent` where it is not, and what fetching raises."""
    if not fetching.here(pullable):  # the same content may have come under another revision
        fetch(pullable, absent, pull=pull)
    return hub.locate(name if pullable.url else pullable.name)


def fetch(pullable: Pullable, absent: ModelNotFoundError, *, pull: bool) -> None:
    """Say what it is, ask where that was not agreed to beforehand, and fetch. Raises as `bring` does."""
    fetching.show(pullable)
    if not pull and not console.confirm("Download?", default=True):
        raise absent
    fetching.bring(pullable)


def _can_be_pulled(name: str) -> bool:
    """Whether it names something to fetch, not a file, nor a name that nobody knows."""
    from pagedrun.hub.reference import HubReference, NameReference, UrlReference, parse

    reference = parse(name)
    if isinstance(reference, NameReference):
        return load_catalog().get(reference.name) is not None
    return isinstance(reference, (HubReference, UrlReference))
