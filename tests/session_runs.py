"""Saves under kills, power cuts and faults, each from a seed: what scripts/fuzz_sessions.py repeats and tests sample.

Whatever happens, what a reader finds is a state that was saved, whole; not older than the last one of which the writer
was told that it is saved; and nothing is left over that gc does not remove.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.sessions import Disk, Session, SessionError, SessionFolder, SessionNotFoundError, aligned, save
from tests.session_files import BadDisk, contents, judged, rows_of
from tests.session_saver import state

ROOT = Path(__file__).parents[1]


@dataclass
class Run:
    """One run: what it was, how it ended, and what was wrong with it ("" where nothing was)."""

    seed: int
    kind: str
    outcome: str = ""
    wrong: str = ""
    notes: list[str] = field(default_factory=list)


def start(folder: Path, name: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.session_saver", str(folder), name, str(seed)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def stop(process: subprocess.Popen[str]) -> int:
    """Kill it; answers the number of the last state that it called saved."""
    os.kill(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    lines = [line for line in out.split("\n")[:-1] if line]
    return int(lines[-1]) if lines else -1


def wrong_with(path: Path, seeds: list[int], at_least: int) -> str:
    """What is wrong with a file that processes of these seeds were saving; "" for nothing."""
    try:
        with Session(path) as session:
            number = session.meta.usage["number"]
            tokens = session.tokens.tolist()
            found = [s for seed in seeds if list((s := state(seed, number)[0]).tokens) == tokens]
            if not found:
                return f"it is not state {number}: {tokens}"
            if number < at_least:
                return f"state {number} is there, and {at_least} was saved"
            if not session.check().whole:
                return f"state {number} is not whole: {session.check()}"
            out = aligned(session.meta.n_pages, session.meta.identity.frame_bytes)
            if session.read_pages(0, out) != len(out):
                return f"pages of state {number} changed under its reader"
            if any(rows_of(out[i], i, found[0]) != rows_of(found[0].page(i), i, found[0]) for i in range(len(out))):
                return f"WRONG PAGES in state {number}"
            if any(session.read_snapshot(p) != found[0].snapshot(p) for p, _ in found[0].snapshots):
                return f"WRONG SNAPSHOT in state {number}"
    except SessionNotFoundError:
        return "" if at_least < 0 else f"nothing is there, and {at_least} was saved"
    except SessionError as e:
        return f"refused: {e.message}"
    return ""


def leftovers(folder: Path) -> str:
    """What gc leaves that is no session."""
    SessionFolder(folder, 0).gc()
    left = [p.name for p in (folder / "named").glob(".*")] if (folder / "named").exists() else []
    return f"left over: {left}" if left else ""


def killed(folder: Path, seed: int, *, name: str = "") -> Run:
    """One process saves, and is killed at a random moment after its first save."""
    rng, name = random.Random(seed), name or f"k{seed}"
    run = Run(seed, "killed")
    process = start(folder, name, seed)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(rng.random() * 0.15)
    last = max(stop(process), int(first or -1))
    path = SessionFolder(folder, 0).path(name)
    asides = len(list(path.parent.glob(".*")))
    run.outcome = "killed while writing aside" if asides else "killed"
    run.wrong = wrong_with(path, [seed], last) or leftovers(folder)
    run.notes.append(f"saved {last}")
    path.unlink(missing_ok=True)
    return run


def two_writers(folder: Path, seed: int) -> Run:
    """Two processes save the same name, and are killed one after the other."""
    rng, name = random.Random(seed), f"t{seed}"
    run, seeds = Run(seed, "two writers"), [2 * seed, 2 * seed + 1]
    path = SessionFolder(folder, 0).path(name)
    processes = [start(folder, name, s) for s in seeds]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for _ in range(20):  # nobody ever sees a mixture
        run.wrong = run.wrong or wrong_with(path, seeds, 0)
        time.sleep(rng.random() * 0.01)
    for process in processes:
        stop(process)
    run.outcome = "killed"
    run.wrong = run.wrong or wrong_with(path, seeds, 0) or leftovers(folder)
    path.unlink(missing_ok=True)
    return run


class Journal(Disk):
    """Remembers what was written and when it was synced, so that a power cut can be played."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, object]] = []  # (what, inode, how)
        self.names: dict[str, int] = {}

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        self.events.append(("write", os.fstat(fd).st_ino, (bytes(data), offset)))
        super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self.events.append(("size", os.fstat(fd).st_ino, size))
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self.events.append(("sync", os.fstat(fd).st_ino, None))

    def replace(self, old: Path, new: Path) -> None:
        self.events.append(("name", old.stat().st_ino, None))
        super().replace(old, new)

    def sync_folder(self, folder: Path) -> None:
        self.events.append(("folder", 0, None))

    def saved(self, number: int) -> None:
        self.events.append(("saved", 0, number))

    def after_cut(self, at: int, rng: random.Random) -> tuple[bytes | None, int]:
        """What the disk may have under the name if the power goes before event `at`; and the last state saved.

        What was not synced is there or not, in any order; a write is there block by block (512 bytes).
        """
        files: dict[int, bytearray] = {}
        loose: dict[int, list[tuple[str, object]]] = {}
        name, coming, saved = 0, [], -1
        for what, inode, how in self.events[:at]:
            if what in ("write", "size"):
                loose.setdefault(inode, []).append((what, how))
            elif what == "sync":
                for one in loose.pop(inode, []):
                    _apply(files.setdefault(inode, bytearray()), *one)
            elif what == "name":
                coming.append(inode)
            elif what == "folder":
                name, coming = (coming[-1] if coming else name), []
            else:
                saved = how  # type: ignore[assignment]
        for inode, pending in loose.items():
            pieces = [piece for one in pending for piece in _pieces(*one) if rng.random() < 0.6]
            rng.shuffle(pieces)
            for one in pieces:
                _apply(files.setdefault(inode, bytearray()), *one)
        name = rng.choice([name, *coming])
        return (bytes(files.get(name, b"")) if name else None), saved


def _pieces(what: str, how: object) -> list[tuple[str, object]]:
    if what == "size":
        return [(what, how)]
    data, offset = how  # type: ignore[misc]
    return [(what, (data[i : i + 512], offset + i)) for i in range(0, len(data), 512)]


def _apply(file: bytearray, what: str, how: object) -> None:
    if what == "size":
        file[:] = file[:how].ljust(how, b"\0")  # type: ignore[misc, call-overload]
        return
    data, offset = how  # type: ignore[misc]
    if len(file) < offset + len(data):
        file.extend(bytes(offset + len(data) - len(file)))
    file[offset : offset + len(data)] = data


def power_cut(folder: Path, seed: int, *, cuts: int = 40, disk: Callable[[], Journal] = Journal) -> Run:
    """A process saves some states, and the power goes at random moments of that."""
    rng, run = random.Random(seed), Run(seed, "power cut")
    journal, path, mark = disk(), folder / f"p{seed}", None
    for number in range(10):
        saved, kept, anew = state(seed, number)
        mark = save(path, saved, since=None if anew or mark is None else mark.cut(kept), disk=journal)
        journal.saved(number)
    path.unlink()
    after = folder / f"p{seed}.after"
    for _ in range(cuts):
        raw, last = journal.after_cut(rng.randrange(len(journal.events) + 1), rng)
        after.unlink(missing_ok=True)
        if raw is not None:
            after.write_bytes(raw)
        run.wrong = run.wrong or wrong_with(after, [seed], last)
    after.unlink(missing_ok=True)
    run.outcome = f"of {cuts} cuts"
    return run


def faults(folder: Path, seed: int) -> Run:
    """An operation of a save fails, and perhaps all after it; then one page is damaged."""
    rng, run, path = random.Random(seed), Run(seed, "fault"), folder / f"f{seed}"
    number = rng.randrange(1, 8)
    old, _, _ = state(seed, number - 1)
    new, kept, _ = state(seed, number)
    mark = save(path, old, disk=BadDisk())
    before = path.stat().st_size
    ops = rng.choice(("write", "write", "sync", "truncate", "open", "replace", "write sync truncate replace open"))
    kind = rng.choice((errno.ENOSPC, errno.EIO, errno.EDQUOT))
    disk = BadDisk(rng.randrange(1, 12), kind, ops, forever=rng.random() < 0.5)
    try:
        save(path, new, since=mark.cut(kept) if rng.random() < 0.7 else None, disk=disk)
        run.outcome, states = "saved", [new]
    except SessionError as e:
        run.outcome, states = "clear error", [old]
        if disk.ops != ["write"]:  # whoever cannot sync or undo cannot know: either state, whole
            states = [old, new]
        elif path.stat().st_size != before and not disk.forever:
            run.wrong = "it was not made as short as it was"
        if not e.message:
            run.wrong = "an error without a message"
    try:
        got = judged(path, states)
        if isinstance(got, str) or got[1] != len(states[got[0]].tokens):
            run.wrong = run.wrong or f"after {run.outcome}: {got}"
    except AssertionError as e:
        run.wrong = f"after {run.outcome}: {e}"
    with suppress(OSError):
        run.wrong = run.wrong or ("an aside is left" if list(folder.glob(f".f{seed}.*")) else "")
    run.wrong = run.wrong or _flipped(path, rng, states)
    path.unlink()
    return run


def _flipped(path: Path, rng: random.Random, states: list[object]) -> str:
    with Session(path) as session:
        n, page = session.meta.n_pages, rng.randrange(max(session.meta.n_pages, 1))
        at = int(session.index.pages["offset"][page]) + rng.randrange(session.meta.identity.frame_bytes)
        expected = session.meta.identity.tokens_in(page)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    got = judged(path, states)  # type: ignore[arg-type]
    return "" if n and not isinstance(got, str) and got[1] == expected else f"page {page} flipped: {got}"


KINDS: dict[str, Callable[[Path, int], Run]] = {
    "killed": killed,
    "two writers": two_writers,
    "power cut": power_cut,
    "fault": faults,
}

__all__ = ["KINDS", "Journal", "Run", "contents", "faults", "killed", "power_cut", "two_writers", "wrong_with"]
