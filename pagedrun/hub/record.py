"""What is remembered about a file in the models folder: where it came from, and that its checksum was right.

FOLDER/NAME           the model file
FOLDER/.NAME.json     its record; for a name that leaves no room for that, FOLDER/.SHA256-OF-NAME.json

A record speaks of the file as it was when it was checked. A file that has another size or time of change since then
is another file, and has no record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

_BLOCK = 1 << 20

#: The source of what `pagedrun quantize` made.
MADE = "quantize"

# Of a file's name, on every system that matters; in bytes.
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class Record:
    """source: "hf:OWNER/REPO@COMMIT", "pypi:PACKAGE==VERSION", an address, or MADE; file: the path inside it.

    sha256: of the content, computed here; verified: whether the source had said it beforehand.
    fetched: local time, ISO 8601. mtime_ns: the file's time of change when it was checked. revision: the branch, tag
    or commit that was typed for it; "" for none. derived: the registry's name of the model that it was made from.
    """

    source: str
    file: str
    size: int
    sha256: str
    verified: bool
    fetched: str
    mtime_ns: int
    revision: str = ""
    derived: str = ""

    @property
    def origin(self) -> str:
        """The source without the commit or version: the same for all that follow one another."""
        return origin(self.source)


def origin(source: str) -> str:
    """A source without the commit or version; an address as it is."""
    mark = {"hf": "@", "pypi": "=="}.get(source.partition(":")[0])
    return source.partition(mark)[0] if mark else source


def record_path(path: Path) -> Path:
    """Where the record of the file at `path` lies."""
    name = f".{path.name}.json"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.json"
    return path.with_name(name)


def read(path: Path) -> Record | None:
    """The record of the file at `path`; None when there is none, or when the file was changed since."""
    record = last(path)
    try:
        found = path.stat()
    except OSError:
        return None
    return record if record and (record.size, record.mtime_ns) == (found.st_size, found.st_mtime_ns) else None


def last(path: Path) -> Record | None:
    """What was recorded about `path` last, whether or not the file has been changed since."""
    try:
        values = json.loads(record_path(path).read_text(encoding="utf-8"))
        # Older versions wrote fewer of them; of what later ones add, nothing is known here.
        return Record(**{f.name: values[f.name] for f in fields(Record) if f.name in values})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write(path: Path, record: Record) -> None:
    """Remember. In a folder that cannot be written nothing is remembered, which is no error."""
    aside = record_path(path).with_suffix(".new")
    with suppress(OSError):
        aside.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        aside.replace(record_path(path))


def distrust(path: Path) -> None:
    """The file was found damaged: from now on it counts as changed since it was recorded."""
    if known := last(path):
        write(path, replace(known, mtime_ns=0))


def sha256_of(path: Path, on_bytes: Callable[[int], None]) -> str:
    """The checksum of a file, telling how many bytes are done. Raises OSError."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            on_bytes(done)
    return digest.hexdigest()
