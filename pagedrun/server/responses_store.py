"""Responses that later ones may go on from, by their ids: as files, the newest of them, or in memory until the end.

    FOLDER/ID.json            the response, and the conversation that it ends
    FOLDER/.ID.RANDOM.new     being written; what a killed process left of them goes after an hour

A file is written aside and renamed, and only its owner can read it. Several servers may share a folder. What is
damaged is as good as forgotten. Keys of the API are in none of this.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pagedrun.chat import Message, ToolCall
from pagedrun.server.errors import ApiError
from pagedrun.server.responses_items import Marks

log = logging.getLogger(__name__)

_MOST = 1000
_MOST_BYTES = 256 << 20
_VERSION = 1
_ID = re.compile(r"resp_[0-9a-f]{32}")
_ASIDE = ".new"
_ASIDE_S = 3600  # after which nobody writes it any more


@dataclass(frozen=True, slots=True)
class Kept:
    """A response, and the conversation that it ends, without instructions: those are of one request."""

    response: Mapping[str, Any]
    messages: tuple[Message, ...]
    marks: Marks = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """What it takes, roughly. Conversations that go on share what they have in common."""
        return sum(len(m.content) + len(m.reasoning) for m in self.messages[-2:]) + 100 * len(self.marks) + 2048


class Responses:
    """Not more than fit; the oldest goes first. From any thread. folder: None keeps them in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # what is in no file, or not yet
        self._n_bytes = 0
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="pagedrun-responses") if folder else None
        self._told = ""

    def add(self, response: Mapping[str, Any], messages: tuple[Message, ...], marks: Marks | None = None) -> None:
        """Keep one. It is written in the background."""
        kept, response_id = Kept(response, messages, marks or {}), response["id"]
        with self._lock:
            self._kept[response_id] = kept
            self._n_bytes += kept.n_bytes
            while len(self._kept) > 1 and (len(self._kept) > _MOST or self._n_bytes > _MOST_BYTES):
                self._forget(next(iter(self._kept)))
        if self._writer is not None:
            with suppress(RuntimeError):  # the server ends
                self._writer.submit(self._write, response_id, kept)

    def get(self, response_id: str, param: str | None = None) -> Kept:
        """One of them. Reads a file. Raises ApiError."""
        with self._lock:
            kept = self._kept.get(response_id)
        if kept is None and (path := self._path(response_id)) is not None:
            kept = _read(path)
        if kept is None:
            raise ApiError(
                404 if param is None else 400,
                f"there is no response '{response_id[:100]}' here, or it was forgotten",
                param=param,
                code="previous_response_not_found" if param else "not_found",
            )
        return kept

    def remove(self, response_id: str) -> None:
        """Forget one, its file too. Raises ApiError."""
        self.get(response_id)
        if (path := self._path(response_id)) is not None and self._writer is not None:
            removed: Future[None] = self._writer.submit(_unlink, path)  # after it was written
            try:
                removed.result()
            except OSError as e:
                raise ApiError(500, f"the response cannot be removed: {e.strerror}", code="not_removed") from e
        with self._lock:
            self._forget(response_id)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.shutdown()

    def _forget(self, response_id: str) -> None:
        kept = self._kept.pop(response_id, None)
        self._n_bytes -= kept.n_bytes if kept else 0

    def _path(self, response_id: str) -> Path | None:
        if self._folder is None or not _ID.fullmatch(response_id):
            return None
        return self._folder / f"{response_id}.json"

    # on the writer's thread

    def _write(self, response_id: str, kept: Kept) -> None:
        path = self._path(response_id)
        assert path is not None
        try:
            _save(path, kept)
            _trim(path.parent)
        except OSError as e:
            why = e.strerror or str(e)
            if why != self._told:
                self._told = why  # once, and not for every response
                log.warning("responses are kept in memory only: %s", why)
            return
        with self._lock:
            self._forget(response_id)


def _save(path: Path, kept: Kept) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    messages = [{k: v for k, v in asdict(m).items() if v} for m in kept.messages]
    found = {"version": _VERSION, "response": kept.response, "messages": messages, "marks": kept.marks}
    data = json.dumps(found).encode()
    descriptor, aside = tempfile.mkstemp(_ASIDE, f".{path.stem}.", path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        Path(aside).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(aside).unlink()
        raise


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def _read(path: Path) -> Kept | None:
    try:
        data = json.loads(path.read_bytes())
        if data["version"] != _VERSION or data["response"]["id"] != path.stem:
            raise ValueError("it is another version, or another response")
        return Kept(data["response"], tuple(map(_message, data["messages"])), _marks(data.get("marks", {})))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        log.warning("%s is not used: %s", path.name, e if isinstance(e, OSError | ValueError) else "it is damaged")
        return None


def _message(data: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in data.pop("tool_calls", ()))
    found = Message(**data, tool_calls=calls)
    if not all(isinstance(v, str) for v in data.values()):
        raise ValueError("it is damaged")
    return found


def _marks(data: dict[str, dict[str, str]]) -> Marks:
    """Those of a file; earlier ones have none."""
    if not all(isinstance(value, str) for mark in data.values() for value in mark.values()):
        raise ValueError("it is damaged")
    return data


def _trim(folder: Path) -> None:
    """Remove the oldest of what is more than may be kept."""
    files, now = [], time.time()
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found = entry.stat()
                if entry.name.endswith(".json"):
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
                elif entry.name.endswith(_ASIDE) and now - found.st_mtime > _ASIDE_S:
                    Path(entry.path).unlink()
    files.sort(reverse=True)
    n_bytes = 0
    for number, (_, size, path) in enumerate(files):
        n_bytes += size
        if number and (number >= _MOST or n_bytes > _MOST_BYTES):
            Path(path).unlink(missing_ok=True)
