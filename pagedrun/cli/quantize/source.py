"""The source of `pagedrun quantize` as a GGUF file: found here or on the hub, fetched, converted where it is none."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pagedrun.cli import console
from pagedrun.cli.models import fetching, missing
from pagedrun.cli.quantize.steps import StepProgress
from pagedrun.errors import ModelNotFoundError
from pagedrun.quantize import convert, environment, job, types
from pagedrun.quantize.source import (
    FolderSource,
    GgufSource,
    RemoteSource,
    Source,
    gguf_source,
    resolve,
    whole_repository,
)
from pagedrun.units import size


def find(name: str, *, pull: bool) -> Source:
    """What `name` means; where it is not on this machine, what would be fetched for it, by what the hub says.

    Raises ModelNotFoundError, also where nobody can agree to fetch it, ModelFileError, UsageError, DownloadError.
    """
    try:
        return resolve(name)
    except ModelNotFoundError as e:
        absent = e
    repository = whole_repository(name)
    if repository is None:
        missing.require_consent(name, absent, pull=pull)
        return RemoteSource(fetching.resolve(name))
    if not pull and not console.can_ask():
        raise absent
    with console.waiting(f"looking for {name}") as say:
        return RemoteSource(convert.pullable(repository, say))


def bring(source: Source, name: str, *, pull: bool) -> GgufSource | FolderSource:
    """The source on this machine; fetched first if it is not here, and somebody agrees or --pull was given.

    Raises ModelNotFoundError where nobody does, ModelFileError, DownloadError.
    """
    if not isinstance(source, RemoteSource):
        return source
    pullable = source.pullable
    absent = ModelNotFoundError(f"{name} is not on this machine", hint="add --pull to fetch it")
    if not source.is_folder:
        return gguf_source(missing.bring(pullable, name, absent, pull=pull).path)
    missing.fetch(pullable, absent, pull=pull)
    return FolderSource(pullable.folder, source.name, is_fetched=True)


def is_conversion_alone(source: Source, type_name: str) -> bool:
    """Whether llama.cpp's converter makes all of it, and its quantiser has nothing to do."""
    return _has_to_be_converted(source) and type_name in types.FLOATS


def require_space(source: Source, target: Path, type_name: str) -> None:
    """Raises DiskFullError where the disk of `target` is too small for a conversion, if there has to be one."""
    if _has_to_be_converted(source):
        # A conversion to 16 bits is as large as most sources; what is made from it, at most half of that.
        n_bytes = source.size if type_name in types.FLOATS else source.size * 3 // 2
        job.require_space(target, n_bytes, "the conversion")


def _has_to_be_converted(source: Source) -> bool:
    return isinstance(source, FolderSource) or (isinstance(source, RemoteSource) and source.is_folder)


@contextmanager
def as_gguf(
    source: GgufSource | FolderSource, target: Path, options: job.Options, wanted: Sequence[str]
) -> Iterator[GgufSource | None]:
    """The source as GGUF for the duration of the block; None when converting it made `target` already.

    What was fetched for the conversion alone is deleted once there is a new `target`. wanted: requirements of the
    converter's environment. Raises UsageError, SetupError, ModelError.
    """
    if isinstance(source, GgufSource):
        yield source
        return
    before = _file_at(target)
    try:
        with _converted(source, target, options, wanted) as converted:
            yield converted
    finally:
        if source.is_fetched:
            _clear(source, is_done=_file_at(target) != before)


@contextmanager
def _converted(
    source: FolderSource, target: Path, options: job.Options, wanted: Sequence[str]
) -> Iterator[GgufSource | None]:
    require_space(source, target, options.type)
    made = _environment(wanted)
    if is_conversion_alone(source, options.type):
        with job.written_aside(target, replace=options.force) as aside:
            _convert(made, source, aside, options.type.lower())
        yield None
        return
    with job.reserved(target, "convert") as converted:
        _convert(made, source, converted, "auto")
        yield GgufSource((converted,), source.name)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Tells one file at `path` from another that takes its place."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _clear(source: FolderSource, *, is_done: bool) -> None:
    """Delete what was fetched, or say what stays for the next attempt."""
    n_bytes = size(source.size)
    where = console.printable(shlex.quote(str(source.folder)))
    if not is_done:
        console.note(f"the {n_bytes} that were fetched stay for the next attempt; to drop them: rm -r {where}")
        return
    shutil.rmtree(source.folder, ignore_errors=True)
    with suppress(OSError):  # the owner's folder, which may have others
        source.folder.parent.rmdir()
    console.note(f"deleted what was fetched for the conversion ({n_bytes})")


def _environment(wanted: Sequence[str]) -> Path:
    from pagedrun.runtime.report import StderrReporter

    with StderrReporter() as report:
        return environment.get(wanted, report)


def _convert(made: Path, source: FolderSource, target: Path, out_type: str) -> None:
    console.note(f"converting {console.printable(source.name)} to GGUF")
    with StepProgress("converting") as progress:
        convert.convert(made, source.folder, target, out_type, progress)
