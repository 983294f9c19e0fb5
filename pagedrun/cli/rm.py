"""`pagedrun rm`: deletes models, of pagedrun's own folder only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagedrun.hub.library import Entry

HELP = "As `pagedrun list` shows it: a name, hf:owner/repo[:quant], ollama:name[:tag], or the path of a file."


@dataclass(frozen=True, slots=True)
class _Doomed:
    """What goes with one name: a model, what `pull` has begun to fetch, or both; `size` in bytes."""

    name: str
    entry: Entry | None
    unfinished: tuple[Path, ...]
    size: int


def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help=HELP)],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete models from pagedrun's own folder, all their parts, and what was begun to be fetched of them.

    Files of other programs are left to them.
    """
    from pagedrun.cli import console
    from pagedrun.errors import PagedrunError
    from pagedrun.units import size

    # All are looked at before any is deleted: a typo in the last name must not cost the first.
    doomed = list({one.name: one for one in map(_look, dict.fromkeys(models))}.values())
    for one in doomed:
        console.note(console.printable(f"{one.name}: {size(one.size)} in {_where(one)}"))
    if not yes:
        if not console.can_ask():
            raise PagedrunError("nothing was deleted: there is nobody to ask", hint="add --yes")
        what = doomed[0].name if len(doomed) == 1 else f"these {len(doomed)} models"
        if not console.confirm(f"Delete {what}?", default=False):
            console.note("nothing was deleted")
            raise typer.Exit(1)
    freed = sum(_delete(one) for one in doomed)
    console.note(f"freed {size(freed)}")


def _look(name: str) -> _Doomed:
    """What the user means. Raises ModelNotFoundError, and ModelError for what is not pagedrun's to delete."""
    from pagedrun.errors import ModelError, ModelNotFoundError
    from pagedrun.hub import library, part

    begun = tuple(library.unfinished(name))
    n_bytes = sum(part.bytes_of(final) for final in begun)
    try:
        entry = library.find(name)
    except ModelNotFoundError:
        if not begun:
            raise
        return _Doomed(name, None, begun, n_bytes)
    if entry.place == "pagedrun":
        return _Doomed(entry.name, entry, begun, entry.size + n_bytes)
    if begun:
        return _Doomed(name, None, begun, n_bytes)
    keeper, hint = _keeper(entry)
    raise ModelError(f"{entry.name} is not pagedrun's to delete: {keeper}", hint=hint)


def _keeper(entry: Entry) -> tuple[str, str]:
    """Who owns a file, and how it is deleted there."""
    import shlex

    from pagedrun.hub import library

    path = entry.paths[0]
    if entry.place == "ollama":
        return f"it belongs to Ollama ({path})", f"delete it with: ollama rm {library.ollama_name(entry)}"
    if entry.place == "huggingface":
        folder = next(p for p in path.parents if p.name.startswith("models--"))
        target = "model/" + folder.name.removeprefix("models--").replace("--", "/")
        return f"it lies in the Hugging Face cache ({path})", f"delete its repository with: hf cache rm {target}"
    if entry.place == "lmstudio":
        return f"it belongs to LM Studio ({path})", "delete it there, under My Models"
    return f"{path} is outside of the models folder", f"delete it with: rm {shlex.quote(str(path))}"


def _where(one: _Doomed) -> str:
    paths = one.entry.paths if one.entry else one.unfinished
    folder = os.path.commonpath([path.parent for path in paths])
    what = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files in {folder}"
    return what if one.entry else f"an unfinished download of {what}"


def _delete(one: _Doomed) -> int:
    from pagedrun.errors import PagedrunError
    from pagedrun.hub import library, part

    freed = library.remove(one.entry) if one.entry else 0
    for final in one.unfinished:
        freed += part.discard(final)
        if part.bytes_of(final):
            raise PagedrunError(f"{final.name} is being fetched right now", hint="stop that first")
    return freed
