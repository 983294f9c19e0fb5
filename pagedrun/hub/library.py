"""All models on this machine, each under a name that `locate` finds it by; when they were used; removing them.

The same file under two names (a link, a second snapshot of a cache) is one model. A split model is one, too.
STATE/used.json holds the time of last use by path.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.catalog import Catalog, ModelSpec, load_catalog
from pagedrun.errors import ModelFileError, UsageError
from pagedrun.gguf_file import split_parts
from pagedrun.hub import places, quants, record
from pagedrun.hub.known import own_paths, spec_of
from pagedrun.hub.locate import locate
from pagedrun.hub.places import Place, PlacedFile
from pagedrun.hub.reference import HubReference, OllamaReference, PathReference, UrlReference, parse
from pagedrun.paths import models_dir, state_dir

_REMEMBERED = 500  # paths in used.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model. name: what to type for it. paths: its parts, in order; size: of all of them, in bytes.

    last_used: unix time, None for never. sha256: of each part, as far as it is recorded or in the registry.
    """

    name: str
    paths: tuple[Path, ...]
    size: int
    place: Place
    spec: ModelSpec | None
    last_used: float | None
    sha256: tuple[str | None, ...]


def entries() -> list[Entry]:
    """All models that are here, by name, damaged ones too. Files are not opened."""
    catalog = load_catalog()
    models = list(_models())
    specs = [spec_of(parts[0], catalog) if len(parts) == 1 else None for parts in models]
    names = _names(models, specs)
    used = _used()
    found = [_entry(name, parts, spec, used) for name, parts, spec in zip(names, models, specs, strict=True)]
    return sorted(found, key=lambda entry: (entry.name.casefold(), entry.name))


def find(name: str) -> Entry:
    """The model behind what the user typed, be it damaged. Raises ModelNotFoundError, UsageError and ModelFileError."""
    catalog = load_catalog()
    here = entries()
    spec = catalog.get(name)
    for entry in here:
        if entry.name in (name, spec.name if spec else name):
            return entry
    if spec is not None:  # truncated, or otherwise not what the registry says: there, but not under its name
        for entry in here:
            if entry.paths[0] in own_paths(spec):
                return entry
    path = locate(name).path
    for entry in here:
        if any(_inode(path) == _inode(part) for part in entry.paths):
            return entry
    return _unlisted(path, catalog)


def remember_use(path: Path) -> None:
    """Note that the model at `path` was used now. A state folder that cannot be written is no error."""
    used = _used()
    used[os.path.realpath(path)] = time.time()
    newest = sorted(used.items(), key=lambda item: item[1])[-_REMEMBERED:]
    with suppress(OSError):
        state_dir().mkdir(parents=True, exist_ok=True)
        new = state_dir() / f"used.{os.getpid()}"
        new.write_text(json.dumps(dict(newest), indent=1) + "\n", encoding="utf-8")
        new.replace(state_dir() / "used.json")


def remove(entry: Entry) -> int:
    """Delete the files of a model in pagedrun's own folder, with what is noted beside them; returns the bytes freed.

    What else a link leads to stays. Raises OSError.
    """
    freed = 0
    for path in entry.paths:
        freed += 0 if path.is_symlink() else path.stat().st_size
        stamp = path.with_name(f".{path.name}.checked")  # what the first versions noted beside a file
        for file in (path, record.record_path(path), stamp):
            file.unlink(missing_ok=True)
        _remove_empty(path.parent)
    return freed


def pull_name(entry: Entry) -> str | None:
    """What to give to `pull` to fetch it again; None when it is not known where it is from."""
    path = entry.paths[0]
    if entry.spec:
        return entry.spec.name
    for spec in load_catalog().models.values():
        if path in own_paths(spec):
            return spec.name
    if entry.name.startswith("hf:"):
        return entry.name
    known = record.last(path)
    if known is None or not known.source.startswith(("hf:", "http")):
        return None
    return f"{known.source.partition('@')[0]}/{known.file}" if known.source.startswith("hf:") else known.source


def ollama_name(entry: Entry) -> str | None:
    """What Ollama calls a model of its own, whatever its name is here."""
    return next((file.ollama for file in places.ollama_files() if file.path in entry.paths), None)


def unfinished(name: str) -> list[Path]:
    """Where the files will be that `pull` has begun to fetch for what the user typed."""
    from pagedrun.hub.part import folder_of

    begun = folder_of(models_dir())
    finals = [models_dir() / path.parent.relative_to(begun) for path in sorted(begun.rglob("part"))]
    return [final for final in finals if _means(name, final)]


# --- which files make up which model, and what to call them ------------------------------------------------------


def _models() -> Iterator[list[PlacedFile]]:
    """The files of each model, in the order in which `locate` prefers them."""
    groups: dict[tuple[Path, str], dict[Path, PlacedFile]] = {}
    for file in places.all_files():
        if not quants.is_projector(file.file):
            parts = groups.setdefault((file.path.parent, quants.whole_name(file.path.name)), {})
            parts.setdefault(file.path, file)
    seen: set[tuple[object, ...]] = set()
    for parts in groups.values():
        identity = tuple(_inode(path) for path in parts)
        if identity not in seen:
            seen.add(identity)
            yield list(parts.values())


def _names(models: list[list[PlacedFile]], specs: list[ModelSpec | None]) -> list[str]:
    """A name for each that means it and no other: `locate` takes the first that a name fits, and so does this."""
    firsts = [parts[0] for parts in models]
    owners: dict[str, int] = {}
    for number in sorted(range(len(models)), key=lambda n: _rank(firsts[n], specs[n])):
        if spec := specs[number]:
            owners.setdefault(spec.name, number)
    for number, first in enumerate(firsts):
        for name in (*_possible(first), f"hf:{first.repo}/{first.path.name}"):
            owners.setdefault(name.lower(), number)
    names = []
    for number, (first, spec) in enumerate(zip(firsts, specs, strict=True)):
        candidates = [*([spec.name] if spec else []), *_possible(first)]
        names.append(next((n for n in candidates if owners[n.lower()] == number), str(first.path)))
    return names


def _rank(first: PlacedFile, spec: ModelSpec | None) -> int:
    preferred = own_paths(spec) if spec else []
    return preferred.index(first.path) if first.path in preferred else len(preferred)


def _possible(first: PlacedFile) -> list[str]:
    """What may be typed for a model, the shortest first; nothing for one that lacks its first part."""
    if (quants.part_of(first.path.name) or (1, 1))[0] != 1:
        return []
    names = [first.name, *([f"hf:{first.repo}/{first.file}"] if first.repo else [])]
    return [name for name in names if _is_understood(name)]


def _is_understood(name: str) -> bool:
    """Whether it reads as what it was meant for: folders of other programs may be called anything."""
    try:
        reference = parse(name)
    except UsageError:
        return False
    if isinstance(reference, HubReference):
        return str(reference) == name
    if isinstance(reference, OllamaReference):
        return f"ollama:{reference.name}:{reference.tag}" == name
    return isinstance(reference, PathReference)


def _entry(name: str, parts: list[PlacedFile], spec: ModelSpec | None, used: dict[str, float]) -> Entry:
    return Entry(
        name=name,
        paths=tuple(part.path for part in parts),
        size=sum(part.size for part in parts),
        place=parts[0].place,
        spec=spec,
        last_used=used.get(os.path.realpath(parts[0].path)),
        sha256=tuple(part.sha256 or (spec.sha256 if spec else None) for part in parts),
    )


def _unlisted(path: Path, catalog: Catalog) -> Entry:
    """The entry of a file that no list shows: of no known folder, or the image part of a model."""
    try:
        paths = split_parts(path)
    except ModelFileError:  # a later part, or one that lacks others
        paths = [path]
    place: Place = "pagedrun" if models_dir() in path.parents else "elsewhere"
    parts = [replace(places.at(part), place=place) for part in paths]
    return _entry(str(path), parts, spec_of(parts[0], catalog) if len(parts) == 1 else None, _used())


def _inode(path: Path) -> object:
    found = places.found_at(path)
    return (found.st_dev, found.st_ino) if found else path


# --- the rest ----------------------------------------------------------------------------------------------------


def _used() -> dict[str, float]:
    try:
        used = json.loads((state_dir() / "used.json").read_text(encoding="utf-8"))
        return {path: float(at) for path, at in used.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _means(name: str, final: Path) -> bool:
    """Whether the file that will be at `final` is what the user typed."""
    spec = load_catalog().get(name)
    if spec is not None:
        return final in own_paths(spec)
    reference = parse(name)
    if isinstance(reference, HubReference):
        asked = reference.file is None and (reference.quant is None or quants.is_quant(final.name, reference.quant))
        is_named = reference.file is not None and Path(reference.file).name == final.name
        return final.parent == models_dir() / reference.repo and (asked or is_named)
    if isinstance(reference, UrlReference):
        return final == models_dir() / reference.file_name
    return final in (models_dir() / name, Path(name).absolute())


def _remove_empty(folder: Path) -> None:
    """Remove folders that are empty now, up to the models folder, which stays."""
    while models_dir() in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
