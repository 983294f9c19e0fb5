"""The header of a GGUF file: its metadata and its list of tensors.

    magic, version, counts                         see `check`
    metadata       name, type, value               as many as counted
    tensors        name, sizes, type, offset       as many as counted
    padding to the alignment
    data           the tensors, one behind the other, each padded

Why not gguf.GGUFReader: it believes what the file says (a length in a damaged file makes it allocate that much, or
run for ever), and it makes objects of every single token of a vocabulary, which takes seconds. Here an array stays in
the file until someone asks for it. What llama.cpp refuses (ggml/src/gguf.cpp) is refused here, with a reason.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file.check import HEADER_BYTES, check_header
from pagedrun.gguf_file.cursor import Cursor
from pagedrun.gguf_file.groups import group_names
from pagedrun.gguf_file.types import FORMATS, TENSOR_TYPES, ValueType
from pagedrun.units import size

# Far above what any model has; what they bound is the work and memory that a damaged file can cause.
_MAX_ENTRIES = 1 << 16  # of metadata, and of tensors
_MAX_NAME = 1 << 10
_MAX_TEXT = 1 << 20  # longer ones stay in the file; the longest chat templates have some 20 KB
_MAX_TEXTS = 16 << 20  # of all texts together
_MAX_ALIGNMENT = 1 << 20

_MAX_TENSOR_NAME = 63  # GGML_MAX_NAME, less the zero behind it
_MAX_DIMS = 4
_MAX_ELEMENTS = 2**63 - 1
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that stayed in the file: an array, which `Header.elements` reads, or a very long text.

    type: of an array's elements, or STRING for a long text. count: elements, or the text's bytes. offset: in the file.
    """

    type: ValueType
    count: int
    offset: int
    is_array: bool = True


Value = bool | int | float | str | Stored


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. shape: sizes in ggml's order, the fastest first. offset: of its data in the file, in bytes.

    group: what it is for, one of `groups.GROUPS`.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    offset: int
    group: str = "other"

    @property
    def n_elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the data of one file. size: of the whole file, in bytes."""

    path: Path
    size: int
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]

    def number(self, key: str) -> int | None:
        """A whole number of the metadata; None when it is absent or something else."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """A text of the metadata; None when it is absent, something else, or so long that it stayed in the file."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def elements(self, key: str, limit: int) -> list[Value]:
        """The first `limit` elements of an array of the metadata; none when it is absent or something else."""
        value = self.metadata.get(key)
        if not isinstance(value, Stored) or not value.is_array:
            return []
        count = min(value.count, limit)
        with _opened(self.path, value.offset) as cursor:
            if value.type is ValueType.STRING:
                return [cursor.read(cursor.number("Q")).decode("utf-8", "replace") for _ in range(count)]
            layout = f"<{count}{FORMATS[value.type]}"
            return list(struct.unpack(layout, cursor.read(struct.calcsize(layout))))


def read_header(path: Path) -> Header:
    """The header of the one file at `path`, whatever kind of GGUF it is. Raises ModelFileError."""
    check_header(path)
    with _opened(path, 4) as cursor:
        version, n_tensors, n_metadata = (cursor.number(code) for code in "IQQ")
        for what, count in (("tensors", n_tensors), ("metadata entries", n_metadata)):
            if count > _MAX_ENTRIES:
                raise cursor.damaged(f"{count:,} {what}")
        assert cursor.at == HEADER_BYTES
        metadata = _metadata(cursor, n_metadata)
        tensors = _tensors(cursor, n_tensors, _alignment(cursor, metadata))
        return Header(path, cursor.size, version, metadata, tensors)


@contextmanager
def _opened(path: Path, at: int) -> Iterator[Cursor]:
    try:
        file = path.open("rb")
    except OSError as e:
        raise ModelFileError(f"cannot read {path}: {e.strerror}") from e
    with file:
        yield Cursor(file.fileno(), path, at)


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    text_left = _MAX_TEXTS
    for number in range(count):
        key = _name(cursor, f"metadata entry {number + 1}", _MAX_NAME)
        if not key or key in metadata:
            raise cursor.damaged(f"two metadata entries are named {key!r}" if key else "a metadata entry has no name")
        value = _value(cursor, key, min(text_left, _MAX_TEXT))
        text_left -= len(value) if isinstance(value, str) else 0
        metadata[key] = value
    return metadata


def _name(cursor: Cursor, what: str, limit: int) -> str:
    n_bytes = cursor.number("Q")
    if n_bytes > limit:
        raise cursor.damaged(f"the name of {what} has {n_bytes:,} bytes")
    return cursor.read(n_bytes).decode("utf-8", "replace")


def _value(cursor: Cursor, key: str, longest: int) -> Value:
    kind = _value_type(cursor, key)
    if kind is ValueType.STRING:
        return _text(cursor, longest)
    if kind is not ValueType.ARRAY:
        number: bool | int | float = struct.unpack(f"<{FORMATS[kind]}", cursor.read(struct.calcsize(FORMATS[kind])))[0]
        return number
    kind = _value_type(cursor, key)
    if kind is ValueType.ARRAY:  # the format has them, llama.cpp does not load them, and no model uses them
        raise cursor.damaged(f"{key} is an array of arrays")
    count = cursor.number("Q")
    array = Stored(kind, count, cursor.at)
    if kind is ValueType.STRING:
        cursor.skip_texts(count)
    else:
        cursor.skip(count * struct.calcsize(FORMATS[kind]))
    return array


def _value_type(cursor: Cursor, key: str) -> ValueType:
    number = cursor.number("I")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.damaged(f"{key} has the unknown type {number}") from None


def _text(cursor: Cursor, longest: int) -> str | Stored:
    n_bytes = cursor.number("Q")
    if n_bytes > longest:
        text = Stored(ValueType.STRING, n_bytes, cursor.at, is_array=False)
        cursor.skip(n_bytes)
        return text
    return cursor.read(n_bytes).decode("utf-8", "replace")


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, int) and 0 < alignment <= _MAX_ALIGNMENT and alignment.bit_count() == 1:
        return alignment
    raise cursor.damaged("its alignment is no power of two")


def _tensors(cursor: Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    end = 0  # of the data so far, from where the data begins
    for number in range(count):
        tensor = _tensor(cursor, number)
        if tensor.name in found:
            raise cursor.damaged(f"two tensors are named {tensor.name!r}")
        # As llama.cpp wants it: one behind the other. So none can overlap another, or lie askew.
        if tensor.offset != end:
            raise cursor.damaged(f"tensor {tensor.name!r} is at {tensor.offset:,} and should be at {end:,}")
        found[tensor.name] = tensor
        end += _padded(tensor.n_bytes, alignment)
    begin = _padded(cursor.at, alignment)
    groups = group_names(found)
    tensors = tuple(replace(t, offset=begin + t.offset, group=groups[t.name]) for t in found.values())
    needed = max((t.offset + t.n_bytes for t in tensors), default=0)
    if needed > cursor.size:
        raise ModelFileError(
            f"{cursor.path} is truncated: it has {size(cursor.size)} of {size(needed)}", hint="fetch the file again"
        )
    return tensors


def _tensor(cursor: Cursor, number: int) -> Tensor:
    """One entry of the list. Its offset is still the one from where the data begins."""
    name = _name(cursor, f"tensor {number + 1}", _MAX_TENSOR_NAME)
    n_dims = cursor.number("I")
    if n_dims > _MAX_DIMS:
        raise cursor.damaged(f"tensor {name!r} has {n_dims:,} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(n_dims))
    kind = TENSOR_TYPES.get(type_number := cursor.number("I"))
    if kind is None:
        raise ModelFileError(
            f"{cursor.path}: tensor {name!r} has the type {type_number}, which is not known to this pagedrun",
            hint="it is damaged, or it needs a newer pagedrun",
        )
    if max(shape, default=0) > _MAX_ELEMENTS or math.prod(shape) > _MAX_ELEMENTS:
        raise cursor.damaged(f"tensor {name!r} cannot have the sizes {' x '.join(map(str, shape))}")
    row = shape[0] if shape else 1
    if row % kind.block:
        raise cursor.damaged(f"tensor {name!r} has rows of {row:,}, which {kind.name} cannot store")
    n_bytes = math.prod(shape) // kind.block * kind.n_bytes
    return Tensor(name, kind.name, shape, n_bytes, cursor.number("Q"))


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
