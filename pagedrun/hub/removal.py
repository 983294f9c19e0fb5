"""Removing models from pagedrun's own folder: what a name means when it may mean one model only, and what goes along.

A repository's name finds whichever quantisation is here: good for use, bad for deletion, where the same command given
twice would delete two models. So here a name has to fit exactly one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pagedrun.errors import ModelError, ModelNotFoundError
from pagedrun.hub import folders, library, part, places, quants, record
from pagedrun.hub.library import Entry
from pagedrun.hub.reference import HubReference, PathReference, parse
from pagedrun.hub.unfinished import Unfinished, means, unfinished
from pagedrun.paths import expanded, models_dir


@dataclass(frozen=True, slots=True)
class Doomed:
    """What goes with one name: a model, what `pull` has begun to fetch of it, or both; size in bytes."""

    name: str
    entry: Entry | None
    unfinished: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return (self.entry.size if self.entry else 0) + sum(part.bytes_of(final) for final in self.unfinished)


def meant(name: str) -> Doomed:
    """What the user means to remove; its entry may be another program's.

    Raises ModelNotFoundError, and ModelError for a name that fits several.
    """
    begun = [one for one in unfinished() if means(name, one)]
    reference = parse(name)
    if isinstance(reference, HubReference) and reference.file is None:
        return _of_repository(reference, begun)
    finals = tuple(final for one in begun for final in one.finals)
    try:
        entry = library.find(name)
    except ModelNotFoundError:
        if not begun:
            raise
        return Doomed(begun[0].name, None, finals)
    if isinstance(reference, PathReference):
        entry = _at_path(entry, name)
    return Doomed(entry.name, entry, finals)


def _at_path(entry: Entry, name: str) -> Entry:
    """The model at the path that was typed, and not the same file under another: one of the two may be a link."""
    typed = [expanded(name), models_dir() / name]
    path = next((path for path in typed if folders.found_at(path)), None)
    return entry if path is None or _spot(path) in map(_spot, entry.paths) else library.unlisted(path.absolute())


def _spot(path: Path) -> Path:
    """Where a file or a link lies, whatever way leads there."""
    return Path(os.path.realpath(path.parent)) / path.name


def _of_repository(reference: HubReference, begun: list[Unfinished]) -> Doomed:
    there = [e for e in library.entries() if e.first.is_of(reference.repo, reference.revision)]
    quant = (reference.quant or "").upper()
    fitting = [e for e in there if not quant or e.first.quant == quant]
    named = [e for e in fitting if e.name == str(reference)]  # as `list` shows it
    fitting = named or fitting
    names = list(dict.fromkeys([e.name for e in fitting] + [one.name for one in begun if not named]))
    if len(names) > 1:
        raise ModelError(
            f"{reference} could mean {len(names)} models that are here", hint=f"name one: {', '.join(names)}"
        )
    if not names:
        others = ", ".join(e.name for e in there)
        raise ModelNotFoundError(
            f"{reference} is not on this machine",
            hint=f"there is: {others}" if there else "what is here: pagedrun list",
        )
    finals = tuple(final for one in begun if one.name == names[0] for final in one.finals)
    return Doomed(names[0], fitting[0] if fitting else None, finals)


def projectors(doomed: Iterable[Entry]) -> list[Path]:
    """The image parts of repositories whose last models these are: of no use without them, and in no list."""
    gone = [entry for entry in doomed if entry.place == "pagedrun"]
    names = {entry.name for entry in gone}
    left = {e.first.repo for e in library.entries() if e.place == "pagedrun" and e.name not in names}
    bereft = {entry.first.repo for entry in gone} - left - {None}
    return [
        file.path
        for file in places.own_files()
        if file.place == "pagedrun" and file.repo in bereft and quants.is_projector(file.file)
    ]


def remove(paths: Iterable[Path]) -> int:
    """Delete files in pagedrun's own folder, with what is noted beside them; returns the bytes freed.

    What a link leads to stays. Raises OSError.
    """
    freed = 0
    for path in paths:
        n_bytes = 0 if path.is_symlink() else folders.size_of(path)
        path.unlink(missing_ok=True)
        freed += n_bytes
        stamp = path.with_name(f".{path.name}.checked")  # what the first versions noted beside a file
        for beside in (record.record_path(path), stamp):
            with suppress(OSError):
                beside.unlink()
        _remove_empty(path.parent)
    return freed


def _remove_empty(folder: Path) -> None:
    """Remove folders that are empty now, up to the models folder, which stays."""
    while models_dir() in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
