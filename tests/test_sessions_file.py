"""Session files: what was saved comes back, and what was damaged does not."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.sessions import (
    Contents,
    DamagedSessionError,
    Disk,
    Identity,
    Mark,
    OtherIdentityError,
    OtherVersionError,
    Session,
    SessionError,
    SessionNotFoundError,
    describe,
    save,
)
from pagedrun.sessions.format import DATA, Head, unpack_head, unpack_index
from pagedrun.sessions.places import ALIGN, Places
from pagedrun.sessions.reader import read_index
from tests.session_files import (
    BLOCKS,
    SMALL,
    BadDisk,
    QuickDisk,
    contents,
    judged,
    page_of,
    pages_in,
    rows_of,
    state_of,
)

QUICK = QuickDisk()


def offsets(path: Path) -> list[int]:
    with Session(path) as s:
        return s.index.pages["offset"].tolist()


# round trips


@pytest.mark.parametrize("identity", [SMALL, BLOCKS])
@pytest.mark.parametrize("direct", [True, False])
def test_what_was_saved_comes_back(tmp_path: Path, identity: Identity, direct: bool) -> None:
    c = contents(range(30), (7, 30), identity, name="n", model="Tiny", usage={"turns": 3})
    mark = save(tmp_path / "a", c, clock=lambda: 1234.5)
    with Session(tmp_path / "a", identity, direct=direct) as s:
        assert s.tokens.tolist() == list(range(30)) and s.usable_tokens == 30 and s.mark == mark
        assert [p.tobytes() for p in pages_in(s)] == [c.page(i).tobytes() for i in range(s.meta.n_pages)]
        assert s.usable_snapshots == (7, 30)
        assert s.read_snapshot(7) == state_of(range(30), 7) and s.read_snapshot(8) is None
        assert s.check().whole
        meta = s.meta
    assert (meta.name, meta.model, meta.usage, meta.created, meta.saved) == ("n", "Tiny", {"turns": 3}, 1234, 1234)
    assert meta.data_bytes == meta.n_pages * identity.frame_bytes + 80
    assert oct((tmp_path / "a").stat().st_mode)[-3:] == "600"
    assert [p.name for p in tmp_path.iterdir()] == ["a"], "nothing else is left"


def test_a_conversation_without_tokens(tmp_path: Path) -> None:
    mark = save(tmp_path / "a", contents([]))
    assert judged(tmp_path / "a", [contents([])]) == (0, 0)
    save(tmp_path / "a", contents([1]), since=mark)
    assert judged(tmp_path / "a", [contents([1])]) == (0, 1)


def test_pages_are_read_from_anywhere_into_any_array(tmp_path: Path) -> None:
    c = contents(range(100), identity=BLOCKS)
    save(tmp_path / "a", c, disk=QUICK)
    with Session(tmp_path / "a") as s:
        raw = np.zeros(BLOCKS.frame_bytes * 3 + 1, np.uint8)[1:].reshape(3, -1)  # askew
        assert s.read_pages(5, raw) == 3
        assert raw[2].tobytes() == c.page(7).tobytes()
        assert s.read_pages(s.meta.n_pages - 1, raw) == 1 and s.read_pages(s.meta.n_pages, raw) == 0


def test_what_goes_on_is_appended(tmp_path: Path) -> None:
    """Full pages are not asked for, and neither they nor the former index change."""
    path, asked = tmp_path / "a", []
    mark = save(path, contents(range(29), (7,)))
    before, bytes_before, inode = offsets(path), path.read_bytes(), path.stat().st_ino
    longer = contents(range(50), (7, 40))

    def page(i: int) -> np.ndarray:
        asked.append(i)
        return longer.page(i)

    second = save(path, replace(longer, page=page), since=mark)
    assert path.stat().st_ino == inode and judged(path, [longer]) == (0, 50)
    full = SMALL.geometry.full_pages(29)
    assert asked == list(range(full, SMALL.geometry.pages_for(50)))
    assert offsets(path)[:full] == before[:full] and offsets(path)[full] != before[full]
    assert path.read_bytes()[DATA : len(bytes_before)] == bytes_before[DATA:], "the old state is untouched"
    third = save(path, contents(range(60), (7, 40)), since=second)
    size = path.stat().st_size
    assert path.stat().st_ino == inode and judged(path, [contents(range(60), (7, 40))]) == (0, 60)
    for n in range(61, 90):
        third = save(path, contents(range(n), (7, 40)), since=third)
    grown = SMALL.geometry.pages_for(89) - SMALL.geometry.pages_for(60)
    assert path.stat().st_size <= size + (grown + 3) * ALIGN, "places that came free are used again"


@pytest.mark.parametrize("n", [0, 3, 16, 29])
def test_a_conversation_that_was_cut_and_went_another_way(tmp_path: Path, n: int) -> None:
    mark = save(tmp_path / "a", contents(range(30), (8, 20)))
    other = [*range(n), *range(500, 520)]
    at = tuple(p for p in (8, 20) if p <= n)
    mark = save(tmp_path / "a", contents(other, at), since=mark.cut(n))
    assert judged(tmp_path / "a", [contents(other, at)]) == (0, len(other))
    save(tmp_path / "a", contents(other[:12], at[:1]), since=mark)
    assert judged(tmp_path / "a", [contents(other[:12], at[:1])]) == (0, 12)


def test_a_page_that_shrank_stays_where_it_is(tmp_path: Path) -> None:
    """Its rows behind the end mean nothing, so nothing has to be written for a shorter conversation."""
    mark = save(tmp_path / "a", contents(range(30)))

    def none(i: int) -> np.ndarray:
        raise AssertionError(f"page {i} was asked for")

    save(tmp_path / "a", replace(contents(range(20)), page=none), since=mark)
    with Session(tmp_path / "a") as s:
        assert s.usable_tokens == 20 and len(pages_in(s)) == s.meta.n_pages


def test_what_the_caller_says_changed_is_written_again_though_tokens_agree(tmp_path: Path) -> None:
    mark = save(tmp_path / "a", contents(range(30)))
    other = replace(contents(range(30)), page=lambda i: np.full(SMALL.frame_bytes, i, np.uint8))
    save(tmp_path / "a", other, since=mark.cut(8))
    with Session(tmp_path / "a") as s:
        kept = SMALL.geometry.full_pages(8)
        read = [page.tobytes() for page in pages_in(s)]
    assert read[:kept] == [page_of(SMALL, range(30), i).tobytes() for i in range(kept)]
    assert read[kept:] == [other.page(i).tobytes() for i in range(kept, len(read))]


def test_a_file_of_holes_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "a"
    mark = save(path, contents(range(200)))
    size = path.stat().st_size
    save(path, contents([*range(5), 9, 9]), since=mark.cut(5))
    assert path.stat().st_size < size / 4 and judged(path, [contents([*range(5), 9, 9])]) == (0, 7)


@pytest.mark.parametrize("why", ["mark", "identity", "gone", "read", "damaged"])
def test_what_cannot_be_appended_to_is_written_anew(tmp_path: Path, why: str) -> None:
    path, c = tmp_path / "a", contents(range(40))
    mark = save(path, contents(range(30)))
    inode = path.stat().st_ino
    holder = Session(path) if why == "read" else None
    if why == "mark":
        mark = Mark(bytes(16), 30)
    elif why == "identity":
        c = contents(range(40), identity=replace(SMALL, model="m2"))
    elif why == "gone":
        path.unlink()
    elif why == "damaged":
        path.write_bytes(b"x" * 9000)
    save(path, c, since=mark)
    assert judged(path, [c]) == (0, 40)
    if holder:
        with holder:
            assert path.stat().st_ino != inode, "who reads the old state still has all of it"
            assert len(pages_in(holder)) == holder.meta.n_pages and holder.usable_tokens == 30


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_history_of_saves(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("s") / "a"
    page_bytes, row_bytes = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 60))
    page_bytes = data.draw(st.sampled_from((page_bytes, 4096, 8192)))
    n_stripes = data.draw(st.integers(1, 3))
    identity = replace(SMALL, page_bytes=page_bytes, row_bytes=row_bytes, n_stripes=n_stripes)
    tokens: list[int] = []
    mark: Mark | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        n = data.draw(st.integers(0, len(tokens)) if data.draw(st.booleans()) else st.just(len(tokens)))
        tokens = tokens[:n] + data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=30))
        mark = mark.cut(n) if mark else None
        at = sorted(data.draw(st.sets(st.integers(0, len(tokens)), max_size=3)))
        c = contents(tokens, at, identity)
        mark = save(path, c, since=mark, disk=QUICK)
        with Session(path, identity) as s:
            assert s.usable_tokens == len(tokens) == mark.n_tokens and s.tokens.tolist() == tokens
            for i, page in enumerate(pages_in(s)):
                assert rows_of(page, i, c) == rows_of(c.page(i), i, c)
            assert [s.read_snapshot(p) for p in at] == [state_of(tokens, p) for p in at]
            extents = s.index.extents[np.argsort(s.index.extents[:, 0])]
            assert (extents[1:, 0] >= (extents[:, 0] + extents[:, 1])[:-1]).all(), "nothing lies over anything"
        if data.draw(st.booleans()):
            with Session(path, identity) as s:
                mark = s.mark


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1), st.integers(0, 9), st.integers(1, 3))
def test_places_touch_nothing_that_is_kept(kept: list[tuple[int, int]], n: int, blocks: int) -> None:
    extents = np.array(kept, np.int64) * ALIGN
    places = Places(extents)
    taken = {b for t in places.take(n, blocks * ALIGN - 1) // ALIGN for b in range(t, t + blocks)}
    taken |= {int(b) for b in places.take(1, 9) // ALIGN}
    assert len(taken) == n * blocks + 1
    assert not taken & {b for begin, size in kept for b in range(begin, begin + size)}


# what is refused


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", "m2"),
        ("kv_type_k", "q8_0"),
        ("kv_type_v", "f16"),
        ("page_bytes", 128),
        ("row_bytes", 48),
        ("n_stripes", 4),
        ("rope", "none"),
        ("template", "t2"),
        ("runtime", "base 2"),
    ],
)
def test_another_identity_is_refused_with_both_values(tmp_path: Path, part: str, value: str | int) -> None:
    save(tmp_path / "a", contents(range(9)), disk=QUICK)
    here = replace(SMALL, **{part: value})
    with pytest.raises(OtherIdentityError) as e:
        Session(tmp_path / "a", here)
    (difference,) = e.value.differences
    assert (difference.part, difference.saved, difference.here) == (part, getattr(SMALL, part), value)
    assert str(difference.saved) in e.value.message and str(value) in e.value.message and e.value.hint
    with Session(tmp_path / "a", SMALL) as s:
        assert s.usable_tokens == 9


def test_a_file_of_another_version_is_refused_as_such(tmp_path: Path) -> None:
    save(tmp_path / "a", contents(range(9)))
    raw = bytearray((tmp_path / "a").read_bytes())
    head = unpack_head(bytes(raw[:ALIGN]))
    assert head is not None
    raw[:ALIGN] = replace(head, version=7).pack()
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(OtherVersionError, match="version 7"):
        describe(tmp_path / "a")


@pytest.mark.parametrize("raw", [b"", b"x", b"GGUF" * 5000, bytes(20_000), b"PgdRunKV" * 3000])
def test_what_is_no_session_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(DamagedSessionError, match="header"):
        Session(tmp_path / "a")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "none", SessionNotFoundError), (tmp_path, SessionError)):
        with pytest.raises(kind):
            Session(path)
    with pytest.raises(SessionError, match="regular"):
        Session(tmp_path / "pipe")


def test_a_superblock_in_the_wrong_place_is_none(tmp_path: Path) -> None:
    """Its state would be overwritten by the save after it."""
    save(tmp_path / "a", contents(range(9)))
    raw = bytearray((tmp_path / "a").read_bytes())
    raw[ALIGN:DATA], raw[:ALIGN] = raw[:ALIGN], bytes(ALIGN)
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(DamagedSessionError, match="header"):
        Session(tmp_path / "a")


JUNK = [b"[" * 100_000, b"{}", b"null", b"[1]", b'{"identity": 3}', b"\xff\xfe", b"9" * 5000, b""]


@pytest.mark.parametrize("text", JUNK, ids=range(len(JUNK)))
def test_metadata_that_mean_nothing_are_refused_though_every_digest_is_right(tmp_path: Path, text: bytes) -> None:
    _forge(tmp_path / "a", text)
    with pytest.raises(DamagedSessionError):
        Session(tmp_path / "a")


def _forge(path: Path, text: bytes, rest: bytes = b"") -> None:
    data = text + rest
    digest = hashlib.blake2b(data, digest_size=16).digest()
    head = Head(0, DATA, len(data), len(text), digest)
    path.write_bytes(head.pack() + bytes(ALIGN) + data)


LIES = {
    "n_tokens": [10, -1, 2**61, True, None, "9", 9.0],
    "n_pages": [0, 99, 2**61],
    "page_bytes": [1, 2**70],
    "snapshots": [[[9, 2**61]], [[10, 1]], [[3, 1], [2, 1]], [[-1, 1]], 7, [[1]], [None]],
    "identity": [{}, 7, {"model": 3}],
    "usage": [[1], {"a": "b"}, {"a": -1}],
    "name": [None, 3],
    "created": [float("inf"), -1, 2**80],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in LIES.items() for v in values])
def test_metadata_that_lie_are_refused(tmp_path: Path, key: str, value: object) -> None:
    save(tmp_path / "a", contents(range(9)), disk=QUICK)
    with Session(tmp_path / "a") as s:
        raw, tokens, table = s.meta.to_json(), s.tokens.tobytes(), s.index.table.tobytes()
    _forge(tmp_path / "b", json.dumps(raw).encode(), tokens + table)
    assert describe(tmp_path / "b").n_tokens == 9, "it is the lie that is refused"
    _forge(tmp_path / "b", json.dumps(raw | {key: value}).encode(), tokens + table)
    with pytest.raises(DamagedSessionError):
        Session(tmp_path / "b")


@pytest.mark.parametrize("part", ["page_bytes", "row_bytes", "n_stripes"])
@pytest.mark.parametrize("value", [0, -5, 2**41, 2**300])
def test_a_geometry_that_lies_is_refused(tmp_path: Path, part: str, value: int) -> None:
    save(tmp_path / "a", contents(range(9)), disk=QUICK)
    raw = describe(tmp_path / "a").to_json()
    raw["identity"][part] = value
    _forge(tmp_path / "b", json.dumps(raw).encode())
    with pytest.raises(DamagedSessionError):
        Session(tmp_path / "b")


def test_a_snapshot_that_would_be_larger_than_the_file_is_not_allocated(tmp_path: Path) -> None:
    save(tmp_path / "a", contents(range(9), (4,)), disk=QUICK)
    with Session(tmp_path / "a") as s:
        raw, tokens, table = s.meta.to_json(), s.tokens.tobytes(), s.index.table.tobytes()
    _forge(tmp_path / "b", json.dumps(raw | {"snapshots": [[4, 2**60]]}).encode(), tokens + table)
    with Session(tmp_path / "b") as s:
        assert s.read_snapshot(4) is None


def test_programs_that_contradict_themselves_are_told_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    mark = save(path, contents(range(9)))
    for bad in (
        contents(range(20), (30,)),
        replace(contents(range(20)), page=lambda i: np.zeros(3, np.uint8)),
        replace(contents(range(20)), page=lambda i: np.zeros(SMALL.frame_bytes, np.int8)),
        replace(contents(range(20), (4,)), snapshot=lambda p: b"short"),
    ):
        for since in (mark, None):
            with pytest.raises(ValueError, match=r"page|snapshot|state"):
                save(path, bad, since=since)
            assert judged(path, [contents(range(9))]) == (0, 9)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# damage


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Tens of thousands of warnings are not kept."""
    caplog.set_level(logging.CRITICAL, "pagedrun.sessions")


@contextmanager
def two_states(tmp_path: Path, identity: Identity) -> Iterator[tuple[Path, list[Contents]]]:
    states = [contents(range(n), at, identity) for n, at in ((5, (3,)), (9, (3, 9)))]
    path = tmp_path / "a"
    mark = save(path, states[0], disk=QUICK)
    save(path, states[1], since=mark, disk=QUICK)
    assert judged(path, states) == (1, 9)
    yield path, states


def test_every_flipped_byte_is_found_or_does_not_matter(tmp_path: Path, quiet: None) -> None:
    seen, unseen = set(), 0
    with two_states(tmp_path, SMALL) as (path, states):
        raw = path.read_bytes()
        with Session(path) as s:
            extents = s.index.extents[2:].tolist()
        needed = {at for offset, n in extents for at in range(offset, offset + n)}
        fd = os.open(path, os.O_RDWR)
        for at in range(len(raw)):
            os.pwrite(fd, bytes([raw[at] ^ (1 << at % 8)]), at)
            got = judged(path, states, direct=False)
            seen.add(got)
            if got == (1, 9) and at in needed:
                with Session(path, direct=False) as s:  # a snapshot: `judged` has seen that it is not served
                    unseen += s.check().whole
            os.pwrite(fd, raw[at : at + 1], at)
        os.close(fd)
        assert judged(path, states) == (1, 9) and not unseen
    assert {(1, 9), (0, 5)} <= seen, "a superblock that is damaged leads to the state before"
    assert {got for got in seen if got[0] == 1} == {(1, SMALL.tokens_in(n)) for n in range(4)} | {(1, 9)}


def test_every_flipped_byte_of_a_file_of_one_state(tmp_path: Path, quiet: None) -> None:
    path, c = tmp_path / "a", contents(range(5), (3,))
    save(path, c, disk=QUICK)
    raw = path.read_bytes()
    fd, refused = os.open(path, os.O_RDWR), 0
    for at in [*range(200), *range(ALIGN - 40, ALIGN), *range(DATA, len(raw))]:
        os.pwrite(fd, bytes([raw[at] ^ (128 >> at % 8)]), at)
        refused += isinstance(judged(path, [c], direct=False), str)
        os.pwrite(fd, raw[at : at + 1], at)
    os.close(fd)
    with Session(path) as s:
        assert refused == 240 + s.index.head.n_bytes, "each byte of superblock and index is vital"


@pytest.mark.parametrize("identity", [SMALL, replace(SMALL, page_bytes=2048, row_bytes=1024)])
def test_every_length_that_a_file_can_be_cut_to(tmp_path: Path, quiet: None, identity: Identity) -> None:
    seen = set()
    with two_states(tmp_path, identity) as (path, states):
        for n in range(path.stat().st_size, -1, -1 if identity is SMALL else -13):
            os.truncate(path, n)
            seen.add(judged(path, states, direct=n % 128 == 0))
    assert (1, 9) in seen and (0, 5) in seen and any(isinstance(got, str) for got in seen)


def test_a_damaged_page_ends_what_is_usable_and_the_next_save_repairs_it(tmp_path: Path) -> None:
    path, c = tmp_path / "a", contents(range(30), (7, 12, 29))
    save(path, c)
    at = offsets(path)[4]
    raw = bytearray(path.read_bytes())
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    with Session(path, SMALL) as s:
        assert s.usable_tokens == 30, "nothing was read yet"
        checked = s.check()
        assert (checked.bad_pages, checked.bad_snapshots, checked.usable_tokens) == (1, 0, SMALL.tokens_in(4))
        assert s.usable_snapshots == (7,) and s.read_snapshot(12) is None
        assert s.mark.n_tokens == SMALL.tokens_in(4)
        mark = s.mark
    longer = contents(range(40), (7, 12, 29))
    inode = path.stat().st_ino
    save(path, longer, since=mark)
    assert path.stat().st_ino == inode and judged(path, [longer]) == (0, 40)


def test_a_damaged_snapshot_leaves_the_pages_and_is_repaired(tmp_path: Path) -> None:
    path, c = tmp_path / "a", contents(range(30), (7, 12))
    save(path, c)
    with Session(path) as s:
        at = int(s.index.snapshots["offset"][1])
    raw = bytearray(path.read_bytes())
    raw[at] ^= 255
    path.write_bytes(raw)
    with Session(path) as s:
        assert s.check().bad_snapshots == 1 and s.usable_snapshots == (7,) and s.usable_tokens == 30
        mark = s.mark
    save(path, contents(range(31), (7, 12)), since=mark)
    with Session(path) as s:
        assert s.check().whole and s.read_snapshot(12) == state_of(range(30), 12)


def test_what_cannot_be_read_counts_as_damaged(tmp_path: Path) -> None:
    """EIO at every read: no traceback, and nothing wrong."""
    path, c = tmp_path / "a", contents(range(9), (3,))
    save(path, c)
    seen = set()
    for n in range(1, 12):
        seen.add(judged(path, [c], BadDisk(n, errno.EIO, "read")))
    assert (0, 9) in seen and (0, 0) in seen and any(isinstance(got, str) for got in seen)


def test_where_direct_reads_are_refused_others_do(tmp_path: Path) -> None:
    path, c = tmp_path / "a", contents(range(9), (3,), BLOCKS)
    save(path, c)
    assert judged(path, [c], BadDisk(3, errno.EINVAL, "read")) == (0, 9)


def test_an_index_is_believed_by_its_digest_alone(tmp_path: Path) -> None:
    save(tmp_path / "a", contents(range(9)))
    fd = Disk().open(tmp_path / "a", os.O_RDONLY)
    index, _ = read_index(fd, tmp_path / "a", Disk())
    os.close(fd)
    for data in (b"", b"{}", bytes(index.head.n_bytes)):
        with pytest.raises(ValueError, match="written"):
            unpack_index(index.head, data)
