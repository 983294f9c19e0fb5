"""What the user named to quantise, and where the result goes.

a name, a path of a GGUF, hf:OWNER/REPO:QUANT, ...      the files of one GGUF model
a folder with config.json and *.safetensors             to be converted first
hf:OWNER/REPO without a GGUF on this machine            such a folder, once it has been fetched
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedrun import hub
from pagedrun.errors import ModelFileError, ModelNotFoundError, UsageError
from pagedrun.gguf_file import check_file, read_facts
from pagedrun.hub import quants
from pagedrun.hub.reference import HubReference, parse
from pagedrun.paths import expanded, models_dir
from pagedrun.quantize import folder

_NO_MODELS = {"imatrix": "an importance matrix", "vocabulary": "a vocabulary without weights"}
_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A model in GGUF. name: what its result is named after; beside: the folder of a typed path, else None."""

    parts: tuple[Path, ...]
    name: str
    beside: Path | None = None

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(part.stat().st_size for part in self.parts)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A model as Hugging Face's libraries keep it: config.json, a tokenizer, *.safetensors."""

    folder: Path
    name: str
    beside: Path | None = None

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


@dataclass(frozen=True, slots=True)
class RepositorySource:
    """Such a folder on a hub."""

    reference: HubReference

    @property
    def name(self) -> str:
        """What its result is named after."""
        return self.reference.repo.partition("/")[2]


Source = GgufSource | FolderSource | RepositorySource


def resolve(text: str, locate: Callable[[str], hub.LocatedModel] = hub.locate) -> Source:
    """What `text` means; `locate` finds, or fetches, a model in GGUF.

    Raises ModelNotFoundError, ModelFileError, UsageError, and what `locate` raises.
    """
    path = expanded(text)
    if not text.startswith(("hf:", "http")) and path.is_dir():
        return folder_source(path.absolute(), beside=path.absolute().parent)
    reference = parse(text) if text.startswith(("hf:", "http")) else None
    if isinstance(reference, HubReference) and not reference.quant and not reference.file:
        return _repository(text, reference)
    found = locate(text)
    typed_path = found.name == str(found.path) and found.path.parent != models_dir()
    return gguf_source(found.path, beside=found.path.parent if typed_path else None)


def _repository(text: str, reference: HubReference) -> Source:
    """A repository of which no file was named: a GGUF of it that is here, else its safetensors, here or there."""
    try:
        return gguf_source(hub.locate(text).path)
    except ModelNotFoundError:
        fetched = _fetched_folder(reference)
        return folder_source(fetched) if fetched else RepositorySource(reference)


def gguf_source(path: Path, *, beside: Path | None = None) -> GgufSource:
    """The model whose first file is `path`. Raises ModelFileError, also for a GGUF that is no model."""
    check_file(path)
    facts = read_facts(path)
    if facts.kind in _NO_MODELS:
        raise ModelFileError(f"{path.name} cannot be quantised: it is {_NO_MODELS[facts.kind]}")
    return GgufSource(facts.parts, _base_name(path), beside)


def folder_source(path: Path, *, beside: Path | None = None) -> FolderSource:
    """The model in a folder. Raises UsageError for one that holds none, ModelFileError for one that is not whole."""
    folder.check(path)
    return FolderSource(path, folder.name(path), beside)


def _fetched_folder(reference: HubReference) -> Path | None:
    """The repository's safetensors where they have been fetched: by pagedrun, or by Hugging Face's libraries."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(reference.repo, "config.json", revision=reference.revision)
    folders = [] if reference.revision else [models_dir() / reference.repo]
    folders += [Path(cached).parent] if isinstance(cached, str) else []
    return next((path for path in folders if folder.is_complete(path)), None)


def output_path(wanted: Path | None, source: Source, type_name: str) -> Path:
    """Where the result goes: `wanted`, a file inside it when it is a folder, else beside the source or to the models.

    Raises UsageError.
    """
    name = f"{source.name}-{type_name}.gguf"
    if wanted is None:
        beside = None if isinstance(source, RepositorySource) else source.beside
        return (beside or models_dir()) / name
    path = expanded(wanted).absolute()
    if path.is_dir():
        return path / name
    if path.suffix != ".gguf":
        raise UsageError(f"-o: {wanted} does not end in .gguf", hint=f"a folder that exists is fine: {name} goes there")
    if not path.parent.is_dir():
        raise UsageError(f"-o: there is no folder {path.parent}")
    return path


def check_output(path: Path, source: Source, *, force: bool) -> None:
    """Raises UsageError when the result must not be written to `path`."""
    if not path.exists():
        return
    if not path.is_file():
        raise UsageError(f"{path} is no file")
    if isinstance(source, GgufSource) and any(path.samefile(part) for part in source.parts):
        raise UsageError(f"{path} is the source itself", hint="write somewhere else with -o")
    if not force:
        raise UsageError(f"{path} exists", hint="choose another name with -o, or overwrite it with --force")


def _base_name(path: Path) -> str:
    """The file's name without what says how it is stored: SmolLM2-135M for SmolLM2-135M-F16-00001-of-00002.gguf."""
    stem = _PART.sub("", path.stem)
    quant = quants.quant_of(path.name)
    if quant and stem.upper().endswith(quant) and len(stem) > len(quant) + 1:
        return stem[: -len(quant)].rstrip("-._")
    return stem
