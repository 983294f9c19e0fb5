"""What of a conversation is saved: its tokens, which of its recurrent states, or less of what its file has already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pagedrun.errors import PagedrunError
from pagedrun.kv import ConversationId, Held, PageManager, Snapshot
from pagedrun.kv.keeping import Bytes
from pagedrun.kv.store import FrameStore
from pagedrun.sessions import Contents, Identity, NotSavedError, Session, aligned, describe

NEWEST = 2  # recurrent states that are saved in any case: of the last answer's beginning and of its end
QUARTERS = (0.75, 0.5, 0.25)  # of a conversation, before which one more is saved each, if pages take more than they do


@dataclass(frozen=True, slots=True)
class Sources:
    """Contents of conversations of a manager. model: its name, for people."""

    manager: PageManager
    store: FrameStore
    identity: Identity
    model: str

    def n_bytes(self, n_tokens: int) -> int:
        """What so many tokens take."""
        return self.identity.geometry.pages_for(n_tokens) * self.identity.frame_bytes

    def of(
        self, conversation: ConversationId, tokens: Sequence[int], *, name: str = "", note: str = ""
    ) -> tuple[Contents, Held]:
        """The first tokens of a conversation, and its pages. Raises LookupError."""
        states = self._states(conversation, len(tokens))
        contents = self._contents(tokens, [(s.position, s.nbytes) for s in states], name, note)
        data = {s.position: s.data for s in states}
        held = Held(self.manager, self.store, conversation, len(tokens))
        return replace(contents, snapshot=data.__getitem__), held

    def in_file(self, path: Path, tokens: Sequence[int], *, name: str, note: str) -> Contents:
        """The first tokens of what a file has, with another text."""
        source = _Beginning(path, self.identity)
        contents = self._contents(tokens, source.snapshots(len(tokens)), name, note)
        return replace(contents, page=source.page, snapshot=source.snapshot)

    def nothing(self, *, name: str, note: str) -> Contents:
        """A text alone."""
        return self._contents((), (), name, note)

    def _states(self, conversation: ConversationId, n_tokens: int) -> list[Snapshot]:
        """The recurrent states to be saved, by tokens: to go on from, and, where pages are damaged, to go back to."""
        there = [s for s in self.manager.snapshots.of(conversation) if s.position <= n_tokens]
        chosen, left = there[-NEWEST:], self.n_bytes(n_tokens)
        for part in QUARTERS:
            before = [s for s in there if s.position <= n_tokens * part]
            left -= before[-1].nbytes if before else 0
            if before and left >= 0 and before[-1] not in chosen:
                chosen.append(before[-1])
        return sorted(chosen, key=lambda s: s.position)

    def _contents(self, tokens: Sequence[int], snapshots: Sequence[tuple[int, int]], name: str, note: str) -> Contents:
        empty = Contents(identity=self.identity, tokens=tokens, page=_no_page, snapshots=snapshots)
        return replace(empty, name=name, model=self.model, note=note)


class _Beginning:
    """What a file has, for a save of less of it: read only if the file has to be written anew."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path, self._identity = path, identity
        self._session: Session | None = None

    def snapshots(self, n_tokens: int) -> list[tuple[int, int]]:
        """(tokens, bytes) of its states up to there; none where it cannot be read."""
        try:
            return [s for s in describe(self._path).snapshots if s[0] <= n_tokens]
        except PagedrunError:
            return []

    def page(self, number: int) -> Bytes:
        """A page. Raises SessionError."""
        buffer = aligned(1, self._identity.frame_bytes)
        if not self._opened().read_pages(number, buffer):
            raise NotSavedError(f"page {number} of {self._path.name} is damaged")
        page: Bytes = buffer[0]
        return page

    def snapshot(self, position: int) -> bytearray:
        """A state. Raises SessionError."""
        data = self._opened().read_snapshot(position)
        if data is None:
            raise NotSavedError(f"the state after {position} tokens in {self._path.name} is damaged")
        return data

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self._path, self._identity, direct=False, lock=False)
        return self._session


def _no_page(number: int) -> Bytes:
    raise KeyError(number)
