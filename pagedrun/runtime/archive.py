"""Moves a built runtime to another machine: one tar file with the libraries, the bindings and the manifest."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pagedrun import machine
from pagedrun.errors import BuildError, SetupError, UsageError
from pagedrun.paths import expanded
from pagedrun.runtime import manifest as manifests
from pagedrun.runtime import space, store
from pagedrun.runtime.build import folder_size
from pagedrun.runtime.install import check_loads, locked
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import build_id
from pagedrun.runtime.store import Runtime

_TOP = "pagedrun-runtime"
_MAX_UNPACKED = 8 << 30  # a CUDA build for every architecture stays far below
# What the standard library raises for an archive that is cut short, altered, or made to do harm.
_DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError, ValueError)
# How lzma, gzip and tarfile say that there should be more.
_CUT_SHORT = ("ended before the end-of-stream", "unexpected end of data", "truncated header")
_NOT_OURS = "it is not a runtime that pagedrun setup --export wrote"


def export(runtime: Runtime, target: Path, report: Reporter) -> None:
    """Write `runtime` to the archive `target`, whole or not at all. Raises UsageError, DiskFullError."""
    mode = _mode(target)
    target = expanded(target).absolute()
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}")
    files = [path for path in sorted(runtime.root.rglob("*")) if path.is_symlink() or path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with space.watched(target.parent, "writing the archive"):
            with tarfile.open(aside, mode) as tar:
                # The manifest first: an importer can refuse before it reads the rest.
                for number, path in enumerate(sorted(files, key=lambda p: p.name != manifests.FILE)):
                    report.progress(f"Writing {target.name}", number, len(files))
                    name = PurePosixPath(_TOP, *path.relative_to(runtime.root).parts)
                    tar.add(path, str(name), recursive=False, filter=_anonymous)
            aside.replace(target)
    except OSError as e:
        raise SetupError(f"cannot write {target}: {e.strerror or e}", hint="choose another folder") from e
    finally:
        aside.unlink(missing_ok=True)


def install_from(file: Path, report: Reporter) -> Runtime:
    """Install the runtime in the archive `file` and make it current.

    Raises UsageError (no such file), SetupError (not ours, other patches, older C library, lesser processor),
    DiskFullError.
    """
    machine.require_supported()
    file = expanded(file)
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    with locked(report):
        store.root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="import-", dir=store.root()) as scratch:
            aside = Path(scratch) / "runtime"
            report.progress(f"Unpacking {file.name}", 0, None)
            try:
                with space.watched(store.root(), "unpacking the runtime"):
                    found = _unpack(file, aside)
            except _DAMAGED as e:
                raise _unusable(file, e) from e
            except OSError as e:  # without its path, which is in the folder for unpacking
                raise SetupError(f"{file} cannot be unpacked: {e.strerror or e}") from e
            try:
                check_loads(Runtime(aside, found), report)
            except BuildError as e:
                raise BuildError(e.message.replace(str(aside), str(file)), hint=e.hint) from e
            target = store.root() / found.key
            if target.exists():
                target.rename(Path(scratch) / "replaced")
            aside.rename(target)
        runtime = Runtime(target, found)
        store.set_current(runtime)
    return runtime


def _unusable(file: Path, error: Exception) -> SetupError:
    text = str(error)
    if isinstance(error, EOFError) or any(words in text for words in _CUT_SHORT):
        return SetupError(f"{file} cannot be used: it is cut short", hint="copy it here again")
    reason = text.partition("\n")[0].rstrip(":")  # tarfile lists every format that it has tried
    return SetupError(f"{file} cannot be used: {reason}", hint=_NOT_OURS)


def _mode(target: Path) -> Literal["w:xz", "w:gz"]:
    if target.name.endswith((".tar.xz", ".txz")):
        return "w:xz"
    if target.name.endswith((".tar.gz", ".tgz")):
        return "w:gz"
    raise UsageError(f"{target.name}: the name must end in .tar.xz or .tar.gz")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who built it is nobody's business."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack(file: Path, target: Path) -> Manifest:
    """Unpack into `target`. The manifest comes first and is checked before anything else is written."""
    with tarfile.open(file, "r:*") as tar:
        first = tar.next()
        stream = tar.extractfile(first) if first and first.name == f"{_TOP}/{manifests.FILE}" else None
        if stream is None:
            raise SetupError(f"{file} cannot be used", hint=_NOT_OURS)
        data = stream.read(1 << 20)
        found = manifests.parse(data)
        _check_fits(found)
        target.mkdir()
        total = 0
        while member := tar.next():
            total += member.size
            if total > _MAX_UNPACKED:
                raise SetupError(f"{file} cannot be used: it is far too large", hint=_NOT_OURS)
            _extract(tar, member, target)
    found = replace(found, imported=True)
    manifests.save(found, target)
    if not folder_size(target / "lib"):
        raise SetupError(f"{file} cannot be used: it holds no libraries", hint=_NOT_OURS)
    if bad := manifests.damaged(found, target):
        raise SetupError(
            f"{file} is damaged: {bad[0]} is missing or differs", hint="copy it here again, or export it anew"
        )
    return found


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """One plain file, or one link to a neighbour; anything else could write outside `target`."""
    path = PurePosixPath(member.name)
    if path.parts[:1] != (_TOP,) or len(path.parts) < 2 or ".." in path.parts:
        raise ValueError(f"it holds the path {member.name!r}")
    out = target.joinpath(*path.parts[1:])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"it holds {member.name!r} below a file") from None
    if os.path.lexists(out):  # writing could go through a link that came earlier in the archive
        raise ValueError(f"it holds {member.name!r} twice")
    if member.issym():
        if "/" in member.linkname or member.linkname in ("", ".", ".."):
            raise ValueError(f"{member.name!r} is a link to {member.linkname!r}")
        out.symlink_to(member.linkname)
    elif member.isfile():
        stream = tar.extractfile(member)
        assert stream is not None  # it is a file
        with stream, out.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
        out.chmod(0o755 if member.mode & 0o100 else 0o644)
    else:
        raise ValueError(f"{member.name!r} is neither a file nor a link")


def _check_fits(found: Manifest) -> None:
    """Raise SetupError unless these sources and this machine can use the runtime."""
    if found.build_id != build_id():
        raise SetupError(
            f"that runtime was built from other patches ({found.build_id}) than this pagedrun ships ({build_id()})",
            hint="export it with the same version of pagedrun",
        )
    if not found.key.isalnum():
        raise ValueError(f"its key is {found.key!r}")
    here = machine.glibc_version()
    if found.glibc and here < tuple(map(int, found.glibc.split("."))):
        raise SetupError(
            f"that runtime needs glibc {found.glibc}, and this system has {'.'.join(map(str, here)) or 'none'}",
            hint="build it on a system as old as this one, or here: pagedrun setup",
        )
    missing = store.missing_instructions(found)
    if missing:
        raise SetupError(
            f"that runtime was built for a processor with {', '.join(missing)}, which this one lacks",
            hint="build it there with: pagedrun setup --portable",
        )
