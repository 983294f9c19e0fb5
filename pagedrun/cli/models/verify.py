"""`pagedrun verify`: are the models still what was fetched?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun.cli.models.rm import HELP

if TYPE_CHECKING:
    from pagedrun.hub.library import Entry
    from pagedrun.hub.verify import Verdict

_RED, _GREEN = "31;1", "32"


def verify(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help=HELP + " Without it: all.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Read models from end to end and compare their checksums with what is known of them.

    Known from the registry, from when pagedrun fetched them, or from the program that keeps them. Of a file without a
    known checksum only the structure is looked at, and the line says so. Nothing is deleted.

    Leaves with 0 if all are good, with 1 if any is not.
    """
    from pagedrun.cli import console, table
    from pagedrun.hub import library

    entries = [library.find(name) for name in models] if models else library.entries()
    entries = list({entry.paths: entry for entry in entries}.values())
    verdicts: list[tuple[Entry, Verdict]] = []
    for number, entry in enumerate(entries):
        verdicts.append((entry, _verify(entry, f" ({number + 1} of {len(entries)})" if len(entries) > 1 else "")))
        if not as_json:
            _show(*verdicts[-1])
    if as_json:
        table.print_json([_to_json(entry, verdict) for entry, verdict in verdicts])
    if not entries:
        console.note("no models on this machine yet")
    if not all(verdict.good for _, verdict in verdicts):
        raise typer.Exit(1)


def _verify(entry: Entry, which: str) -> Verdict:
    from pagedrun.cli import console
    from pagedrun.hub.verify import verify

    with console.ByteProgress(f"verifying {console.printable(entry.name)}{which}") as progress:
        return verify(entry, progress)


def _show(entry: Entry, verdict: Verdict) -> None:
    from pagedrun.cli import console, table

    word, colour = ("ok", _GREEN) if verdict.good else ("bad", _RED)
    status = f"{word:<5}"
    if console.use_colour(sys.stdout):
        status = f"\x1b[{colour}m{status}\x1b[0m"
    table.print_text(status + console.printable(f"{entry.name}: {verdict.detail}").replace("\n", " "))
    if not verdict.good:
        console.note(console.printable(f"{entry.name}: {console.typed(_mend(entry, verdict))}").replace("\n", " "))


def _mend(entry: Entry, verdict: Verdict) -> str:
    """What to do about a damaged file."""
    from pagedrun.hub import library
    from pagedrun.hub.places import TITLES
    from pagedrun.hub.verify import ANOTHER

    if verdict.published:
        return f"fetching it again would bring the same; {ANOTHER}"
    if entry.place == "pagedrun":
        name = library.pull_name(entry)
        again = f"fetch it again with: pagedrun pull {name}"
        return again if name else f"get it again from where it came; drop it with: pagedrun rm {entry.name}"
    if entry.place == "ollama":
        name = library.ollama_name(entry)
        return f"fetch it again with: ollama rm {name}; ollama pull {name}"
    if entry.place == "elsewhere":
        return "pagedrun did not bring it here: is it the right file?"
    return f"fetch it again with {TITLES[entry.place]}, which brought it here"


def _to_json(entry: Entry, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": entry.name,
        "paths": [str(path) for path in entry.paths],
        "size": entry.size,
        "place": entry.place,
        "good": verdict.good,
        "hashed": verdict.hashed,
        "detail": verdict.detail,
    }
