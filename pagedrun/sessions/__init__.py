"""Conversations that outlive the process: one file each, and a folder of them.

folder      names, the list, the budget of automatic entries, rm, rename, export, import, gc
names       of sessions
budget      bytes of a folder: who has to go
writer      one conversation into its file: anew beside it, or what is new behind what is there
plan        what one save writes, and where
reader      what of a file is as it was written, and reading it
format      the bytes of a file
identity    what has to agree for a file's pages to mean anything here
places      free places in a file
trouble     the ways in which this fails
disk        the system calls, in one object

Each imports from those below it only. Nothing here knows an engine; pages are bytes.
"""

from __future__ import annotations

from pagedrun.sessions.disk import Disk
from pagedrun.sessions.folder import Entry, Removed, SessionFolder
from pagedrun.sessions.format import Mark, Meta
from pagedrun.sessions.identity import Difference, Identity, model_digest, text_digest
from pagedrun.sessions.plan import Contents
from pagedrun.sessions.reader import Session, aligned, describe
from pagedrun.sessions.trouble import (
    DamagedSessionError,
    NoRoomError,
    NotSavedError,
    OtherIdentityError,
    OtherVersionError,
    SessionError,
    SessionNotFoundError,
)
from pagedrun.sessions.writer import save

__all__ = [
    "Contents",
    "DamagedSessionError",
    "Difference",
    "Disk",
    "Entry",
    "Identity",
    "Mark",
    "Meta",
    "NoRoomError",
    "NotSavedError",
    "OtherIdentityError",
    "OtherVersionError",
    "Removed",
    "Session",
    "SessionError",
    "SessionFolder",
    "SessionNotFoundError",
    "aligned",
    "describe",
    "model_digest",
    "save",
    "text_digest",
]
