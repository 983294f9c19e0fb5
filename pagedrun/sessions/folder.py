"""A folder of sessions.

    FOLDER/named/NAME.kv            what somebody gave a name: never removed but by `remove`
    FOLDER/cache/KEY.kv             automatic entries, `cache_disk` bytes at most; the least recently used leave first
    FOLDER/*/.NAME.kv.RANDOM.new    being written, under a lock that lasts as long as its writer
    FOLDER/lock                     held while room is made and taken

The budget is hard: before a file is made or grows, others leave, and its new size is taken at once (a file has its
full length before its bytes are written), all under the lock. So at no time, and with any number of processes, is
there more in `cache`, what is being written included. A file that somebody reads or writes is not removed: if nothing
else can go, the new one is refused. The time of last use is the file's time of change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pagedrun.errors import UsageError
from pagedrun.sessions.budget import DiskBudget, files_of, size_at, used_at
from pagedrun.sessions.disk import Disk, idle
from pagedrun.sessions.format import Mark, Meta
from pagedrun.sessions.identity import Identity
from pagedrun.sessions.names import checked_name
from pagedrun.sessions.plan import Contents
from pagedrun.sessions.reader import Checked, Session, describe
from pagedrun.sessions.trouble import (
    DamagedSessionError,
    OtherVersionError,
    SessionError,
    SessionNotFoundError,
    not_saved,
)
from pagedrun.sessions.writer import ASIDE, copied, save

log = logging.getLogger(__name__)

Kind = Literal["named", "cache"]

_SUFFIX = ".kv"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the folder. used: when last, in ns since 1970; meta: None where it cannot be used, for `reason`."""

    kind: Kind
    name: str
    path: Path
    n_bytes: int
    used: int
    meta: Meta | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """A file that gc removed, and why."""

    path: Path
    n_bytes: int
    why: str


class SessionFolder:
    """See above. refused: why the last automatic entry could not be saved; "" if it was. clock: ns since 1970."""

    def __init__(
        self, root: Path, cache_disk: int, *, disk: Disk | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.root = root
        self.refused = ""
        self._budget = DiskBudget(root, "cache", cache_disk)
        self._disk = disk or Disk()
        self._clock = clock

    # saving and opening

    def save(self, name: str, contents: Contents, since: Mark | None = None) -> Mark:
        """Save a named session. Raises SessionError, UsageError."""
        return self._save("named", name, contents, since)

    def cache(self, key: str, contents: Contents, since: Mark | None = None) -> Mark | None:
        """Save an automatic entry; None, with the reason in `refused`, when it could not be."""
        self.refused = ""
        try:
            return self._save("cache", key, contents, since)
        except SessionError as e:
            self.refused = e.message
            log.info("a conversation is not kept on disk: %s", e.message)
            return None

    def open(self, name: str, identity: Identity | None, kind: Kind = "named") -> Session:
        """Open a session for reading, which counts as a use. Raises SessionError, UsageError."""
        path = self.path(name, kind)
        session = Session(path, identity, disk=self._disk)
        self._touch(path)
        return session

    def path(self, name: str, kind: Kind = "named") -> Path:
        """Where it is. Raises UsageError for what cannot be a name."""
        return self.root / kind / f"{checked_name(name)}{_SUFFIX}"

    # what there is

    def entries(self, kind: Kind | None = None) -> list[Entry]:
        """All of one kind or of both, those used last first."""
        kinds: tuple[Kind, ...] = ("named", "cache") if kind is None else (kind,)
        found = [self._entry(k, path) for k in kinds for path in files_of(self.root / k) if path.suffix == _SUFFIX]
        return sorted((e for e in found if e is not None), key=lambda e: (-e.used, e.kind, e.name))

    def show(self, name: str, kind: Kind = "named") -> Entry:
        """One of them. Raises SessionNotFoundError, UsageError."""
        entry = self._entry(kind, self.path(name, kind))
        if entry is None:
            raise SessionNotFoundError(f"there is no session {name!r}", hint="`pagedrun sessions list` shows them")
        return entry

    def check(self, name: str, kind: Kind = "named") -> Checked:
        """Read all of one. Raises SessionError, UsageError."""
        with Session(self.path(name, kind), disk=self._disk) as session:
            return session.check()

    @property
    def cache_bytes(self) -> int:
        """What automatic entries take, with what is being written."""
        return self._budget.used

    # changing it

    def remove(self, name: str, kind: Kind = "named") -> int:
        """Remove one; answers its bytes. Whoever reads it can go on. Raises SessionError, UsageError."""
        entry = self.show(name, kind)
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as e:
            raise SessionError(f"{name!r} cannot be removed: {e.strerror}") from e
        return entry.n_bytes

    def rename(self, name: str, new: str) -> None:
        """Give a named session another name, that none has. Raises SessionError, UsageError."""
        old_path, new_path = self.show(name).path, self.path(new)
        try:
            with self._budget.locked():
                self._refuse_existing(new_path, new)
                self._disk.replace(old_path, new_path)
                self._disk.sync_folder(new_path.parent)
        except OSError as e:
            raise SessionError(f"{name!r} cannot be renamed: {e.strerror}") from e

    def export(self, name: str, to: Path) -> int:
        """Write a named session to a file without holes; answers its bytes. Every page is checked.

        Raises SessionError, and the file is then not there, or as it was; UsageError.
        """
        self.show(name)
        with self.open(name, None) as session:
            save(to, copied(session, name=name), disk=self._disk)
        return size_at(to)

    def import_(self, file: Path, name: str) -> Meta:
        """Take a file in under a name that none has. Every page is checked. Raises SessionError, UsageError."""
        path = self.path(name)
        self._refuse_existing(path, name)
        try:
            with Session(file, disk=self._disk, level=logging.DEBUG) as session:
                self._save("named", name, copied(session, name=name), None)
        except SessionNotFoundError:
            raise SessionNotFoundError(f"there is no file {file}") from None
        except DamagedSessionError as e:
            raise DamagedSessionError(e.message, hint="copy or export it again; nothing was taken in") from e
        return describe(path, disk=self._disk)

    def trim(self) -> None:
        """Remove automatic entries that are beyond the budget, which may have been lowered."""
        if not self.root.is_dir():
            return
        try:
            with self._budget.locked():
                for path in self._budget.excess():
                    log.info("%s leaves the disk", path.name)
                    path.unlink(missing_ok=True)
        except OSError as e:
            log.debug("%s cannot be cleaned up: %s", self.root, e.strerror)

    def gc(self) -> list[Removed]:
        """Remove what dead processes left, automatic entries that nobody can use, and those beyond the budget.

        Named sessions stay, whatever they are. Raises SessionError.
        """
        if not self.root.is_dir():
            return []
        removed: list[Removed] = []
        try:
            with self._budget.locked():
                for kind in ("named", "cache"):
                    for path in files_of(self.root / kind):
                        why = self._useless(kind, path)
                        if why and idle(path):
                            removed.append(Removed(path, size_at(path), why))
                            path.unlink(missing_ok=True)
                for path in self._budget.excess():
                    removed.append(Removed(path, size_at(path), "beyond cache_disk"))
                    path.unlink(missing_ok=True)
        except OSError as e:
            raise SessionError(f"{self.root} cannot be cleaned up: {e.strerror}") from e
        return removed

    # inside

    def _save(self, kind: Kind, name: str, contents: Contents, since: Mark | None) -> Mark:
        path = self.path(name, kind)
        try:
            for folder in (self.root, path.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise not_saved(path, e) from e

        def room(n_bytes: int, grow: Callable[[], None]) -> None:
            with self._budget.locked():  # asides are made under it, so that gc cannot find one before its lock
                if kind == "cache":
                    self._budget.make_room(n_bytes, path)
                grow()

        mark = save(path, contents, since=since, room=room, disk=self._disk, clock=lambda: self._clock() / 1e9)
        self._touch(path)
        return mark

    def _useless(self, kind: str, path: Path) -> str:
        if path.name.startswith(".") and path.name.endswith(ASIDE):
            return "left by a process that ended"
        if kind == "named" or path.suffix != _SUFFIX:
            return ""
        try:
            describe(path, disk=self._disk)
        except (DamagedSessionError, OtherVersionError) as e:
            return e.message
        except SessionError:  # it has just gone, or cannot be read now
            return ""
        return ""

    def _entry(self, kind: Kind, path: Path) -> Entry | None:
        meta, reason = None, ""
        try:
            meta = describe(path, disk=self._disk)
        except SessionNotFoundError:
            return None
        except SessionError as e:
            reason = e.message
        return Entry(kind, path.name.removesuffix(_SUFFIX), path, size_at(path), used_at(path), meta, reason)

    def _refuse_existing(self, path: Path, name: str) -> None:
        if path.exists():
            raise UsageError(f"there is a session {name!r} already", hint="choose another name, or remove it first")

    def _touch(self, path: Path) -> None:
        now = self._clock()
        with suppress(OSError):
            os.utime(path, ns=(now, now))
