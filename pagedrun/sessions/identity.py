"""What has to agree for a file's pages to mean anything here.

    model        digest of the model file (below)
    kv_type_k/v  number formats of keys and values
    page_bytes, row_bytes, n_stripes   how tokens lie in pages; windows and stages may differ
    rope         how positions are scaled: "none", or "yarn FACTOR of TOKENS"
    template     digest of the chat template; "": none
    runtime      what the runtime is built from (`Manifest.base`): another one may lay out or compute KV differently

The model's digest is of each part's size, its whole header (metadata, vocabulary, names, shapes and types of tensors)
and the first 4 KiB of each tensor. Some MB are read for a model of many GB, and loading it reads them anyway. It does
not change when a file is copied, renamed or touched, so that sessions can be moved with it. Two files that have the
same header and size and differ only behind the first 4 KiB of tensors are taken for the same: a fine-tune changes all
of a tensor, a quantisation its size or type, but a damaged model file is not noticed here (`pagedrun verify` reads all
of it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import read_header
from pagedrun.kv.geometry import PageGeometry

_SAMPLE = 4096
_DIGEST = 16
_LARGEST = 1 << 40  # bytes of a page; a bound for files that lie

_CALLED = {
    "kv_type_k": "the KV type of keys",
    "kv_type_v": "the KV type of values",
    "page_bytes": "the size of pages",
    "row_bytes": "the size of a token's row",
    "n_stripes": "the number of stripes",
    "rope": "the scaling of positions",
    "template": "the chat template",
    "runtime": "the runtime",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of the identity that does not agree. saved: the file's value; here: this process's."""

    part: str
    saved: str | int
    here: str | int

    def __str__(self) -> str:
        called = _CALLED.get(self.part, f"the {self.part}")
        return f"{called} was {self.saved or 'none'} and is {self.here or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """See above. Sizes in bytes; page_bytes and row_bytes: in one stripe."""

    model: str
    kv_type_k: str
    kv_type_v: str
    page_bytes: int
    row_bytes: int
    n_stripes: int
    rope: str = "none"
    template: str = ""
    runtime: str = ""

    def __post_init__(self) -> None:
        for name in ("page_bytes", "row_bytes", "n_stripes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.frame_bytes > _LARGEST or self.row_bytes > _LARGEST:
            raise ValueError(f"a page has {self.frame_bytes} bytes, and a row {self.row_bytes}")

    @property
    def geometry(self) -> PageGeometry:
        """How tokens lie in pages; of a window of one page."""
        return PageGeometry(
            page_bytes=self.page_bytes, row_bytes=self.row_bytes, n_stripes=self.n_stripes, n_pages=1, n_slots=1
        )

    @property
    def frame_bytes(self) -> int:
        """What a page takes."""
        return self.page_bytes * self.n_stripes

    def tokens_in(self, n_pages: int) -> int:
        """How many tokens lie in the first `n_pages` pages with all of their row."""
        return n_pages * self.page_bytes // self.row_bytes

    def differences(self, here: Identity) -> tuple[Difference, ...]:
        """The parts in which this one, of a file, differs from the one here."""
        pairs = ((f.name, getattr(self, f.name), getattr(here, f.name)) for f in fields(self))
        return tuple(Difference(name, saved, now) for name, saved, now in pairs if saved != now)

    def to_json(self) -> dict[str, str | int]:
        """As the metadata have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Identity:
        """Raises ValueError, KeyError or TypeError for what is no identity."""
        values: dict[str, Any] = {f.name: raw[f.name] for f in fields(cls)}
        for f in fields(cls):
            if type(values[f.name]) is not (int if f.type == "int" else str):
                raise TypeError(f"{f.name} is {values[f.name]!r}")
        return cls(**values)


def text_digest(text: str | None) -> str:
    """Of a chat template; "" where there is none."""
    return "" if text is None else hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST).hexdigest()


def model_digest(parts: Sequence[Path]) -> str:
    """Of a model's files, in order. Raises ModelFileError."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for path in parts:
        header = read_header(path)
        begin = min((t.offset for t in header.tensors), default=header.size)
        digest.update(header.size.to_bytes(8, "little"))
        try:
            with path.open("rb") as file:
                digest.update(file.read(begin))
                for tensor in header.tensors:
                    file.seek(tensor.offset)
                    digest.update(file.read(min(tensor.n_bytes, _SAMPLE)))
        except OSError as e:
            raise ModelFileError(f"cannot read {path}: {e.strerror}") from e
    return digest.hexdigest()
