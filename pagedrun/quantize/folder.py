"""A model as Hugging Face's libraries keep it: config.json, a tokenizer, weights as safetensors, in one folder.

    model.safetensors                      u64 length of the header, the header as JSON, the weights
    model.safetensors.index.json           for weights in several files: tensor -> file
    1_Pooling/, 2_Dense/, ...              in a model of sentence-transformers: more files of the same kinds

Looked at before the converter is started: what is missing or cut short can be said at once, and in plain words.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from pagedrun.errors import ModelFileError, UsageError
from pagedrun.units import count, size

_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken", "*.model")
_DATA = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".tiktoken", ".jinja", ".md")
_MODULE = re.compile(r"\d+_\w+")
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_SHOWN = 6
_MAX_HEADER = 100 << 20  # as the safetensors package has it
_FETCH = "fetch the whole repository again"


def check(folder: Path) -> None:
    """Raises UsageError for a folder without a model, ModelFileError for one whose model cannot be converted."""
    names = [str(path.relative_to(folder)) for path in folder.glob("*") if path.is_file()]
    check_names(names, str(folder))
    _read_json(folder / "config.json")
    _require_all(_indexed(folder) - set(names), str(folder))
    for path in sorted(folder.glob("*.safetensors")):
        _check_whole(path)


def check_names(names: Collection[str], where: str) -> None:
    """What can be told from the names of the files alone. Raises UsageError, ModelFileError, which name `where`."""
    weights = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    if not weights:
        raise _no_weights(names, where)
    if "config.json" not in names:
        raise ModelFileError(f"{where} holds no config.json", hint=_FETCH)
    parts = [part for name in weights if (part := _PART.fullmatch(name))]
    every = {
        f"{part['name']}-{number:05}-of-{part['total']}.safetensors"
        for part in parts
        for number in range(1, int(part["total"]) + 1)
    }
    _require_all(every - set(weights), where)
    if not any(fnmatch(name, pattern) for name in names for pattern in _TOKENIZERS):
        raise ModelFileError(f"{where} holds no tokenizer", hint=f"it needs tokenizer.json or the like: {_FETCH}")


def is_data(file: str) -> bool:
    """Whether a file, by its path inside the folder or repository, is for the converter: data alone, no program."""
    folder, _, name = file.rpartition("/")
    is_seen = not name.startswith(".") and (not folder or bool(_MODULE.fullmatch(folder)))
    return is_seen and PurePosixPath(name).suffix in _DATA


def data_files(folder: Path) -> list[str]:
    """The paths inside the folder of what the converter is given."""
    files = (path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    return sorted(name for path in files if is_data(name := path.relative_to(folder).as_posix()))


def weights_size(folder: Path) -> int:
    """Bytes of the weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _indexed(folder: Path) -> set[str]:
    """The files of weights that the folder's index names. Raises ModelFileError."""
    index = folder / _INDEX
    if not index.is_file():
        return set()
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise ModelFileError(f"{index} is damaged: it has no weight_map", hint=_FETCH)
    return {str(name) for name in files.values()}


def _require_all(missing: set[str], where: str) -> None:
    if missing:
        n_files = count(len(missing), "file")
        raise ModelFileError(f"{where} lacks {n_files} of its weights, the first is {min(missing)}", hint=_FETCH)


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


def _no_weights(names: Collection[str], where: str) -> UsageError | ModelFileError:
    if ggufs := sorted(name for name in names if name.lower().endswith(".gguf")):
        listed = ", ".join(shlex.quote(f"{where}/{name}") for name in ggufs[:_SHOWN])
        more = f", and {len(ggufs) - _SHOWN} more" if len(ggufs) > _SHOWN else ""
        what = "the file in it" if len(ggufs) == 1 else "one of the files in it"
        return UsageError(f"{where} is a folder", hint=f"name {what}: {listed}{more}")
    if any(fnmatch(name, pattern) for name in names for pattern in ("*.bin", "*.pt*")):
        model = shlex.quote(where.rpartition("/")[2])
        return ModelFileError(
            f"{where} holds its weights as pickle files, which can run any program when they are read",
            hint=f"get the model as safetensors, or as GGUF: pagedrun search {model}",
        )
    return UsageError(f"{where} holds no *.safetensors", hint="name a GGUF file, or the folder of a model")


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
