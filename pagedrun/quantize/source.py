"""What the user named to quantise, and where the result goes.

a name, a path of a GGUF, hf:OWNER/REPO:QUANT, ...      the files of one GGUF model
a folder with config.json and *.safetensors             to be converted first
hf:OWNER/REPO                                           its GGUF with 16 bits a weight, else its safetensors
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from pagedrun import hub
from pagedrun.errors import ModelFileError, ModelNotFoundError, UsageError
from pagedrun.gguf_file import check_file, read_facts
from pagedrun.hub import quants
from pagedrun.hub.pullable import Pullable
from pagedrun.hub.reference import HubReference, parse
from pagedrun.paths import cache_dir, expanded, models_dir
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
    """A model as Hugging Face's libraries keep it: config.json, a tokenizer, *.safetensors.

    is_fetched: by pagedrun for the conversion, and no longer needed after it.
    """

    folder: Path
    name: str
    beside: Path | None = None
    is_fetched: bool = False

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return folder.weights_size(self.folder)


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """A model that has to be fetched first: one in GGUF, or such a folder."""

    pullable: Pullable
    beside = None

    @property
    def size(self) -> int:
        """Bytes of all its files, as far as the hub says."""
        return self.pullable.size or 0

    @property
    def is_folder(self) -> bool:
        """Whether it has to be converted, too."""
        return any(file.path.endswith(".safetensors") for file in self.pullable.files)

    @property
    def name(self) -> str:
        """What its result is named after."""
        return self.pullable.title if self.is_folder else _base_name(Path(self.pullable.files[0].path))


Source = GgufSource | FolderSource | RemoteSource


def resolve(text: str) -> GgufSource | FolderSource:
    """What `text` means on this machine. Raises ModelNotFoundError, ModelFileError, UsageError."""
    reference = parse(text)
    if isinstance(reference, HubReference):
        return _of_hub(reference)
    path = expanded(text)
    if path.is_dir():
        return folder_source(path.absolute(), beside=path.absolute().parent)
    if path.suffix == ".safetensors" and path.is_file():
        hint = f"name the folder: pagedrun quantize {shlex.quote(str(path.parent))}"
        raise UsageError(f"{text} is one file of a model, which is its whole folder", hint=hint)
    found = hub.locate(text)
    typed_path = found.name == str(found.path) and found.path.parent != models_dir()
    return gguf_source(found.path, beside=found.path.parent if typed_path else None)


def whole_repository(text: str) -> HubReference | None:
    """The repository, where `text` names one and nothing in it."""
    reference = parse(text)
    return reference if isinstance(reference, HubReference) and not reference.quant and not reference.file else None


def _of_hub(reference: HubReference) -> GgufSource | FolderSource:
    """What is here of a repository: the file that was named; else one with 16 bits a weight, else its safetensors."""
    if reference.quant or reference.file:
        return gguf_source(hub.locate(str(reference)).path)
    for quant in quants.ORIGINALS:
        try:
            return gguf_source(hub.locate(str(replace(reference, quant=quant))).path)
        except ModelNotFoundError:
            continue
    for path in (fetched_folder(reference), _in_hugging_face_cache(reference)):
        if path and folder.is_complete(path):
            is_fetched = path == fetched_folder(reference)
            return FolderSource(path, reference.repo.partition("/")[2], is_fetched=is_fetched)
    raise ModelNotFoundError(f"{reference} is not on this machine", hint="add --pull to fetch it")


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


def fetched_folder(reference: HubReference) -> Path:
    """Where the files of a repository are while it is fetched and converted, and no longer."""
    revision = f"@{quote(reference.revision, safe='')}" if reference.revision else ""
    return cache_dir() / "repositories" / f"{reference.repo}{revision}"


def _in_hugging_face_cache(reference: HubReference) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(reference.repo, "config.json", revision=reference.revision)
    return Path(cached).parent if isinstance(cached, str) else None


def output_path(wanted: Path | None, source: Source, type_name: str) -> Path:
    """Where the result goes: `wanted`, a file inside it when it is a folder, else beside the source or to the models.

    Raises UsageError.
    """
    name = f"{source.name}-{type_name}.gguf"
    if wanted is None:
        return (source.beside or models_dir()) / name
    path = expanded(wanted).absolute()
    if path.is_dir():
        return path / name
    if _PART.search(path.stem):
        raise UsageError(
            f"-o: {wanted} is the name of a part of a split model, and the result is one file",
            hint=f"for example -o {_PART.sub('', path.stem)}.gguf",
        )
    if path.suffix != ".gguf":
        raise UsageError(f"-o: {wanted} does not end in .gguf", hint=f"a folder that exists is fine: {name} goes there")
    if not path.parent.is_dir():
        raise UsageError(f"-o: there is no folder {path.parent}")
    return path


def check_output(path: Path, source: Source, *, force: bool) -> None:
    """Raises UsageError when the result must not be written to `path`."""
    if not os.path.lexists(path):
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file")
    if isinstance(source, GgufSource) and any(path.exists() and path.samefile(part) for part in source.parts):
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
