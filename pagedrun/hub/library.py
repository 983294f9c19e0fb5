"""All models on this machine, each under a name that `locate` finds it by, and when they were used.

The same file under two names (a link, a second snapshot of a cache) is one model. A split model is one, too.
STATE/used.json holds the time of last use by path.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.catalog import ModelSpec, load_catalog
from pagedrun.errors import ModelFileError, ModelNotFoundError, UsageError
from pagedrun.gguf_file import check_file, split_parts
from pagedrun.hub import folders, places, quants, record
from pagedrun.hub.known import own_paths, spec_of
from pagedrun.hub.locate import locate
from pagedrun.hub.places import Place, PlacedFile
from pagedrun.hub.reference import HubReference, OllamaReference, PathReference, parse
from pagedrun.paths import models_dir, state_dir

_REMEMBERED = 500  # paths in used.json
_SHORT_COMMIT = 8  # digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model. name: what to type for it. first: its first part, as it was found. paths: its parts, in order.

    size: of all of them, in bytes. last_used: unix time, None for never. sha256: of each part, as far as it is recorded
    or in the registry.
    """

    name: str
    first: PlacedFile
    paths: tuple[Path, ...]
    size: int
    place: Place
    spec: ModelSpec | None
    last_used: float | None
    sha256: tuple[str | None, ...]


def entries() -> list[Entry]:
    """All models that are here, by name, damaged ones too. Files are not opened."""
    catalog = load_catalog()
    groups = _groups()
    numbers = _numbers(groups)
    first_seen: dict[int, list[PlacedFile]] = {}
    for number, parts in zip(numbers, groups, strict=True):
        first_seen.setdefault(number, parts)
    models = list(first_seen.values())
    specs = [spec_of(parts[0], catalog) if len(parts) == 1 else None for parts in models]
    names = _names(models, specs, _claims(groups, numbers))
    used = _used()
    found = [_entry(name, parts, spec, used) for name, parts, spec in zip(names, models, specs, strict=True)]
    return sorted(found, key=lambda entry: (entry.name.casefold(), entry.name))


def find(name: str) -> Entry:
    """The model behind what the user typed, be it damaged, or a link to what is gone.

    Raises ModelNotFoundError, UsageError and ModelFileError.
    """
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
    path = _broken_link(name) or _path_of(name)
    for entry in here:
        if any(_inode(path) == _inode(part) for part in entry.paths):
            return entry
    return unlisted(path)


def unlisted(path: Path) -> Entry:
    """The entry of a file that no list shows: of no known folder, a broken link, or the image part of a model.

    Raises ModelFileError for what is no file.
    """
    if not folders.is_file(path) and not folders.is_broken_link(path):
        check_file(path)  # says what it is
    try:
        paths = split_parts(path)
    except ModelFileError:  # a later part, or one that lacks others
        paths = [path]
    parts = [replace(places.at(part), place=places.keeper(part)) for part in paths]
    return _entry(str(path), parts, spec_of(parts[0], load_catalog()) if len(parts) == 1 else None, _used())


def remember_use(path: Path) -> None:
    """Note that the model at `path` was used now. A state folder that cannot be written is no error."""
    used = _used()
    used[os.path.realpath(path)] = time.time()
    newest = sorted(used.items(), key=lambda item: item[1])[-_REMEMBERED:]
    new = state_dir() / f"used.{os.getpid()}"
    try:
        state_dir().mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(dict(newest), indent=1) + "\n", encoding="utf-8")
        new.replace(state_dir() / "used.json")
    except OSError:
        with suppress(OSError):
            new.unlink()


def pull_name(entry: Entry) -> str | None:
    """What to give to `pull` to fetch it again; None when it is not known where it is from."""
    path = entry.paths[0]
    if entry.spec:
        return entry.spec.name
    for spec in load_catalog().models.values():
        if path in own_paths(spec):
            return spec.name
    known = record.last(path)
    if known and known.source == record.MADE:
        return None
    if entry.name.startswith("hf:"):
        return entry.name
    if known is None or not known.source.startswith(("hf:", "http")):
        return None
    return f"{known.source.partition('@')[0]}/{known.file}" if known.source.startswith("hf:") else known.source


def ollama_name(entry: Entry) -> str | None:
    """What Ollama calls a model of its own, whatever its name is here."""
    return next((file.ollama for file in places.ollama_files() if file.path in entry.paths), None)


def group_of(path: Path) -> tuple[Path, str]:
    """The same for all parts of one model, and for no other."""
    return path.parent, quants.whole_name(path.name)


# --- which files make up which model, and what to call them ------------------------------------------------------


def _groups() -> list[list[PlacedFile]]:
    """The files that belong together, in the order in which `locate` prefers them."""
    groups: dict[tuple[Path, str], dict[Path, PlacedFile]] = {}
    for file in places.all_files():
        if not quants.is_projector(file.file):
            parts = groups.setdefault(group_of(file.path), {})
            parts.setdefault(file.path, file)
    return [list(parts.values()) for parts in groups.values()]


def _numbers(groups: list[list[PlacedFile]]) -> list[int]:
    """For each group the number of its model: the same for the same files under other names."""
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(tuple(_inode(part.path) for part in parts), len(numbers)) for parts in groups]


def _claims(groups: list[list[PlacedFile]], numbers: list[int]) -> dict[str, int]:
    """The model that each name means: `locate` takes the first that it fits, and so does this."""
    claims: dict[str, int] = {}
    for parts, number in zip(groups, numbers, strict=True):
        for name in _possible(parts[0]):
            claims.setdefault(name.lower(), number)
    return claims


def _names(models: list[list[PlacedFile]], specs: list[ModelSpec | None], claims: dict[str, int]) -> list[str]:
    """A name for each that means it and no other."""
    firsts = [parts[0] for parts in models]
    owners: dict[str, int] = {}
    for number in sorted(range(len(models)), key=lambda n: _rank(firsts[n], specs[n])):
        if spec := specs[number]:
            owners.setdefault(spec.name, number)
    owners = claims | owners
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
    names = [first.name]
    if first.repo:
        names += [str(HubReference(first.repo, None, None, first.file))]
    if first.repo and first.commit:
        revision = first.commit[:_SHORT_COMMIT]
        names += [str(HubReference(first.repo, revision, first.quant, None if first.quant else first.file))]
        names += [str(HubReference(first.repo, revision, None, first.file))]
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
        first=parts[0],
        paths=tuple(part.path for part in parts),
        size=sum(part.size for part in parts),
        place=parts[0].place,
        spec=spec,
        last_used=used.get(os.path.realpath(parts[0].path)),
        sha256=tuple(part.sha256 or (spec.sha256 if spec else None) for part in parts),
    )


def _path_of(name: str) -> Path:
    try:
        return locate(name).path
    except ModelNotFoundError as e:
        if not e.hint.startswith(("get it with", "run: ")):
            raise
        raise ModelNotFoundError(e.message, hint="what is here: pagedrun list") from e


def _broken_link(name: str) -> Path | None:
    """A link in the models folder that leads to nothing: no model, and still something to remove."""
    if not isinstance(parse(name), PathReference):
        return None
    return next(filter(folders.is_broken_link, (Path(name).absolute(), models_dir() / name)), None)


def _inode(path: Path) -> object:
    found = folders.found_at(path)
    return (found.st_dev, found.st_ino) if found else path


# --- the rest ----------------------------------------------------------------------------------------------------


def _used() -> dict[str, float]:
    try:
        used = json.loads((state_dir() / "used.json").read_text(encoding="utf-8"))
        return {path: float(at) for path, at in used.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
