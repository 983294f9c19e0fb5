"""Fetching a model with somebody watching: what it is beforehand, a bar meanwhile, a line at the end. All on stderr."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun import units
from pagedrun.cli import console

if TYPE_CHECKING:
    from pagedrun.hub.pull import Pullable
    from pagedrun.memory import Fit

# Of a commit nobody reads more than its beginning.
_COMMIT = re.compile(r"(?<=@[0-9a-f]{12})[0-9a-f]{28}$")

# Of fewer bytes a speed says nothing.
_MEASURABLE = 1 << 20


def resolve(name: str, *, projector: bool = False) -> Pullable:
    """What `name` stands for, with a line on a terminal while the hub is asked. Raises what `pull.resolve` does."""
    from pagedrun.hub import pull

    with console.waiting(f"looking for {name}") as say:
        return pull.resolve(name, projector=projector, say=say)


def here(pullable: Pullable) -> list[Path] | None:
    """Its files, where all are on this machine already, with a bar where they have to be hashed."""
    from pagedrun.hub import pull

    with console.ByteProgress(f"checking {pullable.title}") as progress:
        return pull.present(pullable, progress)


def show(pullable: Pullable) -> None:
    """What would be fetched: how big, under which licence, whether it fits, where from and where to."""
    verdict = fit(pullable)
    facts = [
        pullable.title,
        units.size(pullable.size) if pullable.size else "size unknown",
        units.count(len(pullable.files), "file") if len(pullable.files) > 1 else "",
        pullable.license or "",
        str(verdict) if verdict else "",
    ]
    lines = [
        " · ".join(fact for fact in facts if fact),
        f"from {_COMMIT.sub('', pullable.source)} into {pullable.folder}",
    ]
    # One line where nobody watches: a log.
    for line in lines if console.is_terminal(sys.stderr) else [", ".join(lines)]:
        console.note(console.printable(line))
    if pullable.remark:
        console.warn(console.printable(pullable.remark))
    if verdict is not None and not verdict:
        console.warn(f"it will not fit the memory of this machine: it needs {verdict}")


def bring(pullable: Pullable) -> Path:
    """Fetch what is missing, with a bar on a terminal; returns the path of the first file.

    Raises DownloadError, DiskFullError; KeyboardInterrupt after a line that says how it goes on.
    """
    from pagedrun.hub import part, pull

    began = time.monotonic()
    begun = sum(part.bytes_of(path) for path in pullable.paths)
    if begun:
        console.note(f"{units.size(begun)} of it are here already")
    try:
        with console.ByteProgress(pullable.title, at_once=True) as progress:
            path = pull.fetch(pullable, progress, on_status=progress.status, on_note=progress.note)
    except KeyboardInterrupt:
        console.note("stopped; what has come is kept, and the same command goes on from there")
        raise
    seconds = time.monotonic() - began
    came = (pullable.size or 0) - begun
    rate = units.rate(came, seconds) if came > _MEASURABLE else None
    speed = f" ({units.size(rate)}/s)" if rate else ""
    console.note(f"fetched {console.printable(pullable.title)} in {units.duration(seconds)}{speed}")
    return path


def fit(pullable: Pullable) -> Fit | None:
    """Whether it fits the memory that is free now; None where its size is not known."""
    from pagedrun import machine, memory

    return memory.fit(pullable.size, machine.free_memory()) if pullable.size else None
