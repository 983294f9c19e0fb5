"""The ways in which durable sessions fail: of the tree in `pagedrun.errors`.

SessionError
├── SessionNotFoundError    there is no such file
├── SessionInUseError       another process has it
├── DamagedSessionError     header or metadata are not as they were written, or it is no session file
├── OtherVersionError       the file is of another version of the format
├── OtherIdentityError      its pages mean nothing here; says what differs
├── NotSavedError           the system would not write it; what was there before still is
└── NoRoomError             it does not fit the budget
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.errors import SessionError, SessionNotFoundError

if TYPE_CHECKING:
    from pagedrun.sessions.identity import Difference


class DamagedSessionError(SessionError):
    """Header, metadata or pages are not as they were written, or it is no session file at all."""


class OtherVersionError(SessionError):
    """The file is whole, and of a version of the format that is not ours."""


class OtherIdentityError(SessionError):
    """The file belongs to another model or other settings; `differences`: which parts, with both values."""

    def __init__(self, path: Path, differences: tuple[Difference, ...], *, hint: str = "") -> None:
        super().__init__(
            f"{path.name} cannot be used here: " + "; ".join(map(str, differences)),
            hint=hint
            or "use the model and the settings it was saved with; the text can be computed again from its tokens",
        )
        self.differences = differences


class NotSavedError(SessionError):
    """The system refused to write; what was there before still is."""


class NoRoomError(SessionError):
    """There is no room for it in the budget."""


def not_saved(path: Path, error: OSError) -> NotSavedError:
    """What it means that a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space; what was there before still is"
        return NotSavedError(f"{path.name} was not saved: the disk is full", hint=hint)
    hint = f"make {path.parent} writable for you" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else ""
    return NotSavedError(f"{path.name} was not saved: {error.strerror or error}", hint=hint)


def not_read(path: Path, error: OSError) -> SessionError:
    """What it means that a file could not be opened or read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SessionNotFoundError(f"there is no {path.name} in {path.parent}")
    return SessionError(f"cannot read {path}: {error.strerror or error}")


__all__ = [
    "DamagedSessionError",
    "NoRoomError",
    "NotSavedError",
    "OtherIdentityError",
    "OtherVersionError",
    "SessionError",
    "SessionNotFoundError",
    "not_read",
    "not_saved",
]
