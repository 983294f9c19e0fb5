"""Is a model still what was fetched? Its files are hashed and compared with what is known of them.

known from the registry, from the record that `pull` or `quantize` wrote, or from the name under which another program
stores it; for a file of which nothing is known only its structure can be looked at: that every tensor is inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import read_facts, split_parts
from pagedrun.hub import record
from pagedrun.hub.library import Entry
from pagedrun.units import size

OnBytes = Callable[[int, int], None]

#: What to do about a file that is broken where it comes from.
ANOTHER = "take another one: pagedrun search WORD"

_KEEPERS = {"huggingface": "the Hugging Face cache", "ollama": "Ollama"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """good: nothing speaks against the file. hashed: that is known from its checksum, not only from its structure.

    detail: one line that says what was compared, or what is wrong. published: it is as wrong at its source.
    """

    good: bool
    hashed: bool
    detail: str
    published: bool = False


def verify(entry: Entry, on_progress: OnBytes) -> Verdict:
    """Look at every byte of a model. `on_progress` gets (bytes done, in all).

    A file in the models folder that turns out to be damaged is noted as such, so that `pull` fetches it again.
    """
    try:
        split_parts(entry.paths[0])
        expected = [_expected(entry, number) for number in range(len(entry.paths))]
        if any(sha256 is None for sha256, _ in expected):
            read_facts(entry.paths[0])
            return Verdict(True, False, "no checksum is known; all tensors are inside the file")
        return _compare(entry, [sha256 or "" for sha256, _ in expected], expected[0][1], on_progress)
    except ModelFileError as e:
        return Verdict(False, False, e.message)
    except OSError as e:
        return Verdict(False, False, f"cannot read {e.filename or entry.paths[0]}: {e.strerror or e}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Around what reads a model: what is broken in a file that is as its source has it does not get whole by fetching.

    Raises ModelFileError with a hint that says so.
    """
    try:
        yield
    except ModelFileError as e:
        known = record.read(path)
        if known is None or not known.verified or not e.hint.startswith(("fetch", "download")):
            raise
        raise ModelFileError(e.message, hint=f"it is so in {known.origin}, too; {ANOTHER}") from e


def _expected(entry: Entry, number: int) -> tuple[str | None, str]:
    """The checksum that a part should have, and who says so."""
    if entry.spec and entry.spec.sha256:
        return entry.spec.sha256, "the registry"
    path = entry.paths[number]
    if known := record.last(path):
        n_bytes = path.stat().st_size
        made = known.source == record.MADE
        if n_bytes != known.size:
            when = "made" if made else "fetched"
            raise ModelFileError(f"{path.name} has {size(n_bytes)}, and had {size(known.size)} when it was {when}")
        first = "the record of when it was made" if made else f"the first fetch from {known.source}"
        return known.sha256, known.source if known.verified else first
    return entry.sha256[number], _KEEPERS.get(entry.place, "the name it is stored under")


def _compare(entry: Entry, expected: list[str], who: str, on_progress: OnBytes) -> Verdict:
    before = 0
    for path, sha256 in zip(entry.paths, expected, strict=True):
        found = record.sha256_of(path, _after(before, entry.size, on_progress))
        if found != sha256:
            if entry.place == "pagedrun":
                record.distrust(path)
            return Verdict(False, True, f"{path.name} has sha256 {found}, and {who} says {sha256}")
        _trust(path)
        before += path.stat().st_size
    try:
        read_facts(entry.paths[0])
    except ModelFileError as e:
        return Verdict(False, True, f"as published, but damaged: {e.message}", published=True)
    return Verdict(True, True, f"sha256 as {who} says")


def _after(before: int, total: int, on_progress: OnBytes) -> Callable[[int], None]:
    return lambda done: on_progress(before + done, total)


def _trust(path: Path) -> None:
    """A file that was copied or touched has a new time of change: its record counts again."""
    known = record.last(path)
    if known and known.mtime_ns != path.stat().st_mtime_ns:
        record.write(path, replace(known, mtime_ns=path.stat().st_mtime_ns))
