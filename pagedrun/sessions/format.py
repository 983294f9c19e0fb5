"""The bytes of a session file. All numbers are little-endian; everything begins at a multiple of 4 KiB.

    0       superblock of even generations   4 KiB
    4096    superblock of odd generations    4 KiB
    8192    pages, snapshots and indices, in any order, with holes between them

    superblock   magic 8 | version 4 | 0 4 | generation 8 | index offset 8 | index bytes 8 | JSON bytes 8
                 | index digest 16 | zeros ... | digest of all before it 16
    index        metadata, JSON | token ids, uint32 | table: (offset 8, crc32 4, 0 4) of each page, then each snapshot

A generation is one save. It writes pages, snapshots and an index to places that the generation before does not use,
then its superblock over that of the generation before last. So a conversation that goes on writes its new pages, the
last one again if it was not full, and an index (4 bytes a token); full pages stay where they are for ever. What a
reader finds is the newest superblock whose digest is right, and whose index has the digest that is in it: the old state
until the one write of 4 KiB is complete, the new one from then on. A superblock that is half written fails its digest.

Why not a new file that shares blocks with the old one (FICLONE, copy_file_range): ext4 cannot share, and would copy
gigabytes for each turn of a long conversation. Why not a footer: there would be none while the file grows.

Checksums. Pages and snapshots: crc32, as in the spill file. It finds for certain any one or two bits that flipped in
512 MiB, and any burst of 32; of other damage it misses one in 4 billion. The standard library has nothing of 64 bits
that keeps up with an NVMe disk: blake2b took three to six times as long (scripts/results/fuzz-sessions.md), and two
crc32 of halves see no more of a damaged half.
Superblock and index are small, and are what everything else is believed by: blake2b, 16 bytes.

Magic, version and the digest of a superblock stay where they are in all versions to come.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun.sessions.identity import Identity
from pagedrun.sessions.places import ALIGN, Extents

MAGIC = b"PgdRunKV"
VERSION = 1
DATA = 2 * ALIGN  # where pages, snapshots and indices may begin
_HEAD = struct.Struct("<8sIIQQQQ16s")
_DIGEST = 16

#: Of a page or snapshot.
ENTRY = np.dtype([("offset", "<u8"), ("sum", "<u4"), ("zero", "<u4")])
Table = npt.NDArray[np.void]
Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Mark:
    """Which state of a file a conversation has in memory, so that the next save writes only what is new.

    state: the digest of its index, which has the checksum of every page. n_tokens: so many tokens from the first on
    are, and so are their pages, as that state has them.
    """

    state: bytes
    n_tokens: int

    def cut(self, n_tokens: int) -> Mark:
        """The conversation kept its first tokens only, and may go on in another way."""
        return replace(self, n_tokens=min(n_tokens, self.n_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a file says of its conversation.

    snapshots: (tokens, bytes) of each, by tokens. name: it was saved under; the file's own name is what counts. model:
    for people. created, saved: seconds since 1970. usage, note: figures and a text of whoever saved it.
    """

    identity: Identity
    n_tokens: int
    n_pages: int
    snapshots: tuple[tuple[int, int], ...]
    name: str
    model: str
    created: int
    saved: int
    usage: Mapping[str, int]
    note: str = ""

    @property
    def data_bytes(self) -> int:
        """Of its pages and snapshots."""
        return self.n_pages * self.identity.frame_bytes + sum(n for _, n in self.snapshots)

    def to_json(self) -> dict[str, Any]:
        """As the file has it, and for programs."""
        return {
            "identity": self.identity.to_json(),
            "n_tokens": self.n_tokens,
            "n_pages": self.n_pages,
            "page_bytes": self.identity.frame_bytes,
            "snapshots": [list(s) for s in self.snapshots],
            "name": self.name,
            "model": self.model,
            "created": self.created,
            "saved": self.saved,
            "usage": dict(self.usage),
            "note": self.note,
        }

    @classmethod
    def from_json(cls, raw: Any) -> Meta:
        """Raises ValueError, KeyError or TypeError for what is none, or contradicts itself."""
        identity = Identity.from_json(raw["identity"])
        snapshots = tuple((_count(position), _count(n)) for position, n in raw["snapshots"])
        usage = {str(name): _count(n) for name, n in raw["usage"].items()}
        rest: dict[str, Any] = {name: _count(raw[name]) for name in ("n_tokens", "n_pages", "created", "saved")}
        meta = cls(
            identity=identity,
            snapshots=snapshots,
            usage=usage,
            name=_text(raw["name"]),
            model=_text(raw["model"]),
            note=_text(raw["note"]),
            **rest,
        )
        positions = [position for position, _ in snapshots]
        if positions != sorted(set(positions)) or any(p > meta.n_tokens for p in positions):
            raise ValueError("its snapshots are out of order")
        if raw["page_bytes"] != identity.frame_bytes or meta.n_pages != identity.geometry.pages_for(meta.n_tokens):
            raise ValueError("its pages do not hold its tokens")
        return meta


@dataclass(frozen=True, slots=True)
class Head:
    """A superblock."""

    generation: int
    offset: int
    n_bytes: int
    json_bytes: int
    digest: bytes
    version: int = VERSION

    def pack(self) -> bytes:
        """Its 4 KiB."""
        values = (self.generation, self.offset, self.n_bytes, self.json_bytes, self.digest)
        body = _HEAD.pack(MAGIC, self.version, 0, *values).ljust(ALIGN - _DIGEST, b"\0")
        return body + digest_of(body)

    @property
    def at(self) -> int:
        """Where in the file it is."""
        return self.generation % 2 * ALIGN


def unpack_head(block: bytes) -> Head | None:
    """A superblock of any version from its 4 KiB, or None where it is damaged, half written, or was never there."""
    body = block[: ALIGN - _DIGEST]
    if len(block) != ALIGN or block[: len(MAGIC)] != MAGIC or block[-_DIGEST:] != digest_of(body):
        return None
    _, version, _, generation, offset, n_bytes, json_bytes, digest = _HEAD.unpack_from(body)
    if max(generation, offset, n_bytes) >= 1 << 62:
        return None
    return Head(generation, offset, n_bytes, json_bytes, digest, version)


@dataclass(frozen=True, slots=True)
class Index:
    """One state of a file: its superblock, and what that leads to."""

    head: Head
    meta: Meta
    tokens: Tokens
    table: Table

    @property
    def pages(self) -> Table:
        """Rows of the pages."""
        return self.table[: self.meta.n_pages]

    @property
    def snapshots(self) -> Table:
        """Rows of the snapshots, in the order of `meta.snapshots`."""
        return self.table[self.meta.n_pages :]

    @property
    def mark(self) -> Mark:
        """For a conversation that has all of it in memory."""
        return Mark(self.head.digest, self.meta.n_tokens)

    @property
    def extents(self) -> Extents:
        """Every place in the file that this state needs."""
        sizes = [self.meta.identity.frame_bytes] * self.meta.n_pages + [n for _, n in self.meta.snapshots]
        own = np.array([[0, DATA], [self.head.offset, self.head.n_bytes]], np.int64)
        offsets = self.table["offset"].astype(np.int64)
        return np.concatenate([own, np.stack([offsets, np.array(sizes, np.int64)], axis=1)])


def pack_index(meta: Meta, tokens: Tokens, table: Table) -> tuple[bytes, int]:
    """An index, and how many of its bytes are JSON."""
    text = json.dumps(meta.to_json(), separators=(",", ":"), allow_nan=False).encode()
    return b"".join([text, tokens.astype("<u4").tobytes(), table.tobytes()]), len(text)


def unpack_index(head: Head, data: bytes) -> Index:
    """Raises ValueError where it is damaged: nothing that it says is used before its digest and lengths are right."""
    if digest_of(data) != head.digest or not 0 < head.json_bytes <= len(data):
        raise ValueError("its index is not as it was written")
    try:
        meta = Meta.from_json(json.loads(data[: head.json_bytes]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise ValueError(f"its metadata mean nothing: {e}") from e
    n_rows = meta.n_pages + len(meta.snapshots)
    if len(data) != head.json_bytes + 4 * meta.n_tokens + ENTRY.itemsize * n_rows:
        raise ValueError("its index is too short or too long")
    tokens = np.frombuffer(data, "<u4", meta.n_tokens, head.json_bytes).astype(np.uint32)
    table = np.frombuffer(data, ENTRY, n_rows, head.json_bytes + 4 * meta.n_tokens)
    offsets = table["offset"]
    if n_rows and (offsets.min() < DATA or offsets.max() >= 1 << 62 or (offsets % ALIGN).any()):
        raise ValueError("its pages are nowhere")
    return Index(head, meta, tokens, table)


def digest_of(data: bytes) -> bytes:
    """Of a superblock or an index."""
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
