"""Damage to GGUF files of the kinds that hurt readers, and everything `pagedrun show` does with the result.

A good file is taken apart into its fields (`fields_of`), so that lengths, counts, types, sizes and offsets are hit and
not only text; then it is damaged at random (`mutate`) and shown (`show_all`).
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pagedrun.cli.models import show_json, show_text
from pagedrun.gguf_file import read_facts
from pagedrun.gguf_file.types import FORMATS, ValueType
from pagedrun.memory import FreeMemory

_EXTREMES = (
    0, 1, 2, 7, 8, 9, 12, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63,
    2**64 - 32, 2**64 - 1,
)  # fmt: skip


class Field(NamedTuple):
    """A number in the header: where it is, and how many bytes it has."""

    offset: int
    width: int


@dataclass(frozen=True)
class Base:
    """A good file: the bytes of its header, and its size; what lies between is zeros, which nobody reads.

    entries and tensors: where each begins and ends.
    """

    header: bytes
    size: int
    fields: list[Field]
    entries: list[tuple[int, int]]
    tensors: list[tuple[int, int]]


def take_apart(path: Path) -> Base:
    """The structure of a file that is known to be good."""
    data, size = path.read_bytes(), path.stat().st_size
    parser = _Parser(data)
    base = parser.parse()
    return Base(data[: parser.at + 4096], size, *base)


class _Parser:
    """Trusts the file, unlike the reader that is tested."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        self.fields: list[Field] = []

    def number(self, width: int) -> int:
        self.fields.append(Field(self.at, width))
        self.at += width
        return int.from_bytes(self.data[self.at - width : self.at], "little")

    def text(self) -> None:
        length = self.number(8)
        self.at += length

    def value(self, kind: int) -> None:
        if kind == ValueType.STRING:
            self.text()
        elif kind == ValueType.ARRAY:
            inner, count = self.number(4), self.number(8)
            for i in range(count if inner == ValueType.STRING else 0):
                if i < 3:
                    self.text()
                else:
                    self.at += 8 + struct.unpack_from("<Q", self.data, self.at)[0]
            if inner != ValueType.STRING:
                self.at += count * struct.calcsize(FORMATS[ValueType(inner)])
        else:
            self.number(struct.calcsize(FORMATS[ValueType(kind)]))

    def parse(self) -> tuple[list[Field], list[tuple[int, int]], list[tuple[int, int]]]:
        self.number(4)
        n_tensors, n_entries = self.number(8), self.number(8)
        spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for _ in range(n_entries):
            begin = self.at
            self.text()
            self.value(self.number(4))
            spans[0].append((begin, self.at))
        for _ in range(n_tensors):
            begin = self.at
            self.text()
            for _ in range(self.number(4)):
                self.number(8)
            self.number(4)
            self.number(8)
            spans[1].append((begin, self.at))
        return self.fields, *spans


# --- damage ----------------------------------------------------------------------------------------------------


def _flip_bits(data: bytearray, base: Base, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _flip_bits_of_a_field(data: bytearray, base: Base, rng: random.Random) -> None:
    field = _field(base, data, rng)
    data[field.offset + rng.randrange(field.width)] ^= 1 << rng.randrange(8)


def _extreme_field(data: bytearray, base: Base, rng: random.Random) -> None:
    field = _field(base, data, rng)
    near = (base.size, base.size - field.offset, base.size - field.offset - field.width, len(data), field.offset)
    value = rng.choice(_EXTREMES) if rng.random() < 0.7 else rng.choice(near) + rng.randint(-2, 2)
    _set(data, field, value)


def _shift_field(data: bytearray, base: Base, rng: random.Random) -> None:
    field = _field(base, data, rng)
    value = int.from_bytes(data[field.offset : field.offset + field.width], "little")
    _set(data, field, rng.choice((value + 1, value - 1, value * 2, value // 2, value << 32, value + 32, -value)))


def _swap_fields(data: bytearray, base: Base, rng: random.Random) -> None:
    one, other = _field(base, data, rng), _field(base, data, rng)
    width = min(one.width, other.width)
    a, b = slice(one.offset, one.offset + width), slice(other.offset, other.offset + width)
    data[a], data[b] = data[b], data[a]


def _reverse_bytes(data: bytearray, base: Base, rng: random.Random) -> None:
    field = _field(base, data, rng)
    data[field.offset : field.offset + field.width] = data[field.offset : field.offset + field.width][::-1]


def _overwrite(data: bytearray, base: Base, rng: random.Random) -> None:
    at, length = rng.randrange(len(data)), rng.randint(1, 64)
    filler = rng.choice((rng.randbytes(length), b"\0" * length, b"\xff" * length))
    data[at : at + length] = filler[: len(data) - at]


def _insert_or_delete(data: bytearray, base: Base, rng: random.Random) -> None:
    at, length = rng.randrange(len(data)), rng.randint(1, 40)
    if rng.random() < 0.5:
        del data[at : at + length]
    else:
        data[at:at] = rng.randbytes(length)


def _double_an_entry(data: bytearray, base: Base, rng: random.Random) -> None:
    """The same key, or the same tensor, twice; counted or not."""
    spans, count = (
        (base.entries, Field(16, 8)) if rng.random() < 0.5 or not base.tensors else (base.tensors, Field(8, 8))
    )
    begin, end = rng.choice(spans)
    data[end:end] = data[begin:end]
    if rng.random() < 0.9:
        _set(data, count, int.from_bytes(data[count.offset : count.offset + 8], "little") + 1)


def _drop_an_entry(data: bytearray, base: Base, rng: random.Random) -> None:
    """A key is missing; mostly the count is right, and what needs the key has to do without."""
    begin, end = rng.choice(base.entries)
    del data[begin:end]
    if rng.random() < 0.8:
        _set(data, Field(16, 8), len(base.entries) - 1)


def _cut(data: bytearray, base: Base, rng: random.Random) -> None:
    """Ends anywhere: in the middle of a field, right behind one, or somewhere."""
    field = _field(base, data, rng)
    end = rng.choice((rng.randrange(len(data)), field.offset, field.offset + field.width, field.offset + 1))
    del data[end:]


DAMAGE: dict[str, Callable[[bytearray, Base, random.Random], None]] = {
    "bits flipped anywhere": _flip_bits,
    "a bit of a field flipped": _flip_bits_of_a_field,
    "a field set to an extreme": _extreme_field,
    "a field shifted": _shift_field,
    "two fields swapped": _swap_fields,
    "a field's bytes reversed": _reverse_bytes,
    "bytes overwritten": _overwrite,
    "bytes inserted or deleted": _insert_or_delete,
    "an entry doubled": _double_an_entry,
    "an entry dropped": _drop_an_entry,
    "cut off": _cut,
}


def mutate(base: Base, kind: str, rng: random.Random, path: Path) -> None:
    """Write a damaged copy of `base` to `path`: one damage of that kind, in one of five runs with others on top."""
    data, kinds = bytearray(base.header), [kind]
    if rng.random() < 0.2:
        kinds += rng.choices(list(DAMAGE), k=rng.randint(1, 3))
    for damage in kinds:
        if len(data) > 64:
            DAMAGE[damage](data, base, rng)
    path.write_bytes(data)
    if "cut off" not in kinds and base.size > len(data):
        with path.open("r+b") as file:
            file.truncate(base.size)


def _field(base: Base, data: bytearray, rng: random.Random) -> Field:
    """One that is still there. Those of the first entries and of tensors are as likely as all others."""
    fields = [f for f in rng.sample(base.fields, min(8, len(base.fields))) if f.offset + f.width <= len(data)]
    return fields[0] if fields else Field(0, 4)


def _set(data: bytearray, field: Field, value: int) -> None:
    data[field.offset : field.offset + field.width] = (value % (1 << 8 * field.width)).to_bytes(field.width, "little")


# --- what show does --------------------------------------------------------------------------------------------


def show_all(path: Path) -> None:
    """Read the file and render all that `pagedrun show` can show of it. Raises ModelError for a file it refuses."""
    shown = show_text.Shown("fuzzed", None, read_facts(path), FreeMemory(1 << 30))
    with _silent_stdout():
        show_text.print_overview(shown)
        show_text.print_tensors(shown)
        show_text.print_metadata(shown)
        if shown.template is not None:
            show_text.print_template(shown)
        json.dumps(show_json.to_json(shown, tensors=True, template=True, metadata=True), allow_nan=False)


@contextmanager
def _silent_stdout() -> Iterator[None]:
    before, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdout = before
