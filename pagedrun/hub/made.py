"""What is remembered about a model that was made here: its checksum, and which one of the registry it was made from.

The file stays as it was written; in the models folder a record lies beside it (see `record`), so that it is known
later what to answer with: the registry's template and settings hold for it as for the model it came from.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from pagedrun.catalog import ModelSpec, load_catalog
from pagedrun.hub import places, record
from pagedrun.hub.known import settings_of
from pagedrun.paths import models_dir


def is_kept(path: Path) -> bool:
    """Whether `path` is in the models folder, where files have records."""
    return path.resolve().is_relative_to(models_dir().resolve())


def origin_of(parts: Sequence[Path]) -> ModelSpec | None:
    """What the registry knows of the model in these files; also of one that was made from one of its models."""
    return settings_of(places.at(parts[0]), load_catalog()) if len(parts) == 1 else None


def remember(path: Path, origin: ModelSpec | None, on_bytes: Callable[[int], None]) -> None:
    """Write the record of a new file, which is read for its checksum. Raises OSError when it cannot be read."""
    found = path.stat()
    made = record.Record(
        source=record.MADE,
        file=path.name,
        size=found.st_size,
        sha256=record.sha256_of(path, on_bytes),
        verified=False,
        fetched=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        mtime_ns=found.st_mtime_ns,
        derived=origin.name if origin else "",
    )
    record.write(path, made)
