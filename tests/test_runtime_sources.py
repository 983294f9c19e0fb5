"""The pin, the build id, and getting the archive: verified, once, whatever pip or the disk do."""

from __future__ import annotations

import errno
import io
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from pagedrun.errors import DiskFullError, DownloadError, PatchError
from pagedrun.runtime import fetch as fetching
from pagedrun.runtime import packages, sources, space
from pagedrun.runtime.fetch import fetch, sha256_of, unpack
from pagedrun.runtime.sources import PINNED, Patch, Source, build_id, shipped_patches
from tests.runtime_fakes import ADD_FILE_PATCH, BUILD_ID_PATCH, LLAMA_C, Report, make_sdist


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_pip(monkeypatch: pytest.MonkeyPatch, deliver: Path | None) -> list[list[str]]:
    """pip that puts the file `deliver` into --dest; returns the list of the calls it will get."""
    calls: list[list[str]] = []

    def pip(arguments: list[str], **_: object) -> None:
        calls.append(arguments)
        target = Path(arguments[arguments.index("--dest") + 1])
        target.mkdir(parents=True)
        if deliver:
            shutil.copy(deliver, target)

    monkeypatch.setattr(fetching, "pip", pip)
    return calls


def test_build_id_tells_everything_apart() -> None:
    other_base = Source("x", "1", "f" * 64, 1)
    a, b = Patch("1", b"one"), Patch("2", b"two")
    ids = [
        build_id(PINNED, ()),
        build_id(other_base, ()),
        build_id(PINNED, (a,)),
        build_id(PINNED, (a, b)),
        build_id(PINNED, (b, a)),
        build_id(PINNED, (Patch("1", b"one!"), b)),
        build_id(PINNED, (Patch("9", b"one"), b)),
        build_id(PINNED, (Patch("1", b"one2"), Patch("", b"two"))),
    ]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == 16 and int(i, 16) >= 0 for i in ids)


def test_shipped_patches_are_in_order_and_only_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0002-b.patch", "0001-a.patch", "README.md", "0010-c.patch"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(sources.paths, "data_file", lambda name: tmp_path)
    assert [patch.name for patch in shipped_patches()] == ["0001-a.patch", "0002-b.patch", "0010-c.patch"]


def test_fetch_takes_what_is_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_sdist(cache / "sdist")
    calls = fake_pip(monkeypatch, None)
    assert fetch(source, Report(), 0) == cache / "sdist" / source.file_name
    assert calls == []


def test_fetch_downloads_by_name_and_version_and_cleans_up(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_sdist(tmp_path / "index")
    (cache / "sdist" / "download-killed").mkdir(parents=True)
    calls = fake_pip(monkeypatch, tmp_path / "index" / source.file_name)
    archive = fetch(source, Report(), 0)
    assert sha256_of(archive) == source.sha256
    assert calls[0][:4] == ["download", "--no-deps", "--no-binary", "fake-llama"]
    assert calls[0][-1] == "fake-llama==1.0"
    assert [path.name for path in (cache / "sdist").iterdir()] == [source.file_name]


def test_fetch_replaces_a_damaged_archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_sdist(tmp_path / "index")
    (cache / "sdist").mkdir(parents=True)
    (cache / "sdist" / source.file_name).write_bytes(b"half of it")
    fake_pip(monkeypatch, tmp_path / "index" / source.file_name)
    report = Report()
    assert sha256_of(fetch(source, report, 0)) == source.sha256
    assert "damaged" in report.text


def test_fetch_refuses_another_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_sdist(tmp_path / "index")
    (tmp_path / "index" / source.file_name).write_bytes(b"something else")
    fake_pip(monkeypatch, tmp_path / "index" / source.file_name)
    with pytest.raises(DownloadError, match=source.sha256):
        fetch(source, Report(), 0)
    assert list((cache / "sdist").iterdir()) == []


def test_fetch_asks_for_space_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1 << 20))
    fake_pip(monkeypatch, None)
    with pytest.raises(DiskFullError, match=r"needs about 438 MiB in .* where 1\.0 MiB are free"):
        fetch(PINNED, Report(), 0)


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(
    ("output", "error", "message", "hint"),
    [
        ("ERROR: No matching distribution found for x", DownloadError, "No matching distribution", "pip config list"),
        ("python: No module named pip", DownloadError, "No module named pip", "ensurepip"),
        ("OSError: [Errno 28] No space left on device", DiskFullError, "disk filled up while fetching x", "free some"),
    ],
)
def test_pip_failures_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, error: type[DownloadError], message: str, hint: str
) -> None:
    fake_python(tmp_path, monkeypatch, f"echo '{output}' >&2; exit 1")
    with pytest.raises(error, match=message) as caught:
        packages.pip(["install", "x"], purpose="fetching x", scratch=tmp_path / "tmp", fd=0)
    assert hint in caught.value.hint


def test_pip_gets_the_users_settings_but_no_other_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_PROXY", "http://localhost:9")
    fake_python(tmp_path, monkeypatch, f'env > "{tmp_path}/env"; echo "$@" > "{tmp_path}/arguments"')
    packages.pip(["download", "x"], purpose="", scratch=tmp_path / "tmp", extra_env={"CMAKE_ARGS": "-DX=1"}, fd=0)
    env = (tmp_path / "env").read_text().splitlines()
    assert "PIP_PROXY=http://localhost:9" in env
    assert "CMAKE_ARGS=-DX=1" in env
    assert f"TMPDIR={tmp_path}/tmp" in env
    assert not any(line.startswith("PIP_USER=") for line in env)
    assert (tmp_path / "arguments").read_text().split() == ["-I", "-m", "pip", "download", "x", "--no-input"]


def test_unpack_takes_what_the_build_needs_and_patches_it(tmp_path: Path) -> None:
    source = make_sdist(tmp_path)
    archive = tmp_path / source.file_name
    (tmp_path / "build" / "unpacking" / "junk").mkdir(parents=True)
    tree = unpack(archive, source, (BUILD_ID_PATCH, ADD_FILE_PATCH), tmp_path / "build")
    assert tree == tmp_path / "build" / "fake_llama-1.0" / "vendor" / "llama.cpp"
    assert "pagedrun_build_id" in (tree / "src/llama.c").read_text()
    assert (tree / "include/pagedrun.h").exists()
    assert not (tree / "models").exists()
    assert (tree / "CMakeLists.txt").stat().st_mtime == 1_700_000_000
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["fake_llama-1.0"]


def test_unpack_does_nothing_the_second_time(tmp_path: Path) -> None:
    source = make_sdist(tmp_path)
    tree = unpack(tmp_path / source.file_name, source, (BUILD_ID_PATCH,), tmp_path / "build")
    stamp = (tree / "src/llama.c").stat().st_mtime_ns
    unpack(tmp_path / source.file_name, source, (BUILD_ID_PATCH,), tmp_path / "build")
    assert (tree / "src/llama.c").stat().st_mtime_ns == stamp


def test_unpack_leaves_no_tree_when_a_patch_fails(tmp_path: Path) -> None:
    source = make_sdist(tmp_path, {"src/llama.c": LLAMA_C.replace("41", "40"), "CMakeLists.txt": ""})
    with pytest.raises(PatchError, match=r"0001-build-id\.patch does not apply: hunk 1"):
        unpack(tmp_path / source.file_name, source, (BUILD_ID_PATCH,), tmp_path / "build")
    assert not (tmp_path / "build" / source.folder).exists()


def test_unpack_writes_nothing_outside(tmp_path: Path) -> None:
    source = make_sdist(tmp_path)
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        for name in (f"{source.folder}/vendor/llama.cpp/src/../../../../../evil", "/evil"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "build").mkdir()
    with pytest.raises(FileNotFoundError):  # nothing was taken, so there is nothing to rename
        unpack(tmp_path / "bad.tar.gz", source, (), tmp_path / "build" / "deep")
    assert not list(tmp_path.rglob("evil"))


def test_unpack_says_that_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = make_sdist(tmp_path)
    monkeypatch.setattr(fetching.shutil, "copyfileobj", full)
    with pytest.raises(DiskFullError, match=r"filled up while unpacking the sources: .* are free in"):
        unpack(tmp_path / source.file_name, source, (), tmp_path / "build")
