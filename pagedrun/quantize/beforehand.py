"""What can be refused before anything is fetched, built, converted or loaded: from names and headers alone.

What llama.cpp's plan says is more exact, and comes later: see `checks`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from pagedrun.errors import UsageError
from pagedrun.gguf_file import read_facts
from pagedrun.hub import quants
from pagedrun.paths import expanded
from pagedrun.quantize import types
from pagedrun.quantize.job import Options
from pagedrun.quantize.source import FolderSource, GgufSource, RemoteSource, Source


def objection(source: Source, options: Options, *, calibrating: bool) -> UsageError | None:
    """Why this would be refused later; None where nothing is known against it.

    calibrating: an importance matrix will be made.
    """
    kind = _kind(source)
    if kind and not options.force:
        if kind == options.type and not (options.tensor_types or options.keep_output or options.embedding_type):
            another = "start from an F16 or BF16 file for" if types.is_quantized(kind) else "choose"
            hint = f"{another} another --type"
            return UsageError(f"{_file(source)} is {kind} already: nothing would change", hint=hint)
        if types.is_quantized(kind) and not kind.startswith("MXFP4"):  # MXFP4_MOE leaves its tensors as they are
            return UsageError(
                f"{_file(source)} is quantised already ({kind}): a second time it loses more than from the original",
                hint="start from an F16 or BF16 file, or do it all the same with --force",
            )
    if options.type in types.FILES_NEED_IMATRIX and not options.imatrix and not calibrating:
        return needs_matrix(options.type)
    return None


def require_other_file(output: Path, inputs: Mapping[str, Path | None]) -> None:
    """Raises UsageError where `output` would overwrite one of `inputs`, which are named after their options."""
    for option, path in inputs.items():
        if path is not None and os.path.realpath(output) == os.path.realpath(expanded(path)):
            raise UsageError(f"-o: {output} is the file of {option}", hint="write somewhere else with -o")


def needs_matrix(kind: str) -> UsageError:
    """What to say where only an importance matrix makes that type usable."""
    return UsageError(
        f"{kind} needs an importance matrix, or the model will talk nonsense",
        hint="make one from some text with --calibrate TEXT, or give one with --imatrix FILE",
    )


def no_dry_run(source: Source) -> UsageError | None:
    """Why it cannot be foretold what comes out; None where it can."""
    if isinstance(source, GgufSource) or (isinstance(source, RemoteSource) and not source.is_folder):
        return None
    name = str(source.folder) if isinstance(source, FolderSource) else source.pullable.name
    return UsageError(
        f"--dry-run needs a GGUF file, and {name} has to be converted first",
        hint=f"make one with: pagedrun quantize {shlex.quote(name)} --type BF16",
    )


def _kind(source: Source) -> str:
    """What the source says it is: "Q4_K_M", "F16", ...; "" where nothing says so."""
    if isinstance(source, GgufSource):
        return read_facts(source.parts[0]).quantization
    if isinstance(source, FolderSource) or source.is_folder:
        return ""
    return (quants.quant_of(source.pullable.files[0].path) or "").removeprefix("UD-")


def _file(source: Source) -> str:
    return source.parts[0].name if isinstance(source, GgufSource) else source.name
