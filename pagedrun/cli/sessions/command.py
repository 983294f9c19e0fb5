"""`pagedrun sessions`: named sessions, and what is kept on disk by itself."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagedrun.sessions import Entry, SessionFolder

NAME = Annotated[str, typer.Argument(metavar="NAME", help="Of a session, as `pagedrun sessions list` shows it.")]
_JSON = typer.Option("--json", help="Print JSON; sizes in bytes, times in seconds since 1970.")
_TITLES = ("NAME", "MODEL", "TOKENS", "TURNS", "SIZE", "LAST USED")


def list_sessions(
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also what is kept by itself.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """List the sessions, those used last first.

    What is kept by itself, so that conversations need not be read again after a restart, takes cache_disk at most.
    """
    from pagedrun.cli import console, table
    from pagedrun.units import count, size

    folder = _folder()
    entries = [e for e in folder.entries() if everything or e.kind == "named"]
    if as_json:
        table.print_json([_to_json(entry) for entry in entries])
        return
    table.print_table(_TITLES, [_row(entry) for entry in entries], right=("TOKENS", "TURNS", "SIZE"))
    for entry in entries:
        if entry.meta is None:
            console.warn(console.printable(f"{entry.name}: {entry.reason}"))
    if not entries:
        console.note(f"no sessions yet; begin one with: {console.typed('pagedrun chat --session NAME')}")
    automatic = folder.entries("cache")
    if automatic and not everything:
        console.note(f"kept by itself: {count(len(automatic), 'conversation')}, {size(folder.cache_bytes)}")


def show(
    name: NAME,
    check: Annotated[bool, typer.Option("--check", help="Read all of it, and say what is damaged.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show what is in a session: its model, how it was computed, and what was said."""
    from pagedrun.cli import table
    from pagedrun.errors import DamagedTextError

    folder = _folder()
    entry = folder.show(name)
    checked = folder.check(name) if check and entry.meta is not None else None
    if as_json:
        found = _to_json(entry) | ({"text": _said(entry)} if entry.meta else {})
        if checked is not None:
            found["check"] = {
                "whole": checked.whole,
                "usable_tokens": checked.usable_tokens,
                "bad_pages": checked.bad_pages,
                "bad_snapshots": checked.bad_snapshots,
            }
        table.print_json(found)
    else:
        table.print_text("\n".join(_lines(entry, checked)))
    if entry.meta is None:
        raise DamagedTextError(entry.reason, hint=f"remove it: pagedrun sessions rm {name}")
    if checked is not None and not checked.whole:
        raise typer.Exit(1)


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Of sessions.")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete sessions, with what was said in them."""
    from pagedrun.cli import console
    from pagedrun.errors import PagedrunError
    from pagedrun.units import count, size

    folder = _folder()
    entries = [folder.show(name) for name in dict.fromkeys(names)]  # a typo in the last must not cost the first
    if not yes:
        for entry in entries:
            console.note(console.printable(f"{entry.name}: {_turns(entry)} turns, {size(entry.n_bytes)}"))
        if not console.can_ask():
            raise PagedrunError("nothing was deleted: there is nobody to ask", hint="add --yes")
        what = entries[0].name if len(entries) == 1 else f"these {count(len(entries), 'session')}"
        if not console.confirm(f"Delete {what}?", default=False):
            console.note("nothing was deleted")
            raise typer.Exit(1)
    freed = 0
    for entry in entries:
        with _claimed(folder, entry.name):
            freed += folder.remove(entry.name)
    console.note(f"freed {size(freed)}")


def rename(name: NAME, new: Annotated[str, typer.Argument(metavar="NEW", help="A name that none has.")]) -> None:
    """Give a session another name."""
    from pagedrun.errors import UsageError

    folder = _folder()
    folder.show(name)
    if new == name:
        raise UsageError(f"{name!r} is its name already")
    with _claimed(folder, name), _claimed(folder, new):
        folder.rename(name, new)


def export(
    name: NAME,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="To be written.")],
    force: Annotated[bool, typer.Option("--force", help="Write over FILE.")] = False,
) -> None:
    """Write a session to a file, for another machine that has the same model. Everything is checked."""
    from pagedrun.cli import console
    from pagedrun.errors import UsageError
    from pagedrun.paths import expanded
    from pagedrun.units import size

    to = expanded(file).absolute()
    if to.exists() and not force:
        raise UsageError(f"{to} is there already", hint="choose another name, or add --force")
    if not to.parent.is_dir():
        raise UsageError(f"there is no folder {to.parent}")
    console.note(f"{size(_folder().export(name, to))} in {console.printable(str(to))}")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `pagedrun sessions export` wrote it.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A name that none has; without it the file's.")
    ] = None,
) -> None:
    """Take a session in from a file. Everything is checked."""
    from pagedrun.cli import console
    from pagedrun.paths import expanded
    from pagedrun.units import count

    folder, path = _folder(), expanded(file)
    called = path.name.removesuffix(".kv") if name is None else name
    with _claimed(folder, called):
        meta = folder.import_(path, called)
    console.note(console.printable(f"{called}: {count(meta.n_tokens, 'token')} of {meta.model or 'a model'}"))


def gc(
    everything: Annotated[bool, typer.Option("-a", "--all", help="All that is kept by itself.")] = False,
) -> None:
    """Delete what is left of programs that died, what nobody can use, and what is beyond cache_disk. Sessions stay."""
    from pagedrun.cli import console
    from pagedrun.units import count, size

    folder = _folder()
    removed = folder.gc()
    for one in removed:
        console.note(console.printable(f"{one.path.name}: {one.why}"))
    n, freed = len(removed), sum(one.n_bytes for one in removed)
    for entry in folder.entries("cache") if everything else ():
        freed += folder.remove(entry.name, "cache")
        n += 1
    console.note(f"freed {size(freed)} of {count(n, 'file')}")


def _folder() -> SessionFolder:
    from pagedrun.config import load_config
    from pagedrun.paths import sessions_dir
    from pagedrun.sessions import SessionFolder

    return SessionFolder(sessions_dir(), load_config().cache_disk)


@contextmanager
def _claimed(folder: SessionFolder, name: str) -> Iterator[None]:
    """Nobody uses a session meanwhile. Raises SessionInUseError."""
    from pagedrun.durable import Claim

    claim = Claim(folder.root, name)
    try:
        yield
    finally:
        claim.close()


def _row(entry: Entry) -> tuple[str, ...]:
    from pagedrun.cli.models.listing import ago
    from pagedrun.units import count, size

    meta = entry.meta
    name = entry.name if entry.kind == "named" else f"({entry.name[:8]})"
    tokens = count(meta.n_tokens) if meta else "damaged"
    return name, meta.model if meta else "-", tokens, _turns(entry), size(entry.n_bytes), ago(entry.used / 1e9)


def _turns(entry: Entry) -> str:
    from pagedrun.cli.sessions.kept import turns_in

    turns = turns_in(entry.meta.note) if entry.meta else None
    return "-" if turns is None else str(turns)


def _lines(entry: Entry, checked: Any) -> list[str]:
    from pagedrun.cli import console
    from pagedrun.units import count, size

    meta = entry.meta
    facts = {"name": entry.name, "file": str(entry.path), "size": size(entry.n_bytes)}
    if meta is not None:
        identity = meta.identity
        pages = f"{count(meta.n_pages, 'page')} of {size(identity.frame_bytes)}"
        states = f", {count(len(meta.snapshots), 'recurrent state')}" if meta.snapshots else ""
        facts |= {
            "model": meta.model or "-",
            "tokens": f"{count(meta.n_tokens)} in {pages}{states}" if meta.n_tokens else "none: it is read again",
            "KV cache": f"{identity.kv_type_k} / {identity.kv_type_v}, positions: {identity.rope}"
            if meta.n_tokens
            else "-",
            "begun": _when(meta.created),
            "saved": _when(meta.saved),
        }
    if checked is not None:
        damaged = f"{checked.usable_tokens:,} of {checked.n_tokens:,} tokens can be used; the rest is read again"
        facts["check"] = "whole" if checked.whole else damaged
    lines = [f"{title:<9} {console.printable(text)}" for title, text in facts.items()]
    return [*lines, *_spoken(entry)]


def _spoken(entry: Entry) -> list[str]:
    """What was said, as lines."""
    from pagedrun.cli import console

    said = _said(entry) or {}
    turns = said.get("turns")
    if isinstance(turns, list):
        pairs = [(mark, t.get(part, "")) for t in turns for mark, part in (("> ", "question"), ("", "answer"))]
        if said.get("system"):
            pairs.insert(0, ("system: ", said["system"]))
        return ["", *(console.printable(f"{mark}{text}") for mark, text in pairs)]
    return ["", console.printable(str(said["text"]))] if "text" in said else []


def _said(entry: Entry) -> Any:
    import json

    try:
        return json.loads(entry.meta.note) if entry.meta and entry.meta.note else None
    except ValueError:
        return None


def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _to_json(entry: Entry) -> dict[str, Any]:
    meta = entry.meta
    found: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "path": str(entry.path),
        "size": entry.n_bytes,
        "last_used": entry.used / 1e9,
        "problem": entry.reason or None,
    }
    if meta is not None:
        from pagedrun.cli.sessions.kept import turns_in

        facts = meta.to_json()
        del facts["note"], facts["name"], facts["usage"]
        found |= facts | {"turns": turns_in(meta.note)}
    return found
