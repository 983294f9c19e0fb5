"""A session that somebody gave a name: one process has it at a time, with its text and the pages that belong to it.

The text (`note`) is what was said; it is saved with the pages in one file, by one write that makes it the state. What
is computed is found by tokens: where text and pages do not agree, or pages cannot be used, they are computed again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pagedrun.errors import PagedrunError, SessionError, SessionInUseError, SessionNotFoundError
from pagedrun.sessions import Contents, Identity, Meta, OtherIdentityError, Session, SessionFolder, describe
from pagedrun.sessions.names import checked_name

if TYPE_CHECKING:
    from pagedrun.durable.keeper import KeeperStats
    from pagedrun.durable.stored import Key
    from pagedrun.durable.wishes import Told
    from pagedrun.sessions import Mark


log = logging.getLogger(__name__)


class Keeping(Protocol):
    """What a session needs of a `Keeper`."""

    automatic: bool
    stats: KeeperStats

    def register(self, key: Key, tokens: Sequence[int], snapshots: Sequence[int], mark: Mark) -> None:
        """A file that prompts may go on from, and that saves of this name go on in."""
        ...

    def save(self, name: str, tokens: Sequence[int], note: str, told: Told) -> None:
        """Save what rests and begins with these tokens as a named session, with a text."""
        ...


class Serving(Protocol):
    """What a session needs of a service. keeper: None where there are no pages, and only texts are saved."""

    @property
    def keeper(self) -> Keeping | None:
        """Of its engine."""
        ...

    @property
    def identity(self) -> Identity | None:
        """What files have to agree with."""
        ...

    def call(self, work: Callable[[], None]) -> None:
        """Have something done on the engine's thread."""
        ...


class PagesGoneError(SessionError):
    """Who has the pages does not answer any more: a server that has ended."""


class Claim:
    """A session's name, which nobody else has until `close`. Raises SessionInUseError."""

    def __init__(self, root: Path, name: str) -> None:
        path = root / "busy" / checked_name(name)
        try:
            for folder in (root, path.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise SessionError(f"{root} cannot be used: {e.strerror}", hint=f"make {root} writable for you") from e
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise SessionInUseError(
                f"another process has the session {name!r}", hint="end that one first, or use another name"
            ) from None

    def close(self) -> None:
        """Others may have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NamedSession:
    """A session of a folder, new or saved before. A context manager.

    note: the text it was saved with; "" for a new one. model: what it was saved with, as a user types it; "" likewise.
    refused: why its pages are of no use here, once it is attached; "" if they are. tokens: how many it was saved with.

    Raises UsageError, SessionInUseError, and SessionError for a file that cannot be read at all.
    """

    def __init__(self, folder: SessionFolder, name: str) -> None:
        self.name = name
        self.refused = ""
        self._model = ""
        self._folder = folder
        self._claim = Claim(folder.root, name)
        self._serving: Serving | None = None
        self._saves: list[Future[None]] = []
        try:
            self.meta: Meta | None = describe(folder.path(name))
        except SessionNotFoundError:
            self.meta = None
        except BaseException:
            self._claim.close()
            raise

    @property
    def note(self) -> str:
        """See above."""
        return self.meta.note if self.meta else ""

    @property
    def model(self) -> str:
        """See above."""
        return self.meta.model if self.meta else self._model

    @property
    def tokens(self) -> int:
        """See above."""
        return self.meta.n_tokens if self.meta else 0

    def attach(self, serving: Serving, model: str = "") -> None:
        """Prompts of this service go on from the session's pages. Raises OtherIdentityError for another model's.

        model: its name, as a user types it.
        """
        self._serving, self._model = serving, model
        keeper, identity = serving.keeper, serving.identity
        if keeper is not None:
            serving.call(lambda: setattr(keeper, "automatic", False))
        if self.meta is None or identity is None:
            return
        differences = self.meta.identity.differences(identity)
        if self.meta.identity.model and any(d.part == "model" for d in differences):
            raise OtherIdentityError(self._folder.path(self.name), differences[:1], hint=self._way_out())
        if keeper is None:
            self.refused = "paging is off" if self.tokens else ""
        elif not self.tokens:
            self.refused = "it was saved without pages" if self.note else ""
        elif differences:
            self.refused = "; ".join(map(str, differences))
        else:
            self._register(keeper, identity)

    def save(self, tokens: Sequence[int], note: str) -> Future[None]:
        """Save what was computed of these tokens, and a text. The future has what went wrong, as a SessionError."""
        assert self._serving is not None, "it is attached first"
        future: Future[None] = Future()

        def told(error: PagedrunError | None) -> None:
            if isinstance(error, PagesGoneError):
                error = self._without_pages(error, note)
            future.set_result(None) if error is None else future.set_exception(error)

        keeper = self._serving.keeper
        if keeper is not None:
            name = self.name
            self._serving.call(lambda: keeper.save(name, tokens, note, told))
        else:
            try:
                self._save_note(note)
                told(None)
            except PagedrunError as e:
                told(e)
        self._saves = [*(s for s in self._saves if not s.done()), future]
        return future

    def close(self) -> None:
        """Wait until all is saved, and let others have it."""
        for future in self._saves:
            with suppress(PagedrunError):
                future.result()
        self._claim.close()

    def __enter__(self) -> NamedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _register(self, keeper: Keeping, identity: Identity) -> None:
        assert self._serving is not None  # `attach` has set it
        found = stored(self._folder, self.name, identity)
        self._serving.call(lambda: keeper.register(("named", self.name), *found))

    def _without_pages(self, why: PagedrunError, note: str) -> PagedrunError | None:
        """Save the text alone; answers what is wrong then."""
        try:
            self._save_note(note)
        except PagedrunError as e:
            return e
        log.warning("%s: %s; what was said is kept, and will be read again", self.name, why.message)
        return None

    def _save_note(self, note: str) -> None:
        assert self._serving is not None  # `save` has seen to it
        identity = self._serving.identity or _NOBODY
        contents = Contents(identity=identity, tokens=(), page=_none, name=self.name, model=self._model, note=note)
        self._folder.save(self.name, contents)

    def _way_out(self) -> str:
        other = f"use it with --model {self.model}, or " if self.model else ""
        return f"{other}begin another one, or remove it: pagedrun sessions rm {self.name}"


def stored(folder: SessionFolder, name: str, identity: Identity) -> tuple[list[int], list[int], Mark]:
    """Tokens of a session's file, those of each recurrent state, and which state of the file this is.

    Raises SessionError.
    """
    with Session(folder.path(name), identity, direct=False, lock=False) as session:
        positions = [position for position, _ in session.meta.snapshots]
        return session.tokens.astype(np.int32).tolist(), positions, session.index.mark


def _none(number: int) -> Any:
    raise KeyError(number)


#: What a text belongs to where nobody knows the model.
_NOBODY = Identity(model="", kv_type_k="", kv_type_v="", page_bytes=1, row_bytes=1, n_stripes=1)
