"""`pagedrun ps` and `pagedrun stop`: the servers of this user on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pagedrun.running import Running

_TITLES = ("PID", "ADDRESS", "MODELS", "STATE", "ANSWERS", "RAM", "VRAM", "SINCE")
_LOOK_S = 0.1
_ASK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A server as it is now. state: idle, answering, stopping, silent. models: with whether each is loaded.

    running, waiting: answers; None where it does not say. ram, vram: bytes; None where nobody knows.
    key_needed: what is said of one whose key we do not know; "" where we do.
    """

    server: Running
    state: str
    models: tuple[tuple[str, bool | None], ...]
    running: int | None = None
    waiting: int | None = None
    ram: int | None = None
    vram: int | None = None
    key_needed: str = ""


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; sizes in bytes, times since 1970.")] = False,
) -> None:
    """List the servers that run: yours, on this machine.

    The model of one that wants an API key is shown with what is known without it, or with PAGEDRUN_API_KEY.
    """
    from pagedrun import running
    from pagedrun.cli import console, table

    seen = [_look(server) for server in running.found()]
    if as_json:
        table.print_json([_to_json(one) for one in seen])
        return
    table.print_table(_TITLES, [_row(one) for one in seen], right=("PID", "RAM", "VRAM"))
    for why in filter(None, (one.key_needed for one in seen)):
        console.note(f"{why}: it does not say which of its models are loaded")
        console.note("hint:  set PAGEDRUN_API_KEY to one of its keys")
    if not seen:
        console.note(f"no server runs; start one with: {console.typed('pagedrun serve MODEL')}")


def stop(
    target: Annotated[
        str | None,
        typer.Argument(metavar="PID|URL", help="Which one, as pagedrun ps shows it. Without it: the only one."),
    ] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All of them.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Do not let running answers end first.")] = False,
) -> None:
    """Stop a server. Running answers may end first; waits until it is gone. Ctrl-C only ends the waiting.

    Exit codes: 0 stopped, 1 there is none, or it could not be stopped, 2 wrong usage, 130 interrupted.
    """
    from pagedrun.cli import console
    from pagedrun.errors import UsageError

    if target is not None and everything:
        raise UsageError("--all stops every server: leave the other one out")
    servers = _chosen(target, everything=everything)
    for server in servers:
        _signal(server)
    for server in servers:
        _wait(server, now=now)
        console.note(f"stopped {server.pid}, {server.url}")


def _chosen(target: str | None, *, everything: bool) -> list[Running]:
    """The servers that are meant. Raises UsageError, or PagedrunError where there is none."""
    from pagedrun import running
    from pagedrun.errors import PagedrunError, UsageError

    servers = running.found()
    if not servers:
        raise PagedrunError("no server runs")
    if target is None:
        if len(servers) > 1 and not everything:
            which = ", ".join(f"{one.pid} ({one.url})" for one in servers)
            raise UsageError(f"several servers run: {which}", hint="name one of them, or use --all")
        return servers
    address = target if "://" in target else f"http://{target}"
    meant = [one for one in servers if target == str(one.pid) or running.same(one.url, address)]
    if not meant:
        raise PagedrunError(f"none of your servers is {target}", hint="pagedrun ps lists them")
    return meant


def _signal(server: Running) -> None:
    """Ask it to stop, if the process is still the one that wrote the record. Raises PagedrunError."""
    from pagedrun.errors import PagedrunError
    from pagedrun.running import is_gone, is_process

    if is_gone(server):
        return
    if not is_process(server):
        raise PagedrunError(f"process {server.pid} here is no server of yours", hint="does it run in a container?")
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except OSError as e:
        raise PagedrunError(f"{server.pid} cannot be stopped: {e.strerror}") from e


def _wait(server: Running, *, now: bool) -> None:
    """Until it is gone. Raises PagedrunError."""
    from pagedrun.cli import console
    from pagedrun.running import is_gone, is_process
    from pagedrun.units import count

    told = False
    with console.waiting(f"stopping {server.pid}") as says:
        while not is_gone(server):
            ready = _ask(server, "/ready")
            if now and not told and ready is None:  # it has heard the first signal: the second ends what runs
                told = True
                _signal(server)
            n = _ask(server, "/v1/pagedrun/stats") or {}
            if n.get("running"):
                says(f"stopping {server.pid}: {count(n['running'], 'answer')} may end first; --now ends them")
            time.sleep(_LOOK_S)
        while is_process(server):
            time.sleep(_LOOK_S)


def _look(server: Running) -> _Seen:
    from pagedrun.remote import KeyNeededError

    state, ready, listed, key_needed = "silent", None, None, ""
    if _ask(server, "/health") is not None:
        ready = _ask(server, "/ready")
        try:
            listed = _asked(server, "/v1/models")
        except KeyNeededError as e:
            key_needed = e.message
        state = "stopping"
    if ready is not None:
        state = "answering" if ready.get("running") else "idle"
    loaded = {m.get("id"): m.get("pagedrun", {}).get("loaded") for m in (listed or {}).get("data", ())}
    names = {m.name: loaded.get(m.name) for m in server.models}
    if server.any_installed:  # those that it has loaded of all that are here
        names |= {name: True for name, there in loaded.items() if there}
    ram, vram = _memory(server)
    return _Seen(
        server=server,
        state=state,
        models=tuple(names.items()),
        running=ready.get("running") if ready else None,
        waiting=ready.get("waiting") if ready else None,
        ram=ram,
        vram=vram,
        key_needed=key_needed,
    )


def _ask(server: Running, path: str) -> dict[str, Any] | None:
    """What it answers; None where it does not, or wants a key."""
    from pagedrun.remote import KeyNeededError

    try:
        return _asked(server, path)
    except KeyNeededError:
        return None


def _asked(server: Running, path: str) -> dict[str, Any] | None:
    """What it answers; None where it does not. Raises KeyNeededError."""
    from pagedrun.errors import PagedrunError
    from pagedrun.remote import Address, KeyNeededError, get

    key = os.environ.get("PAGEDRUN_API_KEY", "").strip()
    try:
        found = get(Address(url=server.url, key=key, secret=server.secret), path, read_s=_ASK_S)
    except KeyNeededError:
        raise
    except PagedrunError:
        return None
    return found if isinstance(found, dict) else None


def _memory(server: Running) -> tuple[int | None, int | None]:
    import psutil

    from pagedrun.footprint import gpu_memory, process_memory
    from pagedrun.running import is_process

    if not is_process(server):
        return None, None
    try:
        return process_memory(server.pid), gpu_memory(server.pid)
    except psutil.Error:
        return None, None


def _row(one: _Seen) -> Sequence[str]:
    from pagedrun.cli.models.listing import ago
    from pagedrun.units import size

    names = ", ".join(name if loaded is not False else f"{name} (not loaded)" for name, loaded in one.models)
    answers = "-" if one.running is None else f"{one.running}" + (f" + {one.waiting} waiting" if one.waiting else "")
    ram, vram = ("-" if n is None else size(n) for n in (one.ram, one.vram))
    return str(one.server.pid), one.server.url, names, one.state, answers, ram, vram, ago(one.server.started)


def _to_json(one: _Seen) -> dict[str, Any]:
    return {
        "pid": one.server.pid,
        "url": one.server.url,
        "models": [
            {"name": name, "path": next((m.path for m in one.server.models if m.name == name), None), "loaded": loaded}
            for name, loaded in one.models
        ],
        "state": one.state,
        "running": one.running,
        "waiting": one.waiting,
        "ram_bytes": one.ram,
        "vram_bytes": one.vram,
        "key_needed": bool(one.key_needed),
        "started": one.server.started,
    }
