"""`pagedrun search`: models by name, in the registry and on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun import units
from pagedrun.cli import console
from pagedrun.cli.table import print_json, print_table
from pagedrun.errors import DownloadError, ModelError

if TYPE_CHECKING:
    from pagedrun.catalog import ModelSpec
    from pagedrun.hub.remote import Found

_HERE = {True: "yes", False: ""}
_FITS = {"gpu": "GPU", "gpu+ram": "GPU and RAM", "ram": "RAM", "no": "no", None: ""}


def search(
    word: Annotated[list[str], typer.Argument(metavar="WORD...", help="All of them must be in the name.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many from the hub.")] = 20,
    registry: Annotated[bool, typer.Option("--registry", help="Only the registry; asks no network.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON array instead of a table; sizes in bytes.")] = False,
) -> None:
    """Find models to pull: those of the registry first, then repositories with GGUF files on the hub.

    Exit codes: 0 found, 1 nothing found, 2 wrong usage.
    """
    specs = _of_registry(word)
    found, unasked = ([], None) if registry else _of_hub(word, limit)
    here = _repositories_here() if found else set()
    rows = [_of_spec(spec) for spec in specs]
    repositories = [(f"hf:{f.name}", f.downloads, f.name.lower() in here) for f in found]
    if json:
        print_json([*rows, *({"name": n, "source": "hub", "downloads": d, "here": h} for n, d, h in repositories)])
    elif rows or repositories:
        table = [[r["name"], _size(r["size"]), _FITS[r["fits"]], _HERE[r["here"]], r["title"]] for r in rows]
        table += [[name, "", "", _HERE[is_here], units.count(n, "download")] for name, n, is_here in repositories]
        print_table(["NAME", "SIZE", "FITS", "HERE", "WHAT"], table, right={"SIZE"})
    if unasked:
        console.note(console.printable(f"only the registry was searched: {unasked.message}"))
    if not rows and not repositories:
        where = " in the registry" if unasked or registry else ""
        hint = "fewer or shorter words find more" if not registry else "without --registry the hub is searched, too"
        raise ModelError(f"nothing is called {' '.join(word)!r}{where}", hint=unasked.hint if unasked else hint)


def _of_registry(words: list[str]) -> list[ModelSpec]:
    from pagedrun.catalog import load_catalog

    def text(spec: ModelSpec) -> str:
        return " ".join([spec.name, *spec.aliases, spec.title, spec.task]).lower()

    return [s for s in load_catalog().models.values() if all(word.lower() in text(s) for word in words)]


def _of_hub(words: list[str], limit: int) -> tuple[list[Found], DownloadError | None]:
    """What the hub finds, or why it could not be asked: the registry has to do then."""
    from pagedrun.hub import remote

    try:
        with console.waiting("asking the hub") as say:
            return remote.search(words, limit, say), None
    except DownloadError as e:
        return [], e


def _repositories_here() -> set[str]:
    """The repositories, in small letters, of which there is a model on this machine."""
    from pagedrun.hub import places, quants

    return {file.repo.lower() for file in places.all_files() if file.repo and not quants.is_projector(file.file)}


def _of_spec(spec: ModelSpec) -> dict[str, Any]:
    from pagedrun import hub, machine, memory

    try:
        hub.locate(spec.name)
        here = True
    except ModelError:
        here = False
    fit = memory.fit(spec.size, machine.free_memory()) if spec.size else None
    return {
        "name": spec.name,
        "source": "registry",
        "title": spec.title,
        "task": spec.task,
        "size": spec.size,
        "fits": None if fit is None else fit.where,
        "here": here,
    }


def _size(n_bytes: int | None) -> str:
    return units.size(n_bytes) if n_bytes else ""
