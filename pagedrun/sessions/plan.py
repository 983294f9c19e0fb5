"""What one save writes, and where in the file: new pages and snapshots, and an index that leads to all of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagedrun.sessions.disk import Disk
from pagedrun.sessions.format import DATA, ENTRY, Head, Index, Meta, Table, Tokens, digest_of, pack_index
from pagedrun.sessions.identity import Identity
from pagedrun.sessions.places import Places, padded

Data = bytes | bytearray | npt.NDArray[np.uint8]


def _no_state(position: int) -> Data:
    raise KeyError(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A conversation to be saved.

    snapshots: (tokens, bytes) of recurrent states, by tokens. page: gives a page by its number, shape (frame_bytes,),
    contiguous; snapshot: a state by its tokens; only those that have to be written are asked for. ahead: is told the
    numbers of these pages before, in order. name, model, usage: for people. note: text of whoever saves it. created:
    seconds since 1970, or now.
    """

    identity: Identity
    tokens: Sequence[int] | npt.NDArray[np.integer]
    page: Callable[[int], npt.NDArray[np.uint8]]
    snapshots: Sequence[tuple[int, int]] = ()
    snapshot: Callable[[int], Data] = _no_state
    ahead: Callable[[Sequence[int]], None] = lambda numbers: None
    name: str = ""
    model: str = ""
    note: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)
    created: int | None = None


class Plan:
    """One save of `contents`. old: the state that the file is in, of which the first `kept` tokens stay.

    now: seconds since 1970. n_bytes: what the new state needs; end: where its last byte is.
    """

    def __init__(self, contents: Contents, now: int, old: Index | None = None, kept: int = 0) -> None:
        self._contents = contents
        self.tokens: Tokens = np.asarray(contents.tokens).astype(np.uint32)
        identity, n_tokens = contents.identity, len(self.tokens)
        created = old.meta.created if old else now if contents.created is None else contents.created
        self.meta = Meta(
            identity=identity,
            n_tokens=n_tokens,
            n_pages=identity.geometry.pages_for(n_tokens),
            snapshots=tuple(contents.snapshots),
            name=contents.name,
            model=contents.model,
            note=contents.note,
            created=created,
            saved=now,
            usage=dict(contents.usage),
        )
        Meta.from_json(self.meta.to_json())  # raises ValueError for what no reader would take
        self._table: Table = np.zeros(self.meta.n_pages + len(self.meta.snapshots), ENTRY)
        self._places = Places(old.extents if old else np.array([[0, DATA]], np.int64))
        # A page whose tokens are all kept stays, even if the new state has fewer in it; else only those that are full.
        n_kept = min(self.meta.n_pages if kept >= n_tokens else identity.geometry.full_pages(kept), self.meta.n_pages)
        self._new = self._place_pages(old, n_kept) + self._place_snapshots(old, kept)
        self._index_bytes = len(pack_index(self.meta, self.tokens, self._table)[0])
        self._index_at = int(self._places.take(1, self._index_bytes)[0])
        self.n_bytes, self.end = self._sizes()

    def write(self, disk: Disk, fd: int, generation: int) -> Head:
        """Everything but the superblock, which is answered."""
        self._contents.ahead([i for i in self._new if i < self.meta.n_pages])
        for i in self._new:
            data = self._page(i) if i < self.meta.n_pages else self._snapshot(i - self.meta.n_pages)
            disk.write(fd, data, int(self._table["offset"][i]))
            self._table["sum"][i] = zlib.crc32(data)
        index, json_bytes = pack_index(self.meta, self.tokens, self._table)
        disk.write(fd, memoryview(index), self._index_at)
        return Head(generation, self._index_at, len(index), json_bytes, digest_of(index))

    def _page(self, number: int) -> memoryview:
        data = self._contents.page(number)
        if data.shape != (self.meta.identity.frame_bytes,) or data.dtype != np.uint8:
            raise ValueError(f"page {number} has the shape {data.shape} and the type {data.dtype}")
        return data.data

    def _snapshot(self, i: int) -> memoryview:
        position, n_bytes = self.meta.snapshots[i]
        data = np.frombuffer(self._contents.snapshot(position), np.uint8)
        if len(data) != n_bytes:
            raise ValueError(f"the state after {position} tokens has {len(data)} bytes, and not {n_bytes}")
        return data.data

    def _place_pages(self, old: Index | None, n_kept: int) -> list[int]:
        """The rows of pages that have to be written."""
        n = self.meta.n_pages
        if old:
            self._table[:n_kept] = old.pages[:n_kept]
        self._table["offset"][n_kept:n] = self._places.take(n - n_kept, self.meta.identity.frame_bytes)
        return list(range(n_kept, n))

    def _place_snapshots(self, old: Index | None, kept: int) -> list[int]:
        """The rows of snapshots that have to be written. The same tokens lead to the same state."""
        there = dict(zip(old.meta.snapshots, old.snapshots, strict=True)) if old else {}
        new = []
        for i, place in enumerate(self.meta.snapshots, start=self.meta.n_pages):
            if place[0] <= kept and place in there:
                self._table[i] = there[place]
            else:
                self._table["offset"][i] = self._places.take(1, place[1])[0]
                new.append(i)
        return new

    def _sizes(self) -> tuple[int, int]:
        pages = [padded(self.meta.identity.frame_bytes)] * self.meta.n_pages
        sizes = np.array([*pages, *(padded(n) for _, n in self.meta.snapshots), padded(self._index_bytes)], np.int64)
        ends = np.append(self._table["offset"].astype(np.int64), self._index_at) + sizes
        return DATA + int(sizes.sum()), int(ends.max())
