"""Servers of this user that run on this machine: a file for each in the state folder, locked for as long as it lives.

servers/PID.json   {"pid", "born", "url", "models": [{"name", "path"}], "any_installed", "started", "secret"}

Only its user can read a file, so who knows the secret is its user. A file whose lock can be taken was left by a server
that died; who finds it removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pagedrun.paths import state_dir

#: The header of a request by which the server's own user shows who asks.
OWNER = "x-pagedrun-owner"

_DEAD = ("Z", "X")  # it has ended, and nobody has asked how
_NAMED = ("0.0.0.0", "::", "")  # addresses that mean all of them


@dataclass(frozen=True, slots=True)
class Offered:
    """A model of a server: what requests call it, and its file."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server. url: without /v1. any_installed: it loads others too, by their names.

    born: when the process began, in ticks since the machine was started. started: when it listened, in seconds since
    1970.
    """

    pid: int
    born: int
    url: str
    models: tuple[Offered, ...]
    started: float
    any_installed: bool
    secret: str = field(repr=False)

    def has(self, path: Path) -> str | None:
        """What it calls the model of this file; None where it has none of it."""
        real = os.path.realpath(path)
        return next((m.name for m in self.models if os.path.realpath(m.path) == real), None)


class Record:
    """The file of this process, from `write` to `close`. secret: see above; one is there before anything is written."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self._path = servers_dir() / f"{os.getpid()}.json"
        self._started = 0.0
        self._fd = -1

    def write(self, url: str, models: Sequence[Offered], *, any_installed: bool = False) -> None:
        """The server listens, or has other models now. Raises OSError."""
        self._started = self._started or time.time()
        running = Running(
            pid=os.getpid(),
            born=_born(os.getpid()),
            url=url,
            models=tuple(models),
            any_installed=any_installed,
            started=self._started,
            secret=self.secret,
        )
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = self._path.with_suffix(".new")
        aside.unlink(missing_ok=True)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(asdict(running)).encode())
            aside.replace(self._path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                aside.unlink()
            raise
        before, self._fd = self._fd, fd
        if before >= 0:
            os.close(before)

    def close(self) -> None:
        """The server is gone."""
        if self._fd >= 0:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = -1


def servers_dir() -> Path:
    """Where the files are."""
    return state_dir() / "servers"


def found() -> list[Running]:
    """The servers that run, the newest first. Files of others, or that nobody can read, are left alone."""
    servers = []
    with suppress(OSError):
        for path in servers_dir().glob("*.json"):
            if (one := _read(path)) is not None:
                servers.append(one)
    return sorted(servers, key=lambda one: -one.started)


def at(url: str) -> Running | None:
    """The one at an address."""
    return next((one for one in found() if same(one.url, url)), None)


def same(one: str, other: str) -> bool:
    """Whether two addresses are the same; localhost is 127.0.0.1."""
    return _plain(one) == _plain(other)


def is_gone(one: Running) -> bool:
    """Whether a server that was found has ended."""
    now = _read(servers_dir() / f"{one.pid}.json")
    return now is None or now.born != one.born


def is_process(one: Running) -> bool:
    """Whether the process of that number here is the server: not where one of them is in a container."""
    try:
        return _born(one.pid) == one.born
    except OSError:
        return False


def reachable(url: str) -> str:
    """A server's address as programs on this machine reach it."""
    head, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if host.strip("[]") not in _NAMED:
        return url
    return f"{head}://[::1]:{port}" if ":" in host else f"{head}://127.0.0.1:{port}"


def _plain(url: str) -> str:
    return url.lower().rstrip("/").removesuffix("/v1").replace("://localhost", "://127.0.0.1")


def _born(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    if fields[0] in _DEAD:
        raise ProcessLookupError(pid)
    return int(fields[19])


def _read(path: Path) -> Running | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return None
        if _is_free(fd):
            with suppress(OSError):
                path.unlink()
            return None
        return _parsed(os.read(fd, 1 << 20))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(fd)


def _is_free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _parsed(data: bytes) -> Running:
    found: dict[str, Any] = json.loads(data)
    models = tuple(Offered(str(m["name"]), str(m["path"])) for m in found["models"])
    return Running(
        pid=int(found["pid"]),
        born=int(found["born"]),
        url=str(found["url"]),
        models=models,
        any_installed=bool(found["any_installed"]),
        started=float(found["started"]),
        secret=str(found["secret"]),
    )
