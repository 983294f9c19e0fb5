"""Whether a file in the models folder is the one it should be; hashed once, and recorded. What may be replaced."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable
from pathlib import Path

from pagedrun.errors import DownloadError
from pagedrun.hub import record
from pagedrun.hub.remote import RemoteFile

OnBytes = Callable[[int], None]


def is_right(path: Path, file: RemoteFile, source: str, on_bytes: OnBytes) -> bool:
    """Whether `path` holds that file of that source. Where the source gives no checksum, its record has to be of it.

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
        return known is not None and (known.source, known.file) == (source, file.path)
    if known is not None:
        return known.sha256 == file.sha256
    if record.sha256_of(path, on_bytes) != file.sha256:
        return False
    note(path, file, source, file.sha256)
    return True


def note(path: Path, file: RemoteFile, source: str, sha256: str, revision: str = "") -> None:
    """Record that the file at `path` has that checksum. `revision`: what was typed for it."""
    found = path.stat()
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    verified = file.sha256 is not None
    known = record.Record(source, file.path, found.st_size, sha256, verified, now, found.st_mtime_ns, revision)
    record.write(path, known)


def may_be_replaced(path: Path, file: RemoteFile, source: str, *, is_registered: bool) -> bool:
    """Whether something has to give way at `path`: an older or damaged copy of the file; False where nothing is there.

    is_registered: the registry says what is called so. Raises DownloadError for what has to stay.
    """
    if not path.exists():
        return False
    known = record.last(path)
    if known is None and not is_registered:
        raise DownloadError(
            f"{path} is there already, and is not the file that would be fetched",
            hint="move it away or delete it; pagedrun did not put it there",
        )
    wanted = (record.origin(source), file.path)
    if known is not None and (known.origin, known.file) != wanted:
        raise DownloadError(
            f"{path} is there already, {_came_from(known)}, and {_named(*wanted)} is another file of that name",
            hint=f"delete the one that is there with: pagedrun rm {shlex.quote(str(path))}; or move it out of the "
            "models folder",
        )
    return True


def _came_from(known: record.Record) -> str:
    if known.source == record.MADE:
        return "made by pagedrun quantize"
    return f"fetched from {_named(known.origin, known.file)}"


def _named(origin: str, file: str) -> str:
    return f"{origin}/{file}" if origin.startswith("hf:") else origin
