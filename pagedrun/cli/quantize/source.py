"""The source of `pagedrun quantize` as a GGUF file: located, fetched where need be, converted where it is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pagedrun import hub
from pagedrun.cli import console
from pagedrun.cli.models import fetching, missing
from pagedrun.cli.quantize.steps import StepProgress
from pagedrun.errors import ModelNotFoundError, UsageError
from pagedrun.quantize import convert, environment, job, types
from pagedrun.quantize.source import FolderSource, GgufSource, RepositorySource, folder_source, gguf_source, resolve


def find(name: str, *, pull: bool) -> GgufSource | FolderSource:
    """What `name` means, on this machine; fetched first if it is not here, and somebody agrees or --pull was given.

    Raises ModelNotFoundError, ModelFileError, UsageError, DownloadError.
    """

    def locate(wanted: str) -> hub.LocatedModel:
        return missing.find_or_pull(wanted, pull=pull)

    found = resolve(name, locate)
    if not isinstance(found, RepositorySource):
        return found
    pullable = convert.pullable(found)
    if pullable is None:  # it has GGUF files, or nothing of use
        return gguf_source(locate(name).path)
    fetching.show(pullable)
    if not pull:
        absent = ModelNotFoundError(f"{pullable.title} is not on this machine", hint="add --pull to fetch it")
        if not console.can_ask() or not console.confirm("Download?", default=True):
            raise absent
    fetching.bring(pullable)
    return folder_source(pullable.folder)


@contextmanager
def as_gguf(
    source: GgufSource | FolderSource, target: Path, type_name: str, wanted: Sequence[str], *, dry_run: bool
) -> Iterator[GgufSource | None]:
    """The source as GGUF for the duration of the block; None when converting it made `target` already.

    wanted: requirements of the converter's environment. Raises UsageError, SetupError, ModelError.
    """
    if isinstance(source, GgufSource):
        yield source
        return
    if dry_run:
        raise UsageError(
            f"--dry-run needs a GGUF file, and {source.folder} has to be converted first",
            hint=f"make one with: pagedrun quantize {source.folder} --type BF16",
        )
    is_float = type_name in types.FLOATS
    # A conversion to 16 bits is as large as most sources; what is made from it, at most half of that.
    job.require_space(target, source.size if is_float else source.size * 3 // 2, "the conversion")
    made = _environment(wanted)
    if is_float:
        with job.written_aside(target) as aside:
            _convert(made, source, aside, type_name.lower())
        yield None
        return
    with job.reserved(target, "convert") as converted:
        _convert(made, source, converted, "auto")
        yield GgufSource((converted,), source.name)


def _environment(wanted: Sequence[str]) -> Path:
    from pagedrun.runtime.report import StderrReporter

    with StderrReporter() as report:
        return environment.get(wanted, report)


def _convert(made: Path, source: FolderSource, target: Path, out_type: str) -> None:
    console.note(f"converting {console.printable(source.name)} to GGUF")
    with StepProgress("converting") as progress:
        convert.convert(made, source.folder, target, out_type, progress)
