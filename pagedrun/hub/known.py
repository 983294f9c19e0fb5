"""Which registry entry a file on this machine is, wherever it lies and whatever it is called there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pagedrun.catalog import Catalog, ModelSpec
from pagedrun.hub import quants, record
from pagedrun.hub.places import PlacedFile
from pagedrun.paths import models_dir


def spec_of(file: PlacedFile, catalog: Catalog) -> ModelSpec | None:
    """The entry of a file; of several that are the same file the one of its name, else the first."""
    found = [spec for spec in catalog.models.values() if is_of(file, spec)]
    return next((spec for spec in found if spec.file_name == file.path.name), found[0] if found else None)


def settings_of(file: PlacedFile, catalog: Catalog) -> ModelSpec | None:
    """The entry of a file; for one that was made from an entry's all that holds for it, too: `source` is ""."""
    known = record.read(file.path) or record.read(Path(os.path.realpath(file.path)))
    if (spec := spec_of(file, catalog)) or known is None or not known.derived:
        return spec
    spec = catalog.get(known.derived)
    if spec is None:
        return None
    base = spec.title.removesuffix(f" {quants.quant_of(spec.file)}")
    title = f"{base} {quants.quant_of(file.path.name) or ''}".rstrip()
    return replace(spec, title=title, source="", file="", size=None, sha256=None)


def is_of(file: PlacedFile, spec: ModelSpec) -> bool:
    """Whether a file is that entry's: by its sha256 where one is recorded, else by name and size."""
    if file.sha256 and spec.sha256:
        return file.sha256 == spec.sha256
    if spec.size is None:
        return _is_of_source(file, spec)
    return file.size == spec.size and spec.file_name in (file.path.name, Path(os.path.realpath(file.path)).name)


def own_paths(spec: ModelSpec) -> list[Path]:
    """Where a file of the registry is kept in the models folder: below its repository, or beside all others."""
    paths = [models_dir() / spec.file_name]
    if spec.source.startswith("hf:"):
        paths.insert(0, models_dir() / spec.source[3:].partition("@")[0] / spec.file)
    return paths


def _is_of_source(file: PlacedFile, spec: ModelSpec) -> bool:
    """For an entry of the user's that gives no size: whether the file lies where it would be put."""
    from_cache = f"hf:{file.repo}" == spec.source.partition("@")[0] and file.file == spec.file
    return from_cache or file.path in own_paths(spec)
