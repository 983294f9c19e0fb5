"""Models that `pull` has begun to fetch and not finished: what they are called, how far they are.

MODELS/.pull/PATH/part    the bytes so far of what will be MODELS/PATH; see `part`
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pagedrun.catalog import ModelSpec, load_catalog
from pagedrun.hub import folders, part, quants
from pagedrun.hub.known import own_paths
from pagedrun.hub.library import Entry, entries, group_of
from pagedrun.hub.reference import HubReference, UrlReference, parse
from pagedrun.paths import models_dir


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One model. name: what to type to remove it. pull_name: what `pull` goes on with, None where that is not known.

    finals: where the files will be that are not whole. size: bytes that are here, of whole parts too; total: in the
    end, None where that is not known. is_again: it is here already, and is fetched anew.
    """

    name: str
    pull_name: str | None
    finals: tuple[Path, ...]
    size: int
    total: int | None
    is_again: bool


def unfinished(here: list[Entry] | None = None) -> list[Unfinished]:
    """All that are here, by name. `here`: the models that are, if known already."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for final in _finals():
        groups.setdefault(group_of(final), []).append(final)
    if not groups:
        return []
    here = entries() if here is None else here
    by_group = {group_of(entry.paths[0]): entry for entry in here}
    taken = Counter(entry.name.lower() for entry in here)
    taken.update(_short_name(finals[0]).lower() for group, finals in groups.items() if group not in by_group)
    found = [_described(finals, by_group.get(group), taken) for group, finals in groups.items()]
    return sorted(found, key=lambda one: one.name.casefold())


def means(name: str, one: Unfinished) -> bool:
    """Whether it is what the user typed."""
    if name == one.name:
        return True
    final = one.finals[0]
    spec = load_catalog().get(name)
    if spec is not None:
        return group_of(final) in map(group_of, own_paths(spec))
    reference = parse(name)
    if isinstance(reference, HubReference):
        return _is_of(final, reference)
    if isinstance(reference, UrlReference):
        return final == models_dir() / reference.file_name
    return group_of(final) in (group_of(models_dir() / name), group_of(Path(name).absolute()))


def _is_of(final: Path, reference: HubReference) -> bool:
    repo, file = _in_repository(final)
    if repo.lower() != reference.repo.lower():
        return False
    if reference.file is not None:
        return quants.whole_name(reference.file) == quants.whole_name(file)
    is_wanted = reference.quant is None or quants.quant_of(file) == reference.quant.upper()
    return is_wanted and not quants.is_projector(file)


def _finals() -> list[Path]:
    begun = part.folder_of(models_dir())
    return [models_dir() / path.parent.relative_to(begun) for path in sorted(begun.rglob("part"))]


def _described(finals: list[Path], entry: Entry | None, taken: Counter[str]) -> Unfinished:
    name = entry.name if entry else _short_name(finals[0])
    if not entry and taken[name.lower()] > 1:
        name = _long_name(finals[0])
    spec = _spec_at(finals[0])
    whole = [path for path in entry.paths if path not in finals] if entry else []
    is_one_file = quants.part_of(finals[0].name) is None
    return Unfinished(
        name=name,
        pull_name=_pull_name(name, finals[0], spec),
        finals=tuple(finals),
        size=sum(part.bytes_of(final) for final in finals) + sum(map(folders.size_of, whole)),
        total=spec.size if spec else part.total_of(finals[0]) if is_one_file else None,
        is_again=any(final.exists() for final in finals),
    )


def _pull_name(name: str, final: Path, spec: ModelSpec | None) -> str | None:
    if spec:
        return name
    if final.parent != models_dir():
        return name if final.name.lower().endswith(".gguf") else None  # safetensors are not for `pull`
    address = part.address_of(final)
    return UrlReference(address).source if address else None


def _short_name(final: Path) -> str:
    if spec := _spec_at(final):
        return spec.name
    repo, file = _in_repository(final)
    quant = quants.quant_of(file)
    is_model = file.lower().endswith(".gguf") and not quants.is_projector(file)
    return f"hf:{repo}:{quant}" if repo and quant and is_model else _long_name(final)


def _spec_at(final: Path) -> ModelSpec | None:
    """The registry's entry that is kept there."""
    models = load_catalog().models.values()
    return next((spec for spec in models if group_of(final) in map(group_of, own_paths(spec))), None)


def _long_name(final: Path) -> str:
    repo, file = _in_repository(final)
    return f"hf:{repo}/{file}" if repo else file


def _in_repository(final: Path) -> tuple[str, str]:
    """OWNER/REPO and the path in it; "" and the path for what is of none."""
    parts = final.relative_to(models_dir()).parts
    return ("/".join(parts[:2]), "/".join(parts[2:])) if len(parts) >= 3 else ("", "/".join(parts))
