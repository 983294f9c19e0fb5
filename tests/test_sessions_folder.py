"""A folder of sessions: names, the budget, and what the command line will do with it."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.errors import UsageError
from pagedrun.sessions import (
    DamagedSessionError,
    Disk,
    NoRoomError,
    NotSavedError,
    OtherIdentityError,
    Session,
    SessionError,
    SessionFolder,
    SessionNotFoundError,
)
from pagedrun.sessions.format import unpack_head
from pagedrun.sessions.places import ALIGN
from tests.session_files import SMALL, BadDisk, QuickDisk, contents, judged


class Clock:
    """Goes on by a second each time."""

    def __init__(self) -> None:
        self.now = 10**18

    def __call__(self) -> int:
        self.now += 10**9
        return self.now


def folder(root: Path, cache_disk: int = 1 << 30, disk: Disk | None = None) -> SessionFolder:
    return SessionFolder(root, cache_disk, disk=disk or QuickDisk(), clock=Clock())


def pages(n: int, first: int = 0) -> object:
    """A conversation whose file has 3 + n blocks: its tokens fill n pages, each of a block."""
    return contents([first, *range(n * SMALL.page_bytes // SMALL.row_bytes - 1)])


BLOCK = ALIGN


def names(f: SessionFolder, kind: str = "cache") -> list[str]:
    return [e.name for e in f.entries(kind)]  # type: ignore[arg-type]


# names


@pytest.mark.parametrize("name", ["a", "Ünï cödé", "a.b", "a-b_c", "x" * 200, "日本", "a..b", "COM1", "a'b\"c$"])
def test_names_that_are_good(tmp_path: Path, name: str) -> None:
    f = folder(tmp_path)
    f.save(name, contents(range(9)))
    assert names(f, "named") == [name]
    assert f.show(name).meta is not None
    with f.open(name, SMALL) as s:
        assert s.usable_tokens == 9
    f.remove(name)
    assert not names(f, "named")


BAD = ["", " ", ".", "..", ".hidden", "../a", "a/b", "/etc/passwd", "a\\b", "a\0b", "a\nb", "-rf", "x" * 201]
BAD += ["é" * 101, "\ud800", "a\x1b[31m", " a", "a "]


@pytest.mark.parametrize("name", BAD, ids=range(len(BAD)))
def test_names_that_are_not(tmp_path: Path, name: str) -> None:
    f = folder(tmp_path / "s")
    for use in (f.path, f.show, f.remove, lambda n: f.save(n, contents([1])), lambda n: f.import_(tmp_path, n)):
        with pytest.raises(UsageError) as e:
            use(name)
        assert e.value.hint
    assert not (tmp_path / "s").exists()


# the budget


def test_the_least_recently_used_entries_leave_and_named_ones_do_not(tmp_path: Path) -> None:
    f = folder(tmp_path, 3 * 6 * BLOCK)
    f.save("kept", pages(40))
    for i, key in enumerate("abc"):
        assert f.cache(key, pages(3, i))
    assert f.cache_bytes == 3 * 6 * BLOCK and names(f) == ["c", "b", "a"]
    f.open("a", SMALL, "cache").close()  # a use
    assert f.cache("d", pages(3))
    assert names(f) == ["d", "a", "c"], "b was not used for longest"
    assert f.cache("e", pages(5))
    assert names(f) == ["e", "d"], "two had to go for one that is larger by two blocks"
    assert f.cache_bytes == 14 * BLOCK and names(f, "named") == ["kept"] and not f.refused


def test_a_budget_that_was_lowered(tmp_path: Path) -> None:
    f = folder(tmp_path, 3 * 6 * BLOCK)
    f.save("kept", pages(40))
    for i, key in enumerate("abc"):
        assert f.cache(key, pages(3, i))
    lower = folder(tmp_path, 2 * 6 * BLOCK)
    lower.trim()
    assert names(lower) == ["c", "b"] and names(lower, "named") == ["kept"]
    lower.trim()
    assert names(lower) == ["c", "b"]
    folder(tmp_path / "nothing", 1).trim()
    assert not (tmp_path / "nothing").exists()


def test_the_budget_is_exact(tmp_path: Path) -> None:
    f = folder(tmp_path, 6 * BLOCK)
    assert f.cache("a", pages(3)) and f.cache_bytes == 6 * BLOCK
    f = folder(tmp_path, 6 * BLOCK - 1)
    assert f.cache("b", pages(3)) is None and "cache_disk" in f.refused
    assert names(f) == ["a"], "what cannot fit drives nobody out"
    f = folder(tmp_path / "none", 0)
    assert f.cache("a", pages(1)) is None and f.refused and not names(f)
    f = folder(tmp_path, 1 << 20)
    assert f.cache("b", pages(3)) and not f.refused


def test_room_is_made_before_anything_is_written(tmp_path: Path) -> None:
    """At every operation the folder is within the budget."""
    limit = 20 * BLOCK

    class Watching(QuickDisk):
        most = 0

        def _look(self) -> None:
            paths = list((tmp_path / "cache").iterdir())
            Watching.most = max(Watching.most, sum(p.stat().st_size for p in paths))

        def write(self, fd: int, data: memoryview, offset: int) -> None:
            self._look()
            super().write(fd, data, offset)
            self._look()

        def replace(self, old: Path, new: Path) -> None:
            self._look()
            super().replace(old, new)

    f, rng = folder(tmp_path, limit, Watching()), random.Random(1)
    marks: dict[str, object] = {}
    saved = {}
    for _ in range(150):
        key = rng.choice("abcdef")
        saved[key] = contents([ord(key), *range(rng.randrange(1, 40))])
        marks[key] = f.cache(key, saved[key], marks.get(key) if rng.random() < 0.7 else None)  # type: ignore[arg-type]
        assert f.cache_bytes <= limit
        if marks[key]:
            assert judged(f.path(key, "cache"), [saved[key]]) == (0, len(saved[key].tokens))
    assert limit - 3 * BLOCK <= Watching.most <= limit


def test_an_entry_that_grows_drives_others_out_but_not_itself(tmp_path: Path) -> None:
    f = folder(tmp_path, 16 * BLOCK)
    mark = f.cache("old", pages(3))
    assert f.cache("new", pages(3))
    inode = f.path("old", "cache").stat().st_ino
    longer = contents([0, *range(30)])
    assert f.cache("old", longer, mark)
    assert names(f) == ["old"] and f.path("old", "cache").stat().st_ino == inode, "it was appended to"


def test_an_entry_that_is_written_anew_leaves_last_itself(tmp_path: Path) -> None:
    f = folder(tmp_path, 18 * BLOCK)
    assert f.cache("a", pages(3)) and f.cache("b", pages(3)) and f.cache("c", pages(3))
    assert f.cache("a", pages(3))
    assert names(f) == ["a", "c"], "b went, though a was older"
    assert f.cache("a", pages(14))
    assert names(f) == ["a"]


def test_what_somebody_reads_or_writes_stays(tmp_path: Path) -> None:
    f = folder(tmp_path, 12 * BLOCK)
    assert f.cache("a", pages(3)) and f.cache("b", pages(3))
    with f.open("a", SMALL, "cache"):
        assert f.cache("c", pages(3))
        assert names(f) == ["c", "a"]
        assert f.cache("d", pages(6)) is None and f.refused
        assert names(f) == ["c", "a"]
    assert f.cache("d", pages(6)) and names(f) == ["d"]


def test_what_dead_writers_left_goes_first(tmp_path: Path) -> None:
    f = folder(tmp_path, 12 * BLOCK)
    assert f.cache("a", pages(3))
    dead, living = (tmp_path / "cache" / f".{n}.kv.0.new" for n in ("x", "y"))
    dead.write_bytes(bytes(4 * BLOCK))
    living.write_bytes(bytes(2 * BLOCK))
    assert f.cache_bytes == 12 * BLOCK
    with living.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert f.cache("b", pages(1))
        assert names(f) == ["b", "a"] and not dead.exists() and living.exists()
        assert f.cache("b", pages(8)) is None, "what is being written counts"


def test_two_processes_share_one_budget(tmp_path: Path) -> None:
    """Each with its own object, at the same time: never more than the budget."""
    limit, over = 30 * BLOCK, []
    folders = [SessionFolder(tmp_path, limit, disk=QuickDisk()) for _ in range(4)]
    stop = threading.Event()

    def save_some(f: SessionFolder, worker: int) -> None:
        for i in range(25):
            f.cache(f"{worker}-{i % 5}", pages(2 + (i * 7 + worker) % 9, i))  # type: ignore[arg-type]

    def watch() -> None:
        while not stop.is_set():
            with folders[0]._budget.locked():
                if (used := folders[0].cache_bytes) > limit:
                    over.append(used)

    watcher = threading.Thread(target=watch)
    workers = [threading.Thread(target=save_some, args=(f, i)) for i, f in enumerate(folders)]
    for thread in (watcher, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    watcher.join()
    assert not over and folders[0].entries("cache") and all(e.meta for e in folders[0].entries())


def test_a_full_disk_is_a_reason_and_no_error_for_automatic_entries(tmp_path: Path) -> None:
    good = folder(tmp_path)
    assert good.cache("a", pages(3))
    f = folder(tmp_path, 1 << 30, BadDisk(2, forever=True))
    assert f.cache("b", pages(3)) is None and "disk is full" in f.refused
    assert names(f) == ["a"]
    with pytest.raises(NotSavedError):
        folder(tmp_path, 1 << 30, BadDisk(2)).save("b", pages(3))  # type: ignore[arg-type]


# the commands


def test_the_list_says_what_there_is_and_what_cannot_be_used(tmp_path: Path) -> None:
    f = folder(tmp_path / "none")
    assert f.entries() == [] and f.gc() == [] and f.cache_bytes == 0
    f = folder(tmp_path)
    f.save("a", contents(range(9), name="a", model="Tiny"))
    f.cache("k", contents(range(5)))
    f.save("b", contents(range(7)))
    f.path("b").write_bytes(b"junk")
    os.utime(f.path("b"), ns=(5, 5))
    (tmp_path / "named" / "note.txt").write_text("not ours")
    (tmp_path / "named" / "folder.kv").mkdir()
    cached, a, b = f.entries()
    assert (cached.kind, cached.name, a.kind, a.name) == ("cache", "k", "named", "a")
    assert (
        a.meta is not None
        and (a.meta.n_tokens, a.meta.model) == (9, "Tiny")
        and a.n_bytes == f.path("a").stat().st_size
    )
    assert b.meta is None and "b.kv" in b.reason and b.used == 5
    assert [e.name for e in f.entries("named")] == ["a", "b"]
    assert f.check("a").whole
    with pytest.raises(DamagedSessionError):
        f.check("b")
    assert f.remove("b") == 4


def test_what_is_not_there(tmp_path: Path) -> None:
    f = folder(tmp_path)
    for use in (f.show, f.remove, f.check, lambda n: f.rename(n, "b"), lambda n: f.export(n, tmp_path / "x")):
        with pytest.raises(SessionNotFoundError):
            use("a")
    assert not (tmp_path / "x").exists()
    with pytest.raises(SessionNotFoundError):
        f.open("a", SMALL)
    with pytest.raises(SessionNotFoundError):
        f.import_(tmp_path / "x", "a")


def test_a_session_is_renamed_but_over_no_other(tmp_path: Path) -> None:
    f = folder(tmp_path)
    mark = f.save("a", contents(range(9)))
    f.save("b", contents(range(5)))
    with pytest.raises(UsageError, match="already"):
        f.rename("a", "b")
    f.rename("a", "c")
    assert sorted(names(f, "named")) == ["b", "c"]
    f.save("c", contents(range(12)), mark)
    assert judged(f.path("c"), [contents(range(12))]) == (0, 12)
    with pytest.raises(SessionError, match="renamed"):
        folder(tmp_path, 0, BadDisk(1, ops="replace")).rename("c", "d")


def test_export_and_import(tmp_path: Path) -> None:
    f, other = folder(tmp_path / "one"), folder(tmp_path / "two")
    mark = f.save("a", contents(range(30), (7,), usage={"turns": 2}, created=77))
    c = contents([*range(9), *range(50, 70)], (7,), usage={"turns": 3})
    f.save("a", c, mark.cut(9))
    out = tmp_path / "a.kv"
    assert f.export("a", out) == out.stat().st_size < f.path("a").stat().st_size, "without holes"
    meta = other.import_(out, "b")
    assert (meta.n_tokens, meta.name, meta.usage, meta.created) == (29, "b", {"turns": 3}, 77)
    assert judged(other.path("b"), [c]) == (0, 29)
    with other.open("b", SMALL) as s:
        assert s.read_snapshot(7) == c.snapshot(7)
    with pytest.raises(UsageError, match="already"):
        other.import_(out, "b")
    with pytest.raises(OtherIdentityError):
        other.open("b", replace(SMALL, model="m2"))


@pytest.mark.parametrize("what", ["page", "snapshot", "index", "cut"])
def test_what_is_damaged_is_neither_exported_nor_imported(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    f = folder(tmp_path / "f")
    f.save("a", contents(range(30), (7,)))
    with f.open("a", SMALL) as s:
        table = s.index.table["offset"]
        at = {"page": table[3], "snapshot": table[-1], "index": s.index.head.offset, "cut": 0}[what]
    raw = bytearray(f.path("a").read_bytes())
    raw[int(at)] ^= what != "cut"
    bad = tmp_path / "bad.kv"
    bad.write_bytes(raw[:-BLOCK] if what == "cut" else raw)
    with pytest.raises(DamagedSessionError) as e:
        f.import_(bad, "b")
    assert "copy or export it again" in e.value.hint and not [r for r in caplog.records if r.levelname == "WARNING"]
    assert names(f, "named") == ["a"] and not list((tmp_path / "f" / "named").glob(".*"))
    f.path("a").write_bytes(bad.read_bytes())
    out = tmp_path / "out.kv"
    out.write_text("what was there")
    with pytest.raises(DamagedSessionError):
        f.export("a", out)
    assert out.read_text() == "what was there"


def test_gc_removes_what_nobody_can_use(tmp_path: Path) -> None:
    f = folder(tmp_path)
    for key in "abcde":
        assert f.cache(key, pages(2, ord(key)))
    for name in ("named", "damaged"):
        f.save(name, pages(2))  # type: ignore[arg-type]
    f.path("damaged").write_bytes(b"x" * 100)
    f.path("a", "cache").write_bytes(b"x" * 100)
    raw = bytearray(f.path("b", "cache").read_bytes())
    head = unpack_head(bytes(raw[:ALIGN]))
    assert head is not None
    raw[:ALIGN] = replace(head, version=2).pack()
    f.path("b", "cache").write_bytes(raw)
    dead = [tmp_path / kind / ".z.kv.1.new" for kind in ("named", "cache")]
    for path in dead:
        path.write_bytes(b"123")
    (tmp_path / "named" / ".note").write_text("not ours")
    living = tmp_path / "named" / ".y.kv.1.new"
    with living.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        removed = {r.path: r for r in f.gc()}
    assert set(removed) == {*dead, f.path("a", "cache"), f.path("b", "cache")}
    assert removed[dead[0]].n_bytes == 3 and "ended" in removed[dead[0]].why
    assert "version 2" in removed[f.path("b", "cache")].why and "header" in removed[f.path("a", "cache")].why
    assert living.exists() and (tmp_path / "named" / ".note").exists()
    assert sorted(names(f, "named")) == ["damaged", "named"] and names(f) == ["e", "d", "c"]
    smaller = folder(tmp_path, 11 * BLOCK)
    assert [r.path.name for r in smaller.gc()] == [".y.kv.1.new", "c.kv"]
    assert names(smaller) == ["e", "d"] and smaller.gc() == []


def test_a_disk_that_fails_removes_nothing_in_gc(tmp_path: Path) -> None:
    f = folder(tmp_path)
    assert f.cache("a", pages(2))
    assert folder(tmp_path, 1 << 30, BadDisk(1, 13, "open", forever=True)).gc() == []
    assert names(f) == ["a"]


def test_who_reads_a_session_that_is_removed_can_go_on(tmp_path: Path) -> None:
    f, c = folder(tmp_path), contents(range(30))
    mark = f.save("a", c)
    with Session(f.path("a")) as s:
        f.remove("a")
        assert s.check().whole
    f.save("a", c, mark)
    assert judged(f.path("a"), [c]) == (0, 30)


def test_the_folder_is_private(tmp_path: Path) -> None:
    f = folder(tmp_path / "s")
    f.save("a", contents([1]))
    assert oct((tmp_path / "s").stat().st_mode)[-3:] == oct((tmp_path / "s" / "named").stat().st_mode)[-3:] == "700"


def test_no_room_is_an_error_of_its_own(tmp_path: Path) -> None:
    f = folder(tmp_path, 5 * BLOCK)
    with pytest.raises(NoRoomError):
        f._save("cache", "a", pages(9), None)  # type: ignore[arg-type]
