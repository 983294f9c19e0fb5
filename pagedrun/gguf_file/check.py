"""Whether a file can be a model, from its first bytes and its name, before anything is loaded.

    offset  0  magic "GGUF"
            4  version, u32            2 or 3; 1 had other integer sizes and is gone
            8  number of tensors, u64
           16  number of metadata entries, u64

A big-endian file has the same magic and its version's bytes reversed. Whether all tensors are really there is
found out by llama.cpp, which looks at every tensor's place against the file's size when it loads.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from pagedrun.errors import ModelFileError
from pagedrun.units import size

MAGIC = b"GGUF"
HEADER_BYTES = 24
VERSIONS = (2, 3)

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf")

# How files that people take for models begin, and what to say about them.
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch it with: git lfs pull"),
    (b"<", "a web page", "the download was answered with a page; fetch the file itself"),
    (b"PK\x03\x04", "a PyTorch or zip file", "convert the model to GGUF, or get a GGUF of it"),
    (b"lmgg", "a file in a format older than GGUF", "get a GGUF of the model"),
    (b"tjgg", "a file in a format older than GGUF", "get a GGUF of the model"),
    (b"fmgg", "a file in a format older than GGUF", "get a GGUF of the model"),
)


def check_file(path: Path) -> list[Path]:
    """All parts of the model that begins with `path`, each checked; one path for a model in one file.

    Reads 24 bytes of each. Raises ModelFileError for what cannot be a model: absent, a folder, unreadable, empty,
    another format, another byte order, an old or unknown version, a part that is not the first, a missing part.
    """
    parts = split_parts(path)
    for part in parts:
        check_header(part)
    return parts


def split_parts(path: Path) -> list[Path]:
    """The files of a split model, in order, from the path of the first; [path] for a model in one file.

    Raises ModelFileError when `path` is a later part, or when parts are missing.
    """
    match = _SPLIT.fullmatch(path.name)
    if not match:
        return [path]
    number, total = int(match["number"]), int(match["total"])
    if not 1 <= number <= total:
        raise ModelFileError(f"{path.name} cannot be part {number} of {total}", hint="was the file renamed?")
    parts = [path.with_name(f"{match['stem']}-{i:05d}-of-{total:05d}.gguf") for i in range(1, total + 1)]
    if number != 1:
        raise ModelFileError(
            f"{path.name} is part {number} of {total} of a split model", hint=f"load the first part: {parts[0]}"
        )
    missing = [part.name for part in parts if not part.exists()] if path.exists() else []
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {total} parts of the model are missing, the first is {missing[0]}",
            hint=f"put all parts into {path.parent}",
        )
    return parts


def check_header(path: Path) -> None:
    """The first 24 bytes of one file. Raises ModelFileError for what cannot be a GGUF that llama.cpp loads."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ModelFileError(f"{path} is not a file that can be mapped into memory")  # a pipe would block for ever
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ModelFileError(f"{path} is a folder, not a model file", hint=_ggufs_in(path)) from None
    except OSError as e:
        raise ModelFileError(f"cannot read {path}: {e.strerror}") from e
    if not head.startswith(MAGIC):
        _reject_other(path, head)
    if len(head) < HEADER_BYTES:
        raise ModelFileError(
            f"{path} is truncated: it ends after {size(len(head))}, within the header", hint="fetch the file again"
        )
    _check_version(path, head)


def _check_version(path: Path, head: bytes) -> None:
    version, n_tensors, n_metadata = struct.unpack_from("<IQQ", head, 4)
    swapped = struct.unpack_from(">I", head, 4)[0]
    if version not in VERSIONS and swapped in (1, *VERSIONS):
        raise ModelFileError(
            f"{path} is a big-endian GGUF, made for another kind of processor", hint="get a little-endian GGUF of it"
        )
    if version not in VERSIONS:
        age = "too old" if version < VERSIONS[0] else "unknown"
        raise ModelFileError(
            f"{path} has GGUF version {version}, which is {age} (supported: 2 and 3)",
            hint="get a newer conversion of it",
        )
    # Each entry takes at least some bytes in the file: counts beyond its size are garbage, not a model.
    n_bytes = path.stat().st_size
    if max(n_tensors, n_metadata) > n_bytes:
        raise ModelFileError(
            f"{path} is damaged: {n_tensors:,} tensors and {n_metadata:,} metadata entries in {size(n_bytes)}",
            hint="fetch the file again",
        )


def _reject_other(path: Path, head: bytes) -> None:
    if not head:
        raise ModelFileError(f"{path} is empty", hint="fetch the file again")
    for beginning, what, hint in _OTHERS:
        if head.lstrip().startswith(beginning):
            raise ModelFileError(f"{path} is {what}", hint=hint)
    # safetensors: the length of a JSON header as u64, then the header.
    if head[8:10] in (b'{"', b"{ "):
        raise ModelFileError(f"{path} is a safetensors file", hint="convert the model to GGUF, or get a GGUF of it")
    raise ModelFileError(
        f"{path} is not a GGUF file: it begins with {head[:4]!r}, not with {MAGIC!r}", hint="is the path right?"
    )


def _ggufs_in(folder: Path) -> str:
    names = sorted(p.name for p in folder.glob("*.gguf"))
    return f"it holds {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if names else ""
