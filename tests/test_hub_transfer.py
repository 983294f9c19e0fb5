"""Files over HTTP from a server with faults: resumed, retried, verified; never a wrong file under the final name."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from pagedrun.errors import DiskFullError, DownloadError, PagedrunError
from pagedrun.hub import http, part, pull, record
from tests.fake_hub import COMMIT, FakeHub, Fault, model
from tests.hub_fakes import put
from tests.hub_pulls import CONTENT, NAME, fill, final, get, interrupted_at, left_over, refused


@pytest.fixture
def hub(fake_hub: FakeHub) -> FakeHub:
    return fill(fake_hub)


def test_a_file_comes_verified_and_recorded_and_nothing_else_stays(hub: FakeHub) -> None:
    seen: list[tuple[int, int]] = []
    path = get(on_progress=lambda done, total: seen.append((done, total)))
    assert path == final() and path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and seen == sorted(seen)
    known = record.read(path)
    assert known is not None and known.verified and known.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert (known.source, known.file) == (f"hf:me/M-GGUF@{COMMIT}", "M-Q4_K_M.gguf")
    assert not (path.parents[2] / ".pull").exists()


def test_what_is_there_is_not_asked_for_again(hub: FakeHub) -> None:
    get()
    asked = len(hub.asked("resolve"))
    assert get() == final() and len(hub.asked("resolve")) == asked


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repos["me/M-GGUF"].gated = True
    get()
    assert [r["authorization"] for r in hub.asked("api") + hub.asked("resolve")] == ["Bearer hf_secret"] * 2
    assert all("authorization" not in r for r in hub.asked("cdn"))


def test_lost_connections_go_on_where_they_ended(hub: FakeHub) -> None:
    hub.faults = [Fault("cdn", "drop", at=at) for at in (100_000, 0, 70_000)]
    assert get().read_bytes() == CONTENT
    ranges = [r.get("range") for r in hub.asked("cdn")]
    assert ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=170000-"]
    assert hub.waits == [1.0, 2.0, 1.0]  # longer after the one that brought nothing
    assert len(hub.asked("resolve")) == 4  # a new address each time


def test_an_interrupted_pull_goes_on_in_another_process(hub: FakeHub) -> None:
    interrupted_at(100_000)
    kept = part.bytes_of(final())
    assert 100_000 <= kept < len(CONTENT) and not final().exists()
    statuses: list[str] = []
    assert get(on_status=statuses.append).read_bytes() == CONTENT
    assert hub.asked("cdn")[-1]["range"] == f"bytes={kept}-"
    assert "checking what is here" in statuses
    assert left_over() == set()


def test_a_part_of_other_content_is_started_over(hub: FakeHub) -> None:
    interrupted_at(100_000)
    other = model(300_000, seed=1)
    hub.repos["me/M-GGUF"].files["M-Q4_K_M.gguf"] = other
    assert get().read_bytes() == other
    assert "range" not in hub.asked("cdn")[-1]


def test_a_whole_part_needs_no_network(hub: FakeHub) -> None:
    interrupted_at(len(CONTENT))
    asked = len(hub.asked("resolve"))
    assert get().read_bytes() == CONTENT and len(hub.asked("resolve")) == asked


def test_a_part_that_was_spoilt_is_noticed_and_fetched_anew(hub: FakeHub) -> None:
    interrupted_at(100_000)
    spoilt = part.folder_of(final()) / "part"
    spoilt.write_bytes(b"GGUF" + bytes(len(spoilt.read_bytes()) - 4))
    notes: list[str] = []
    assert get(on_note=notes.append).read_bytes() == CONTENT
    assert len(notes) == 1 and "starting over" in notes[0]


def test_a_part_longer_than_the_file_is_started_over(hub: FakeHub) -> None:
    interrupted_at(100_000)
    (part.folder_of(final()) / "part").write_bytes(CONTENT + b"more")
    assert get().read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["no_ranges", "bad_range"])
def test_a_server_without_ranges_begins_again(hub: FakeHub, kind: str) -> None:
    hub.faults = [Fault("cdn", "drop", at=100_000), Fault("cdn", kind)]
    assert get().read_bytes() == CONTENT


@pytest.mark.parametrize(
    "fault",
    [
        Fault("cdn", "stall", at=1000),
        Fault("cdn", "silent"),
        Fault("cdn", "garbage"),
        Fault("cdn", "less", at=5),
        Fault("cdn", "more", at=5),
        Fault("cdn", "status", status=403),
        Fault("cdn", "status", status=404),
        Fault("cdn", "status", status=500),
        Fault("resolve", "status", status=429),
        Fault("resolve", "stall"),
        Fault("api", "status", status=503),
        Fault("api", "silent"),
    ],
    ids=lambda f: f"{f.where}-{f.kind}-{f.status}",
)
def test_what_happens_once_is_overcome(hub: FakeHub, fault: Fault) -> None:
    fault.times = 2
    hub.faults = [fault]
    assert get().read_bytes() == CONTENT
    assert left_over() == set()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("cdn", "drop", None, at=0), "the connection ended early"),
        (Fault("cdn", "stall", None, at=0), "nothing came any more"),
        (Fault("cdn", "less", None, at=5), "299,995 bytes, and 300,000 are expected"),
        (Fault("cdn", "more", None, at=5), "300,005 bytes, and 300,000 are expected"),
        (Fault("cdn", "status", None, status=403), r"refused \(403\)"),
        (Fault("cdn", "status", None, status=503), r"the server has a problem \(503\)"),
        (Fault("cdn", "html", None), "sent a web page in place of M-Q4_K_M.gguf"),
        (Fault("cdn", "gzip", None), "compressed only"),
        (Fault("cdn", "corrupt", None, at=9), "is not the file that was promised: sha256"),
        (Fault("cdn", "corrupt", None, at=0), "is not a GGUF file"),
        (Fault("resolve", "loop", None), "from address to address without end"),
        (Fault("resolve", "status", None, status=401, headers={"X-Error-Code": "GatedRepo"}), "me/M-GGUF is gated"),
        (Fault("resolve", "status", None, status=404, headers={"X-Error-Code": "EntryNotFound"}), "has no file M-Q4"),
        (Fault("resolve", "status", None, status=302, headers={"Location": "ftp://x/y"}), "ftp://"),
    ],
    ids=lambda f: f"{f.where}-{f.kind}-{f.status}" if isinstance(f, Fault) else "",
)
def test_what_stays_wrong_is_a_clear_error_and_no_file(hub: FakeHub, fault: Fault, says: str) -> None:
    hub.faults = [fault]
    with pytest.raises(DownloadError, match=says):
        get()
    assert not final().exists() and left_over() == set()


def test_waits_grow_and_end(hub: FakeHub) -> None:
    hub.faults = [Fault("cdn", "silent", None)]
    refused()
    assert hub.waits == [1.0, 2.0]  # it never answered
    hub.waits.clear()
    hub.faults = [Fault("cdn", "drop", 1, at=5000), Fault("cdn", "silent", None)]
    error = refused()
    assert hub.waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert "it goes on after the 4.9 KiB that are here" in error.hint
    assert left_over() == {"part", "id", "total", "lock"}


@pytest.mark.parametrize(("asked", "waited"), [("7", [7.0]), ("0", [0.0]), ("nonsense", [1.0])])
def test_the_server_says_how_long_to_wait(hub: FakeHub, asked: str, waited: list[float]) -> None:
    hub.faults = [Fault("cdn", "status", status=429, headers={"Retry-After": asked})]
    get()
    assert hub.waits == waited


def test_a_wait_that_is_too_long_is_left_to_the_user(hub: FakeHub) -> None:
    hub.faults = [Fault("cdn", "status", status=429, headers={"Retry-After": "7200"})]
    assert "try again in 2 h 00 min" in refused().hint
    assert hub.waits == []


def test_content_that_changes_on_the_way_is_fetched_anew_once(hub: FakeHub) -> None:
    hub.faults = [Fault("cdn", "drop", at=100_000), Fault("cdn", "corrupt", at=5)]
    assert get().read_bytes() == CONTENT
    final().unlink()
    hub.faults = [Fault("cdn", "drop", at=100_000), Fault("cdn", "corrupt", None, at=5)]
    with pytest.raises(DownloadError, match="not the file that was promised"):
        get()
    assert left_over() == set()


# --- the disk ---


def test_too_little_space_is_said_before_anything_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.runtime.space.free", lambda path: 100)
    with pytest.raises(DiskFullError, match=r"293 KiB are to be fetched .* 36.6 KiB to spare, and 100 B are") as caught:
        get()
    assert "PAGEDRUN_MODELS" in caught.value.hint and hub.asked("cdn") == []
    monkeypatch.setattr("pagedrun.runtime.space.free", lambda path: 400_000)  # what stays free follows the file's size
    assert get().read_bytes() == CONTENT


def test_a_disk_that_fills_up_keeps_what_has_come(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    append = part.Part.append

    def full(self: part.Part, block: bytes) -> None:
        append(self, block)
        if self.size > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(part.Part, "append", full)
        with pytest.raises(DiskFullError, match="the disk is full") as caught:
            get()
    assert "what has come is kept" in caught.value.hint
    assert part.bytes_of(final()) > 100_000
    assert get().read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_a_clear_error(hub: FakeHub) -> None:
    put(Path(os.environ["PAGEDRUN_MODELS"]) / ".pull", b"a file")
    assert "cannot write" in refused_plainly().message


def refused_plainly() -> PagedrunError:
    with pytest.raises(PagedrunError) as caught:
        get()
    return caught.value


# --- two at once ---


def test_a_second_pull_waits_for_the_first_and_finds_its_file(hub: FakeHub) -> None:
    waiting = threading.Event()
    statuses: list[str] = []
    shown: list[int] = []

    def slow(done: int, total: int) -> None:
        assert waiting.wait(20)

    def status(text: str) -> None:
        statuses.append(text)
        waiting.set()

    first = threading.Thread(target=get, kwargs={"on_progress": slow})
    pullable = pull.resolve(NAME)
    first.start()
    while not (part.folder_of(final()) / "id").exists():
        time.sleep(0.01)
    path = pull.fetch(pullable, lambda done, total: shown.append(done), on_status=status)
    first.join(20)
    assert path.read_bytes() == CONTENT
    assert statuses[0] == "another pull is fetching it" and shown
    assert len(hub.asked("cdn")) == 1
    assert not (path.parents[2] / ".pull").exists()


def test_a_killed_pull_leaves_no_lock(hub: FakeHub) -> None:
    interrupted_at(100_000)
    assert left_over() == {"part", "id", "total", "lock"}
    assert part.discard(final()) > 0
    assert left_over() == set() and part.discard(final()) == 0


def test_patience_is_bounded() -> None:
    patience = http.Patience()
    assert [patience.wait_s(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert patience.wait_s(100_000) == patience.longest_s
