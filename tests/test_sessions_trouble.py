"""Disks that are full or fail, folders that may not be written to, and the identity of models."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.errors import ModelFileError
from pagedrun.sessions import (
    Difference,
    Disk,
    Identity,
    Mark,
    NotSavedError,
    Session,
    SessionError,
    SessionFolder,
    model_digest,
    save,
    text_digest,
)
from pagedrun.sessions.disk import idle, shared
from tests.gguf_models import write_varied
from tests.session_files import SMALL, BadDisk, QuickDisk, contents, judged

OLD, NEW = contents(range(30), (7, 30)), contents(range(60), (7, 30, 50))


def saved_with(path: Path, disk: Disk, *, append: bool) -> str:
    """Save OLD, then NEW on that disk; answers what the error says, "" where there was none."""
    mark = save(path, OLD, disk=QuickDisk())
    try:
        save(path, NEW, since=mark if append else None, disk=disk)
    except NotSavedError as e:
        return e.message
    return ""


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("forever", [True, False])
def test_a_disk_that_is_full_at_any_write_leaves_what_was_there(tmp_path: Path, append: bool, forever: bool) -> None:
    path, n = tmp_path / "a", 0
    while True:
        n += 1
        path.unlink(missing_ok=True)
        message = saved_with(path, BadDisk(n, errno.ENOSPC, "write", forever=forever), append=append)
        if not message:
            break
        assert message == "a was not saved: the disk is full"
        assert judged(path, [OLD]) == (0, 30)
        assert [p.name for p in tmp_path.iterdir()] == ["a"], "nothing is left aside"
    assert judged(path, [NEW]) == (0, 60)
    new = SMALL.geometry.pages_for(60) - (SMALL.geometry.full_pages(30) if append else 0)
    assert n - 1 == new + (1 if append else 3) + 2, "pages, snapshots, index and superblock"


@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("append", [True, False])
def test_whatever_fails_a_reader_finds_the_old_state_or_the_new_one(tmp_path: Path, append: bool, error: int) -> None:
    """Every operation in turn, alone or with all that follow."""
    path, ends = tmp_path / "a", set()
    for forever in (False, True):
        for n in range(1, 40):
            path.unlink(missing_ok=True)
            disk = BadDisk(n, error, "open read write sync truncate replace sync_folder", forever=forever)
            message = saved_with(path, disk, append=append)
            got = judged(path, [OLD, NEW])
            assert got in ((0, 30), (1, 60)), (n, message)
            assert message or got == (1, 60)
            assert [p.name for p in tmp_path.iterdir()] == ["a"]
            ends.add((bool(message), got[0]))
    assert (True, 0) in ends and (False, 1) in ends


def test_a_first_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for n in range(1, 5):
        with pytest.raises(NotSavedError):
            save(tmp_path / "a", NEW, disk=BadDisk(n))
        assert not list(tmp_path.iterdir())


def test_the_next_save_goes_on_after_one_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    mark = save(path, OLD)
    inode = path.stat().st_ino
    for n in (1, 3, 9):
        with suppress(NotSavedError):
            save(path, NEW, since=mark, disk=BadDisk(n))
    assert judged(path, [OLD]) == (0, 30)
    save(path, NEW, since=mark)
    assert path.stat().st_ino == inode and judged(path, [NEW]) == (0, 60)


def test_what_the_engine_raises_passes_and_leaves_what_was_there(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(number: int) -> bytes:
        raise StopError

    path = tmp_path / "a"
    mark = save(path, OLD)
    for since in (mark, None):
        for bad in (replace(NEW, page=stop), replace(NEW, snapshot=stop)):  # type: ignore[arg-type]
            with pytest.raises(StopError):
                save(path, bad, since=since)
            assert judged(path, [OLD]) == (0, 30) and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder of a user for whom permissions count: root's do not."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)
    else:
        yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_folders_and_files_without_permission(nobody: Path) -> None:
    path = nobody / "a"
    mark = save(path, OLD)
    nobody.chmod(0o500)
    with pytest.raises(NotSavedError, match="Permission") as e:
        save(path, NEW)
    assert e.value.hint
    path.chmod(0o400)
    with pytest.raises(NotSavedError, match="Permission"):
        save(path, NEW, since=mark)
    assert judged(path, [OLD]) == (0, 30)
    path.chmod(0)
    with pytest.raises(SessionError, match="Permission"):
        Session(path)
    nobody.chmod(0o500)
    with pytest.raises(SessionError, match="Permission"):
        SessionFolder(nobody, 1 << 20).save("b", OLD)
    folder = SessionFolder(nobody, 1 << 20)
    assert folder.cache("b", OLD) is None and "Permission" in folder.refused


@pytest.mark.parametrize("since", [True, False])
def test_permission_denied_is_said_with_what_to_do(tmp_path: Path, since: bool) -> None:
    path = tmp_path / "a"
    mark = save(path, OLD)
    disk = BadDisk(1, errno.EACCES, "open", forever=True)
    with pytest.raises(NotSavedError, match="Permission denied") as e:
        save(path, NEW, since=mark if since else None, disk=disk)
    assert "writable" in e.value.hint and judged(path, [OLD]) == (0, 30)
    with pytest.raises(SessionError, match="Permission denied"):
        Session(path, disk=BadDisk(1, errno.EACCES, "open"))


# several at once


def test_a_writer_that_was_overtaken_writes_anew(tmp_path: Path) -> None:
    """Somebody else's file took the name while this one appended: the last one that completes has it."""

    class Overtaken(QuickDisk):
        def __init__(self, then: Callable[[], object]) -> None:
            self.then = then

        def truncate(self, fd: int, size: int) -> None:
            super().truncate(fd, size)
            then, self.then = self.then, lambda: None
            then()

    path, other = tmp_path / "a", contents(range(700, 720))
    for then in (lambda: save(path, other), path.unlink):
        mark = save(path, OLD)
        save(path, NEW, since=mark, disk=Overtaken(then))
        assert judged(path, [NEW]) == (0, 60)


def test_a_mark_of_a_state_that_another_went_on_from_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    mark = save(path, OLD)
    other = contents([*range(30), 1, 2, 3], (7, 30))
    save(path, other, since=mark)
    inode = path.stat().st_ino
    save(path, NEW, since=mark)
    assert path.stat().st_ino != inode and judged(path, [NEW]) == (0, 60)


def test_many_writers_and_readers_of_one_name(tmp_path: Path) -> None:
    path, wrong = tmp_path / "a", []
    states = [contents([w, *range(n)], (1,)) for w in range(3) for n in range(3, 40)]
    save(path, states[0])
    stop = threading.Event()

    def write(worker: int) -> None:
        mark: Mark | None = None
        for state in states[worker * 37 : (worker + 1) * 37]:
            mark = save(path, state, since=mark, disk=QuickDisk())

    def read() -> None:
        while not stop.is_set():
            try:
                got = judged(path, states)
            except AssertionError as e:
                got = str(e)
            if isinstance(got, str) or got[1] != len(states[got[0]].tokens):
                wrong.append(got)

    writers = [threading.Thread(target=write, args=(w,)) for w in range(3)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not wrong
    assert judged(path, states)[0] in (36, 73, 110), "the last state of one of them"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_reader_does_not_wait_for_ever_and_then_finds_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedrun.sessions.reader.WAIT_S", 0.01)
    path, seen = tmp_path / "a", []
    mark = save(path, OLD)

    class Slow(QuickDisk):
        def write(self, fd: int, data: memoryview, offset: int) -> None:
            seen.append(judged(path, [OLD, NEW]))
            super().write(fd, data, offset)

    save(path, NEW, since=mark, disk=Slow())
    assert len(seen) > 5 and set(seen) == {(0, 30)}
    assert judged(path, [OLD, NEW]) == (1, 60)


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    save(path, OLD)
    assert idle(path) and not idle(tmp_path / "none")
    with Session(path):
        assert not idle(path)
    assert idle(path)

    def none(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    assert not idle(path), "where there are no locks, nothing is known to be idle"
    assert not shared(0, 5.0)
    assert judged(path, [OLD]) == (0, 30)


# identity


def test_a_model_is_known_by_what_is_in_its_file(tmp_path: Path) -> None:
    a = write_varied(tmp_path / "a.gguf")
    digest = model_digest([a])
    assert len(digest) == 32
    copy = tmp_path / "renamed.gguf"
    raw = a.read_bytes()
    copy.write_bytes(raw)
    os.utime(copy, (1, 1))
    assert model_digest([copy]) == digest, "neither name nor date matters"
    assert model_digest([a, copy]) != digest
    from pagedrun.gguf_file import read_header

    tensors = [t for t in read_header(a).tensors if t.n_bytes]
    for at in (tensors[0].offset, tensors[-1].offset, min(t.offset for t in tensors) - 200):
        other = bytearray(raw)
        other[at] ^= 1
        copy.write_bytes(other)
        with suppress(ModelFileError):  # a header may have become none
            assert model_digest([copy]) != digest
    copy.write_bytes(raw + b"\0")
    assert model_digest([copy]) != digest, "it is longer"
    with pytest.raises(ModelFileError):
        model_digest([tmp_path / "none.gguf"])


def test_texts_and_their_absence() -> None:
    assert text_digest(None) == "" and text_digest("") != "" and text_digest("a") != text_digest("b")
    text_digest("\ud800")


def test_differences_read_like_sentences() -> None:
    here = replace(SMALL, model="other", rope="none", template="")
    assert [str(d) for d in SMALL.differences(here)] == [
        "the model was m1 and is other",
        "the scaling of positions was yarn 4 of 8192 and is none",
        "the chat template was t1 and is none",
    ]
    assert SMALL.differences(SMALL) == () and SMALL.differences(here)[0] == Difference("model", "m1", "other")


def test_an_identity_is_kept_as_it_is() -> None:
    assert Identity.from_json(SMALL.to_json()) == SMALL
    for part in SMALL.to_json():
        with pytest.raises((KeyError, TypeError)):
            Identity.from_json({k: v for k, v in SMALL.to_json().items() if k != part})
        with pytest.raises(TypeError):
            Identity.from_json(SMALL.to_json() | {part: None})
    with pytest.raises(TypeError):
        Identity.from_json(SMALL.to_json() | {"n_stripes": True})
