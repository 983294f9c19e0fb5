"""The spill file, and pages that go to it and come back."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.errors import UsageError
from pagedrun.kv import POLICIES, DiskSpace, SpillSettings
from pagedrun.kv.disk import RETRY_S, SpillFile
from pagedrun.kv.ids import NONE, ConversationId
from tests.kv_store import with_stages
from tests.kv_world import World, device, four, host, served


def disk(w: World, c: ConversationId) -> list[int]:
    return w.manager.table.disk[w.manager.pages(c)].tolist()


def resting(w: World, n: int = 8) -> ConversationId:
    """A conversation that was served and let go."""
    c = served(w, 0, n)
    w.unbind(0)
    return c


def full(**kind: Any) -> tuple[World, ConversationId, ConversationId]:
    """Two conversations of two pages and a third that has the device: the first one's pages are on disk."""
    w = four(device=2, host=2, disk=9, policy="lru", **kind)
    a, b = resting(w), resting(w)
    resting(w)
    assert (disk(w, a), host(w, a), device(w, a)) == ([0, 1], [-1, -1], [-1, -1])
    return w, a, b


# the file


def page(number: int, size: int = 64) -> np.ndarray:
    return np.full(size, number, np.uint8)


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    file = SpillFile(DiskSpace(tmp_path, 64 * 3 + 5), 64)
    assert file.n_slots == 3
    slots = [file.write(page(i)) for i in range(3)]
    assert slots == [0, 1, 2] and file.used == 3 and file.write(page(9)) == NONE
    assert not file.refused, "that it is full is known beforehand"
    file.free(np.array([1]))
    assert file.write(page(7)) == 1
    for slot, number in ((0, 0), (1, 7), (2, 2)):
        read = file.read(slot)
        assert read is not None and read.tolist() == page(number).tolist()


def test_a_file_has_no_name_and_no_limit_means_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    file = SpillFile(DiskSpace(folder, 1000), 64)
    file.write(page(1))
    assert not list(folder.iterdir())
    assert SpillFile(DiskSpace(tmp_path / "none", 0), 64).n_slots == SpillFile(None, 64).n_slots == 0
    assert not (tmp_path / "none").exists()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="there can be no spill file in") as e:
        SpillFile(DiskSpace(tmp_path / "file", 1000), 64)
    assert "disk_space" in e.value.hint


def test_a_disk_that_is_full_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    file = SpillFile(DiskSpace(tmp_path, 1000), 64, clock=lambda: now[0])
    tries = []

    def pwrite(*arguments: Any) -> int:
        tries.append(arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        assert file.write(page(1)) == NONE and file.refused == "No space left on device" and file.used == 0
        assert file.write(page(1)) == NONE and not file.willing and len(tries) == 1
        now[0] = RETRY_S
        assert file.willing
        assert file.write(page(1)) == NONE and len(tries) == 2
    (said,) = caplog.messages
    assert "the spill file takes no more" in said and "No space left on device" in said
    now[0] *= 2
    assert file.write(page(1)) == 0
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert file.write(page(2)) == NONE and caplog.messages == [said, said]  # full again: that is news


def test_parts_of_pages_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile(DiskSpace(tmp_path, 1000), 64)
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7], at))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read(fd, min(n, 9), at))
    data = np.arange(64, dtype=np.uint8)
    assert file.write(page(3)) == 0 and file.write(data) == 1
    found = file.read(1)
    assert found is not None and found.tolist() == data.tolist()


@pytest.mark.parametrize(
    "pread",
    [
        lambda fd, n, at: b"",
        lambda fd, n, at: bytes(n),
        lambda fd, n, at: bytes([1] * 63) if n == 64 else b"",
    ],
)
def test_what_cannot_be_read_as_it_was_written_is_nothing(
    pread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = SpillFile(DiskSpace(tmp_path, 1000), 64)
    file.write(page(1))
    monkeypatch.setattr(os, "pread", pread)
    assert file.read(0) is None and "a page was not read from the disk as it was written" in caplog.text


def test_a_disk_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pread(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    file = SpillFile(DiskSpace(tmp_path, 1000), 64)
    file.write(page(1))
    monkeypatch.setattr(os, "pread", pread)
    assert file.read(0) is None and "Input/output error" in caplog.text


# pages


def test_idle_pages_sink_when_the_host_is_full_and_come_back() -> None:
    w, a, b = full()
    assert host(w, b) != [-1, -1] and disk(w, b) == [-1, -1]
    assert w.bind(a, 0)
    w.step()
    w.validate()
    assert device(w, a) != [-1, -1] and disk(w, a) == [0, 1], "they stay there: full pages do not change"
    w.unbind(0)
    written = w.manager.stats().disk.written
    resting(w)
    assert disk(w, a) == [0, 1] and device(w, a) == [-1, -1] and host(w, a) == [-1, -1]
    assert w.manager.stats().disk.written <= written + 2, "what is there already is not written again"


def test_without_a_disk_the_same_is_refused() -> None:
    w = four(device=2, host=2, policy="lru")
    resting(w)
    resting(w)
    c = w.open()
    assert w.bind(c, 0) and not w.append(c, 1)
    assert w.manager.stats().disk.budget == 0 and w.manager.sink(9) == 0


def test_a_page_that_is_not_full_moves_and_leaves_nothing_behind() -> None:
    w = four(device=2, host=2, disk=9, policy="lru")
    a = resting(w, 6)
    for _ in range(2):
        resting(w)
    assert disk(w, a) == [0, 1]
    assert w.bind(a, 0)
    w.step()
    assert disk(w, a) == [0, -1]
    assert w.extend(a, 2)
    w.validate()


def test_bound_pages_stay() -> None:
    w = four(device=4, host=2, disk=9)
    a, b = served(w, 0, 8), served(w, 1, 8)
    assert w.manager.sink(9) == 0 and disk(w, a) == disk(w, b) == [-1, -1]
    c = w.open()
    assert w.bind(c, 2) and not w.append(c, 1)


def test_more_pages_than_the_host_holds_leave_at_once() -> None:
    for n_host in (0, 1):
        w = four(device=4, host=n_host, disk=9)
        a = resting(w, 15)
        b = resting(w, 15)
        assert device(w, a) == [-1] * 4 and sorted(host(w, a))[:3] == [-1] * 3
        w.unbind(0) if w.bind(a, 0) else pytest.fail("a is on disk")
        assert device(w, b) == [-1] * 4 and sum(n >= 0 for n in disk(w, b)) >= 3
        w.validate()


def test_room_is_made_ahead() -> None:
    w = four(device=4, host=4, disk=3, policy="lru")
    a, b = resting(w), resting(w)
    w.manager.demote(np.concatenate([w.manager.pages(a), w.manager.pages(b)]))
    w.step()
    assert w.manager.residency.host.obtainable == 0
    assert w.manager.sink(1) == 1 and disk(w, a) == [0, -1]
    assert w.manager.sink(1) == 0, "there is room"
    assert w.manager.sink(4) == 2, "and the disk is full"
    w.validate()
    stats = w.manager.stats().disk
    assert (stats.budget, stats.used, stats.written, stats.n_bytes) == (3, 3, 3, 96)


def test_copies_on_disk_go_when_others_need_the_room() -> None:
    w = four(device=2, host=2, disk=2, policy="lru")
    a, b = resting(w), resting(w)
    c = resting(w)
    assert disk(w, a) == [0, 1]
    w.free(b)
    assert w.bind(a, 0)
    w.step()
    assert disk(w, a) == [0, 1] and host(w, c) != [-1, -1]
    d = w.open()
    assert w.bind(d, 1) and not w.append(d, 1)  # a has the device
    assert w.manager.sink(2) == 2
    assert disk(w, a) == [-1, -1] and sorted(disk(w, c)) == [0, 1]
    w.validate()


def test_a_full_disk_refuses_and_nothing_is_lost() -> None:
    w, a, b = full()
    w.file.fail_writes = {w.file.n_writes + 1}
    c = w.open()
    assert w.bind(c, 0)
    assert not w.append(c, 4)
    w.validate()
    assert w.manager.stats().disk.refused == "No space left on device"
    tries = w.file.n_writes
    assert not w.append(c, 4) and w.file.n_writes == tries, "it is not tried again at once"
    w.now += RETRY_S
    assert w.append(c, 4)
    w.step()
    for other in (a, b):
        w.unbind(0)
        assert w.bind(other, 0)
        w.step()


@pytest.mark.parametrize("at", [1, 2])
def test_a_page_that_cannot_be_read_ends_the_conversation_before_it(at: int, caplog: pytest.LogCaptureFixture) -> None:
    w, a, _ = full()
    w.file.fail_reads = {at}
    assert not w.bind(a, 0)
    assert w.manager.length(a) == (at - 1) * 4 and len(w.manager.pages(a)) == at - 1
    assert "tokens have to be computed again" in caplog.text
    w.validate()
    assert w.bind(a, 0)
    assert w.extend(a, 3)
    assert w.manager.stats().disk.lost == 1


def test_a_lost_page_ends_all_that_share_it() -> None:
    w = four(device=3, host=2, disk=9, policy="lru")
    a = resting(w, 8)
    b = w.fork(a, 8)
    assert b is not None and w.bind(b, 1) and w.extend(b, 2)
    w.unbind(1)
    resting(w, 12)
    resting(w, 12)
    w.file.fail_reads = {1}
    w.manager.prefetch(w.manager.pages(a))
    assert not w.bind(a, 0)
    assert w.manager.length(a) == w.manager.length(b) == 0
    w.validate()


def test_a_store_that_fails_loses_nothing() -> None:
    w, a, _ = full()
    for after in range(1, 5):
        w.store.fail_ops = {w.store.n_ops + after}
        bound = w.bind(a, 0)
        w.store.fail_ops |= {0}
        w.step()
        w.validate()
        assert w.manager.length(a) == 8
        if bound:
            w.unbind(0)
            resting(w)
    assert w.manager.stats().disk.lost == 0


def test_a_boundary_page_on_disk_is_copied_for_a_fork() -> None:
    w, a, _ = full()
    child = w.fork(a, 6)
    assert child is not None
    w.validate()
    assert w.bind(child, 0)
    w.step()


def test_a_boundary_page_does_not_sink_before_it_is_copied() -> None:
    w = four(device=2, host=1, disk=9, policy="lru")
    a = resting(w, 6)
    resting(w)
    resting(w)
    assert w.manager.on_disk(a) == 2
    child = w.fork(a, 6)
    assert child is not None
    w.validate()
    assert w.bind(child, 0)
    w.step()


def test_what_is_read_from_the_host_comes_from_the_disk_first() -> None:
    spill = SpillSettings(mode="auto", prefetch="hybrid", batch=1)
    for geometry in (with_stages(4), with_stages(8, zero_copy=False), with_stages(2)):
        w = World(geometry, device=5, host=6, disk=20, spill=spill, policy="lru")
        a = w.open()
        assert w.bind(a, 0, spill=True)
        while w.manager.length(a) < 9 * geometry.page_bytes // geometry.row_bytes and w.spill(a, 1):
            w.step()
            w.compute(a, 1)
        assert w.manager.stats().spill.cold
        w.unbind(0)
        b = w.open()
        assert w.bind(b, 1)
        for _ in range(int(3 * geometry.tokens_per_page)):
            assert w.append(b, 1)
            w.step()
            w.compute(b, 1)
        w.unbind(1)
        assert w.manager.lower.on_disk_only(w.manager.pages(a)).any()
        assert w.bind(a, 0, spill=True)
        w.step()
        w.validate()
        assert w.manager.stats().spill.cold


def test_pages_come_ahead_from_the_disk_by_way_of_the_host() -> None:
    w = four(device=4, host=2, disk=9, policy="lru", spill=SpillSettings(prefetch="hybrid", batch=1, per_step=2))
    a = resting(w)
    for _ in range(3):
        b = resting(w)
    assert disk(w, a) == [0, 1]
    w.free(b)
    w.step()
    assert w.manager.prefetch(w.manager.pages(a)) > 0
    while w.manager.prefetch(w.manager.pages(a)):
        w.step()
    w.validate()
    w.step()
    w.store.wait(w.store.fence())
    w.manager.poll()
    assert w.bind(a, 0)
    w.step()
    stats = w.manager.stats()
    assert stats.prefetch.hits and stats.disk.read


@pytest.mark.parametrize("seed", range(24))
def test_many_conversations_take_turns(seed: int) -> None:
    """More than the device and the host hold, while the disk and the store fail now and then."""
    rng = random.Random(seed)
    spill = SpillSettings(mode=rng.choice(["off", "auto"]), prefetch=rng.choice(["off", "hybrid"]), batch=1)
    sizes = {"device": rng.randint(7, 9), "host": rng.randint(0, 9), "disk": rng.randint(12, 60)}
    w = World(with_stages(4), **sizes, seed=rng.choice([None, seed]), spill=spill, policy=rng.choice(sorted(POLICIES)))
    known = [w.open() for _ in range(8)]
    for step in range(200):
        w.now += 5
        if seed % 2 and step % 10 == 0:
            w.file.fail_reads = {w.file.n_reads + rng.randint(1, 20)}
            w.file.fail_writes = {w.file.n_writes + rng.randint(1, 20)}
            w.store.fail_ops = {w.store.n_ops + rng.randint(1, 40)} if seed % 4 == 1 else set()
        c = rng.choice(known)
        w.manager.prefetch(w.manager.pages(rng.choice(known)))
        w.see_losses()
        n = rng.randint(1, 5)
        if w.manager.length(c) + n > w.geometry.max_tokens // 2:
            w.truncate(c, rng.randrange(w.manager.length(c)))
        bound = w.bind(c, 0, spill=True)
        w.validate()
        if bound:
            if w.spill(c, n):
                w.step()
                w.write_back(rng.randint(0, 2))
                w.compute(c, n)
            w.unbind(0)
        else:
            assert seed % 2 or w.file.used > w.file.n_slots - 6, "nothing fails, and there is room"
        w.manager.sink(rng.randint(0, 2))
        w.validate()
    stats = w.manager.stats().disk
    assert stats.written > 9 and stats.read > 9
    assert seed % 2 or not stats.lost


def test_of_those_that_are_expected_none_loses_pages_to_the_next() -> None:
    w = four(device=3, host=9, policy="lru", spill=SpillSettings(prefetch="hybrid", batch=1, per_step=4))
    b = resting(w, 12)
    a = resting(w, 8)  # it was bound last, and had to let go
    c = served(w, 1, 1)
    w.free(c)
    assert -1 not in device(w, a)
    for _ in range(3):
        w.manager.expect([a, b])
        w.step()
        w.validate()
        assert -1 not in device(w, a)
    w.manager.expect([b])
    assert -1 in device(w, a), "by itself it could have had them"
