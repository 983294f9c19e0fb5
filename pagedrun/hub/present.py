"""Whether a file in the models folder is the one it should be; hashed once, and recorded."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from pagedrun.hub import record
from pagedrun.hub.remote import RemoteFile

OnBytes = Callable[[int], None]


def is_right(path: Path, file: RemoteFile, source: str, on_bytes: OnBytes) -> bool:
    """Whether `path` holds that file of that source. Where the source says too little, its record has to speak for it.

    `on_bytes` hears how much has been hashed, where that is needed. Raises OSError for a file that cannot be read.
    """
    try:
        n_bytes = path.stat().st_size
    except OSError:
        return False
    if file.size not in (None, n_bytes):
        return False
    known = record.read(path)
    if file.sha256 is None:
        return file.size is not None or (known is not None and known.source == source)
    if known is not None:
        return known.sha256 == file.sha256
    if record.sha256_of(path, on_bytes) != file.sha256:
        return False
    note(path, file, source, file.sha256)
    return True


def note(path: Path, file: RemoteFile, source: str, sha256: str) -> None:
    """Record that the file at `path` has that checksum."""
    found = path.stat()
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    verified = file.sha256 is not None
    record.write(path, record.Record(source, file.path, found.st_size, sha256, verified, now, found.st_mtime_ns))
