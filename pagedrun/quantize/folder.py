"""A model as Hugging Face's libraries keep it: config.json, a tokenizer, weights as safetensors, in one folder.

    model.safetensors                      u64 length of the header, the header as JSON, the weights
    model.safetensors.index.json           for weights in several files: tensor -> file

Looked at before the converter is started: what is missing or cut short can be said at once, and in plain words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagedrun.errors import ModelFileError, UsageError
from pagedrun.units import size

_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken", "*.model")
_MAX_HEADER = 100 << 20  # as the safetensors package has it
_FETCH = "fetch the whole repository again"


def check(folder: Path) -> None:
    """Raises UsageError for a folder without a model, ModelFileError for one whose model cannot be converted."""
    if not any(folder.glob("*.safetensors")):
        raise _no_weights(folder)
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder} holds no config.json", hint=_FETCH)
    _read_json(folder / "config.json")
    if missing := missing_files(folder):
        raise ModelFileError(
            f"{len(missing)} files of the weights are missing in {folder}, the first is {missing[0]}", hint=_FETCH
        )
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise ModelFileError(f"{folder} holds no tokenizer", hint=f"it needs tokenizer.json or the like: {_FETCH}")
    for path in sorted(folder.glob("*.safetensors")):
        _check_whole(path)


def missing_files(folder: Path) -> list[str]:
    """The files of weights that the folder's index names and that are not there. Raises ModelFileError."""
    index = folder / _INDEX
    if not index.is_file():
        return []
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise ModelFileError(f"{index} is damaged: it has no weight_map", hint=_FETCH)
    return sorted({str(name) for name in files.values() if not (folder / str(name)).is_file()})


def is_complete(folder: Path) -> bool:
    """Whether a model is there that could be converted."""
    try:
        check(folder)
    except (UsageError, ModelFileError):
        return False
    return True


def name(folder: Path) -> str:
    """What the folder's model is called; a snapshot of the Hugging Face cache has its commit's hash as its name."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    return folder.name


def _no_weights(folder: Path) -> UsageError | ModelFileError:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return UsageError(f"{folder} is a folder", hint=f"name the file in it: {folder / ggufs[0]}")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        return ModelFileError(
            f"{folder} holds its weights as pickle files, which can run any program when they are read",
            hint="get the model as safetensors, or as GGUF: pagedrun search",
        )
    return UsageError(f"{folder} holds no *.safetensors", hint="name a GGUF file, or the folder of a model")


def _check_whole(path: Path) -> None:
    """Raises ModelFileError unless the file is as long as its header says."""
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER, n_bytes - 8):
            raise ModelFileError(f"{path} is not a safetensors file, or is truncated", hint=_FETCH)
        header = file.read(length)
    try:
        end = max(_ends(json.loads(header)), default=0)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ModelFileError(f"{path} is damaged: its header cannot be read", hint=_FETCH) from e
    if n_bytes != 8 + length + end:
        raise ModelFileError(
            f"{path} has {size(n_bytes)}, and {size(8 + length + end)} were expected: it is truncated or damaged",
            hint=_FETCH,
        )


def _ends(header: dict[str, Any]) -> Iterator[int]:
    for tensor, facts in header.items():
        if tensor != "__metadata__":
            yield int(facts["data_offsets"][1])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ModelFileError(f"{path} cannot be read: {e}", hint=_FETCH) from e
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not what its name says", hint=_FETCH)
    return value
