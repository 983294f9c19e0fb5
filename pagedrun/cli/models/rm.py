"""`pagedrun rm`: deletes models, of pagedrun's own folder only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagedrun.hub.library import Entry
    from pagedrun.hub.removal import Doomed

HELP = "As `pagedrun list` shows it: a name, hf:owner/repo[:quant], ollama:name[:tag], or the path of a file."


def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help=HELP)],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete models from pagedrun's own folder, all their parts, and what was begun to be fetched of them.

    A name has to fit one model only. With the last model of a repository its image part (mmproj) goes, too. Files of
    other programs are left to them.
    """
    from pagedrun.cli import console
    from pagedrun.errors import PagedrunError
    from pagedrun.hub import removal
    from pagedrun.units import size

    # All are looked at before any is deleted: a typo in the last name must not cost the first.
    doomed = list({one.name: one for one in map(_look, dict.fromkeys(models))}.values())
    for one in doomed:
        console.note(console.printable(f"{one.name}: {size(one.size)} in {_where(one)}"))
    projectors = removal.projectors(one.entry for one in doomed if one.entry)
    for path in projectors:
        console.note(console.printable(f"with it goes the image part that no other model here uses: {path}"))
    if not yes:
        if not console.can_ask():
            raise PagedrunError("nothing was deleted: there is nobody to ask", hint="add --yes")
        what = doomed[0].name if len(doomed) == 1 else f"these {len(doomed)} models"
        if not console.confirm(f"Delete {what}?", default=False):
            console.note("nothing was deleted")
            raise typer.Exit(1)
    freed = sum(_delete(one) for one in doomed) + removal.remove(projectors)
    console.note(f"freed {size(freed)}")


def _look(name: str) -> Doomed:
    """What the user means. Raises ModelNotFoundError, and ModelError for what is not pagedrun's to delete."""
    from pagedrun.errors import ModelError
    from pagedrun.hub import removal

    one = removal.meant(name)
    if one.entry is None or one.entry.place == "pagedrun":
        return one
    if one.unfinished:
        return removal.Doomed(name, None, one.unfinished)
    keeper, hint = _keeper(one.entry)
    raise ModelError(f"{one.name} is not pagedrun's to delete: {keeper}", hint=hint)


def _keeper(entry: Entry) -> tuple[str, str]:
    """Who owns a file, and how it is deleted there. Raises ModelFileError for what is no model at all."""
    import shlex

    from pagedrun.gguf_file import check_file
    from pagedrun.hub import library

    path = entry.paths[0]
    if entry.place == "ollama":
        name = library.ollama_name(entry)
        return f"it belongs to Ollama ({path})", f"delete it with: ollama rm {name}" if name else "delete it there"
    if entry.place == "huggingface":
        where = f"it lies in the Hugging Face cache ({path})"
        target = f"hf cache rm model/{entry.first.repo}"
        return where, f"delete its repository with: {target}" if entry.first.repo else "see: hf cache ls"
    if entry.place == "lmstudio":
        return f"it belongs to LM Studio ({path})", "delete it there, under My Models"
    check_file(path)  # nobody shall be told to delete /etc/passwd
    return f"{path} is outside of the models folder", f"delete it with: rm {shlex.quote(str(path))}"


def _where(one: Doomed) -> str:
    paths = one.entry.paths if one.entry else one.unfinished
    folder = os.path.commonpath([path.parent for path in paths])
    what = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files in {folder}"
    return what if one.entry else f"an unfinished download of {what}"


def _delete(one: Doomed) -> int:
    from pagedrun.errors import PagedrunError
    from pagedrun.hub import part, removal

    freed = removal.remove(one.entry.paths) if one.entry else 0
    for final in one.unfinished:
        freed += part.discard(final)
        if part.bytes_of(final):
            raise PagedrunError(f"{final.name} is being fetched right now", hint="stop that first")
    return freed
