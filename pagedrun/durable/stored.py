"""What is on disk, by its tokens: which file begins like a prompt, and which one a conversation continues."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pagedrun.errors import PagedrunError
from pagedrun.kv import ConversationId, PrefixCache
from pagedrun.sessions import Entry, Identity, Mark, Session, SessionFolder
from pagedrun.sessions.folder import Kind

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[Kind, str]
MOST_ENTRIES = 1000  # automatic ones that are looked at when a process starts, those used last first
_TAIL = 4  # a conversation that has all but a quarter of a file's tokens goes on in this file


@dataclass(slots=True)
class Stored:
    """A file whose pages can be used here. snapshots: tokens of each state. mark: which state of the file this is."""

    key: Key
    n_tokens: int
    snapshots: tuple[int, ...]
    mark: Mark

    def usable(self, common: int, *, can_rewind: bool) -> int:
        """How many of so many tokens in common can be gone on from."""
        return common if can_rewind else max((s for s in self.snapshots if s <= common), default=0)


class StoredIndex:
    """The files of a folder that have one identity. Their tokens are in memory, pages are not."""

    def __init__(self, folder: SessionFolder, identity: Identity) -> None:
        self._folder, self._identity = folder, identity
        self._index = PrefixCache()
        self._of: dict[int, Stored] = {}
        self._ids: dict[Key, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._ids)

    def scan(self) -> None:
        """Look at all automatic entries. What cannot be used is left alone."""
        for entry in reversed(self._folder.entries("cache")[:MOST_ENTRIES]):
            if entry.meta is not None and not entry.meta.identity.differences(self._identity):
                self._look(entry)
            else:
                log.debug("%s is of no use here: %s", entry.path.name, entry.reason or "another identity")

    def add(self, key: Key, tokens: Sequence[int], snapshots: Sequence[int], mark: Mark) -> None:
        """A file has these tokens now."""
        self.remove(key)
        number, self._next = self._next, self._next + 1
        self._index.add(ConversationId(number), tokens)
        self._of[number] = Stored(key, len(tokens), tuple(snapshots), mark)
        self._ids[key] = number

    def remove(self, key: Key) -> None:
        """A file is gone, or of no use."""
        if (number := self._ids.pop(key, None)) is not None:
            self._index.remove(ConversationId(number))
            del self._of[number]

    def get(self, key: Key) -> Stored | None:
        """The file of that name."""
        return self._of.get(self._ids.get(key, -1))

    def tokens(self, key: Key) -> list[int]:
        """Of a file that is there."""
        return self._index.tokens(ConversationId(self._ids[key]))

    def find(self, tokens: Sequence[int]) -> tuple[Stored, int] | None:
        """Who has the longest beginning in common with these tokens, and how long that is."""
        found = self._index.find(tokens)
        return None if found is None else (self._of[found[0]], found[1])

    def continued_by(self, tokens: Sequence[int]) -> tuple[Stored, int] | None:
        """The automatic entry that these tokens go on from, nearly, and how many it has of them."""
        for number, common in self._index.alike(tokens):
            entry = self._of[number]
            if entry.key[0] == "cache":
                return (entry, common) if entry.n_tokens - common <= entry.n_tokens // _TAIL else None
        return None

    def _look(self, entry: Entry) -> None:
        try:
            with Session(entry.path, self._identity, direct=False, lock=False) as session:
                positions = [position for position, _ in session.meta.snapshots]
                tokens = session.tokens.astype(np.int32).tolist()
                self.add((entry.kind, entry.name), tokens, positions, session.index.mark)
        except PagedrunError as e:
            log.debug("%s is of no use: %s", entry.path.name, e.message)
