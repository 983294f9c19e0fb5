"""What is kept of a source of the registry: beside a result in the models folder its name, else a word about it."""

from __future__ import annotations

import shlex
from pathlib import Path

from pagedrun.cli import console
from pagedrun.hub import made
from pagedrun.paths import models_dir
from pagedrun.quantize.source import FolderSource, GgufSource


def remember(source: GgufSource | FolderSource, target: Path) -> None:
    """Record the finished `target` where it is in the models folder; say what gets lost where it is not."""
    spec = made.origin_of(source.parts) if isinstance(source, GgufSource) else None
    is_kept = made.is_kept(target)
    if is_kept:
        total = target.stat().st_size
        with console.ByteProgress("computing its checksum") as progress:
            made.remember(target, spec, lambda done: progress(done, total))
    if spec is None or not (spec.chat_template or spec.sampling or spec.think is not None):
        return
    if is_kept:
        console.note(f"it answers with the registry's template and settings, as {spec.name} does")
    else:
        folder = console.printable(shlex.quote(str(models_dir())))
        console.note(
            f"the registry's template and settings stay with {spec.name}; in the models folder the result has them, "
            f"too: -o {folder}"
        )
