"""Damaged files of sessions, for kill_sessions.py."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kill_side import ANSWER, Engine, register
from paged_side import tokens_of


def saved(path: Path) -> list[int]:
    """A file's tokens."""
    from pagedrun.sessions import Session

    with Session(path) as session:
        return [int(t) for t in session.tokens]


def faults(models: list[Path], folder: Path, n: int) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Each kind of damage, with its outcomes and what was wrong."""
    from pagedrun.errors import PagedrunError
    from pagedrun.sessions import Disk, Session

    class Full(Disk):
        """Full after so many bytes more."""

        left = 1 << 60

        def write(self, fd: int, data: memoryview, offset: int) -> None:
            if len(data) > self.left:
                super().write(fd, data[: self.left], offset)
                self.left = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= len(data)
            super().write(fd, data, offset)

    kinds = ("disk full", "page flipped", "truncated", "other version", "other model")
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    wrong: dict[str, list[str]] = {kind: [] for kind in kinds}
    engines = [Engine(model, folder / f"faults-{i}") for i, model in enumerate(models)]
    for engine in engines:
        engine.keeper.automatic = False
    for number in range(n):
        rng, engine = random.Random(number), engines[number % len(engines)]
        path = engine.keeper.folder.path("f")
        for kind in kinds:
            tokens = tokens_of(rng.randrange(1 << 30), rng.randrange(80, 300))
            tokens += engine.ask(tokens)[0]
            if (told := save_now(engine, tokens)) is not None:
                wrong[kind].append(f"seed {number}: {told}")
                continue
            if kind == "disk full":
                before = saved(path)
                disk = Full()
                disk.left = rng.randrange(0, 400_000)
                engine.keeper.folder._disk = disk
                longer = tokens + tokens_of(number, 100)
                longer += engine.ask(longer)[0]
                told = save_now(engine, longer)
                engine.keeper.folder._disk = Disk()
                if told is not None:
                    ends[kind]["refused, the old state is there"] += 1
                    if saved(path) != before or "disk is full" not in str(told):
                        wrong[kind].append(f"seed {number}: {told}")
                else:
                    now = saved(path)
                    ends[kind]["there was room" if len(now) > len(tokens) else "saved without new pages"] += 1
                    if now != longer[: len(now)]:
                        wrong[kind].append(f"seed {number}: other tokens than those that were said")
                    tokens = longer
            elif kind == "page flipped":
                with Session(path) as session:
                    offset = int(rng.choice(list(session.index.pages["offset"])))
                    size = session.meta.identity.frame_bytes
                flip(path, offset + rng.randrange(size), rng.randrange(8))
            elif kind == "truncated":
                os.truncate(path, rng.randrange(path.stat().st_size))
            elif kind == "other version":
                change_version(path)
            elif len(engines) > 1:
                engine, tokens = engines[(number + 1) % len(engines)], tokens[:-ANSWER]  # of any vocabulary
                engine.keeper.folder.path("f").parent.mkdir(parents=True, exist_ok=True)
                path.replace(engine.keeper.folder.path("f"))
                path = engine.keeper.folder.path("f")
            try:
                register(engine, "f", path)
            except PagedrunError as e:
                ends[kind][reason(e.message)] += 1
                path.unlink()
            most, restored = engine.difference(tokens)
            ends[kind]["some restored" if restored else "all computed"] += 1
            if most:
                wrong[kind].append(f"seed {number}: {most} apart, {restored} restored")
            engine.do(lambda e=engine: e.keeper.stored.remove(("named", "f")))
            path.unlink(missing_ok=True)
    for engine in engines:
        engine.service.close()
    for kind in kinds:
        yield kind, ends[kind], wrong[kind]


def save_now(engine: Engine, tokens: list[int]) -> Exception | None:
    """Save a session, and wait for it; what was wrong."""
    told: list[Exception | None] = []
    engine.do(lambda: engine.keeper.save("f", tokens, "", told.append))
    engine.settle()
    return told[0]


def reason(message: str) -> str:
    """Why a file is refused, without numbers."""
    for part in ("truncated", "version", "the model was", "no header", "index"):
        if part in message:
            return f"refused: {part}"
    return message


def flip(path: Path, offset: int, bit: int) -> None:
    """One bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def change_version(path: Path) -> None:
    """As a later pagedrun may write it: another version, with a digest that is right."""
    from dataclasses import replace

    from pagedrun.sessions.format import unpack_head
    from pagedrun.sessions.places import ALIGN

    data = bytearray(path.read_bytes())
    for at in (0, ALIGN):
        if (head := unpack_head(bytes(data[at : at + ALIGN]))) is not None:
            data[at : at + ALIGN] = replace(head, version=head.version + 1).pack()
    path.write_bytes(data)
