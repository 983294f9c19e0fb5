"""`pagedrun pull`: fetch models into the models folder. Their paths go to stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun.cli import console
from pagedrun.cli.models import fetching
from pagedrun.cli.table import print_json, print_text
from pagedrun.errors import DownloadError

if TYPE_CHECKING:
    from pagedrun.hub.pull import Pullable

_NAME_HELP = "Name in the registry, hf:owner/repo[:quant], hf:owner/repo/file, or the address of a .gguf file."


def pull(
    name: Annotated[list[str], typer.Argument(metavar="NAME...", help=_NAME_HELP, show_default=False)],
    projector: Annotated[
        bool, typer.Option("--projector", help="Also fetch the image part (mmproj), which is left out otherwise.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON array instead of paths: name, source, size, path, files.")
    ] = False,
) -> None:
    """Fetch models, and print where their files are.

    Of a repository it takes Q4_K_M, or says which other one is the nearest. What was interrupted goes on where it
    stopped, and a file gets its name only when its size and checksum are right. What is here already is not fetched.

    HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and the variables for proxies are respected.
    """
    results = []
    for each in name:
        pullable, paths = _pull(each, projector)
        if json:
            results.append(_as_json(pullable, paths))
        else:
            print_text(str(paths[0]))
    if json:
        print_json(results)


def _pull(name: str, projector: bool) -> tuple[Pullable, list[Path]]:
    """What was meant, and its files, fetched where they were not here."""
    from pagedrun.hub.pull import at_hand, present

    try:
        pullable = fetching.resolve(name, projector=projector)
    except DownloadError as e:
        here = None if projector else at_hand(name)
        if here is None:
            raise
        console.note(console.printable(f"{here[0].title} is here already ({e.message})"))
        return here
    if paths := fetching.here(pullable):
        console.note(console.printable(f"{pullable.title} is here already"))
        return pullable, paths
    fetching.show(pullable)
    fetching.bring(pullable)
    return pullable, present(pullable) or pullable.paths


def _as_json(pullable: Pullable, paths: list[Path]) -> dict[str, Any]:
    from pagedrun.hub import record

    files = []
    for file, path in zip(pullable.files, paths, strict=True):
        known = record.read(path)
        sha256 = known.sha256 if known else file.sha256
        files.append({"path": str(path), "size": path.stat().st_size, "sha256": sha256})
    return {
        "name": pullable.name,
        "title": pullable.title,
        "source": pullable.source,
        "license": pullable.license,
        "size": sum(file["size"] for file in files),
        "path": str(paths[0]),
        "files": files,
    }
