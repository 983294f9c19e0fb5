"""Moving a runtime to another machine: what is exported comes back, and nothing else gets in."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.errors import BuildError, DiskFullError, RuntimeLibraryError, SetupError, UsageError
from pagedrun.runtime import archive, manifest, store
from pagedrun.runtime.archive import export, install_from
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.sources import build_id
from pagedrun.runtime.store import Runtime
from tests.runtime_fakes import Report

# (member, content) -> what to pack instead
Change = Callable[[tarfile.TarInfo, bytes], tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(autouse=True)
def loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries here are text; what is asked of real ones is tested with setup."""
    monkeypatch.setattr(archive, "check_loads", lambda runtime, report: None)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A runtime in the cache of one machine; the environment then points to the cache of another."""
    made = Manifest(
        key="0123abcd",
        build_id=build_id(),
        base="x 1",
        patches=("0001",),
        cpu_flags=("avx2",),
        compiler="c",
        options=(),
        glibc="2.17",
        built="now",
    )
    root = tmp_path / "there" / made.key
    for name in ("lib/libllama.so.0.5", "bin/llama-bench", "python/llama_cpp/llama_cpp.py", "python/__pycache__/x.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "bin/llama-bench").chmod(0o755)
    (root / "lib/libllama.so").symlink_to("libllama.so.0.5")
    manifest.save(made, root)
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(machine, "instruction_sets", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(machine, "glibc_version", lambda: (2, 36))
    return Runtime(root, made)


@pytest.mark.parametrize("suffix", [".tar.xz", ".tar.gz", ".tgz"])
def test_comes_back_as_it_was(runtime: Runtime, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"runtime{suffix}"
    export(runtime, file, Report())
    installed = install_from(file, Report())
    assert installed.manifest == dataclasses.replace(runtime.manifest, imported=True)
    assert store.find_runtime() == installed
    assert (installed.lib / "libllama.so").readlink() == Path("libllama.so.0.5")
    assert (installed.lib / "libllama.so").read_text() == "lib/libllama.so.0.5"
    assert os.access(installed.bin / "llama-bench", os.X_OK)
    assert not list(installed.root.rglob("*.pyc"))
    assert sorted(path.name for path in store.root().iterdir()) == ["0123abcd", f"current-{build_id()}"]


def test_the_archive_does_not_say_who_made_it(runtime: Runtime, tmp_path: Path) -> None:
    export(runtime, tmp_path / "r.tar.gz", Report())
    with tarfile.open(tmp_path / "r.tar.gz") as tar:
        assert {(m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, "", "")}


def test_installing_over_the_same_one(runtime: Runtime, tmp_path: Path) -> None:
    export(runtime, tmp_path / "r.tar.gz", Report())
    first = install_from(tmp_path / "r.tar.gz", Report())
    (first.lib / "libllama.so.0.5").write_text("damaged")
    second = install_from(tmp_path / "r.tar.gz", Report())
    assert (second.lib / "libllama.so").read_text() == "lib/libllama.so.0.5"


def test_export_names_and_folders(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.tar\.xz or \.tar\.gz"):
        export(runtime, tmp_path / "runtime.zip", Report())
    with pytest.raises(UsageError, match="no folder"):
        export(runtime, tmp_path / "none" / "runtime.tar.gz", Report())
    with pytest.raises(UsageError, match="no file"):
        install_from(tmp_path / "none.tar.gz", Report())


def test_export_that_fills_the_disk_leaves_nothing(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(DiskFullError, match="filled up while writing the archive"):
        export(runtime, tmp_path / "r.tar.gz", Report())
    assert not list(tmp_path.glob("*r.tar.gz*"))


def repack(source: Path, target: Path, change: Change) -> Path:
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            stream = old.extractfile(member) if member.isfile() else None
            packed, data = change(member, stream.read() if stream else b"")
            packed.size = len(data)
            new.addfile(packed, io.BytesIO(data))
    return target


def with_manifest(runtime: Runtime, tmp_path: Path, **changes: object) -> Path:
    altered = dataclasses.replace(runtime.manifest, **changes)  # type: ignore[arg-type]
    manifest.save(altered, runtime.root)
    export(Runtime(runtime.root, altered), tmp_path / "r.tar.gz", Report())
    return tmp_path / "r.tar.gz"


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"build_id": "f" * 16}, "built from other patches", "same version"),
        ({"glibc": "2.99"}, r"needs glibc 2\.99, and this system has 2\.36", "here: pagedrun setup"),
        ({"cpu_flags": ("avx2", "avx512f", "amx_tile")}, "with amx_tile, avx512f, which this one lacks", "--portable"),
        ({"key": "../../evil"}, "its key is", "not a runtime"),
        ({"format": 2}, "format 2", "pagedrun setup"),
    ],
)
def test_refuses_what_does_not_fit_here(
    runtime: Runtime, tmp_path: Path, changes: dict[str, object], message: str, hint: str
) -> None:
    file = with_manifest(runtime, tmp_path, **changes)
    with pytest.raises((SetupError, RuntimeLibraryError), match=message) as caught:
        install_from(file, Report())
    assert hint in caught.value.hint
    assert list(store.root().iterdir()) == []


def _rename(name: str) -> Change:
    def change(member: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if member.name.endswith("libllama.so.0.5"):
            member.name = name
        return member, data

    return change


def _link(target: str, kind: bytes = tarfile.SYMTYPE) -> Change:
    def change(member: tarfile.TarInfo, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if member.name.endswith("libllama.so.0.5"):
            member.type, member.linkname, data = kind, target, b""
        return member, data

    return change


@pytest.mark.parametrize(
    "change",
    [
        _rename("pagedrun-runtime/../../evil"),
        _rename("/evil"),
        _rename("evil"),
        _rename("pagedrun-runtime"),
        _link("/etc/passwd"),
        _link("../../evil"),
        _link(".."),
        _link("pagedrun-runtime/manifest.json", tarfile.LNKTYPE),
        _link("", tarfile.FIFOTYPE),
    ],
)
def test_nothing_gets_out_of_the_folder(runtime: Runtime, tmp_path: Path, change: Change) -> None:
    export(runtime, tmp_path / "r.tar.gz", Report())
    bad = repack(tmp_path / "r.tar.gz", tmp_path / "bad.tar.gz", change)
    with pytest.raises(SetupError, match="cannot be used"):
        install_from(bad, Report())
    assert list(store.root().iterdir()) == []
    assert not list(tmp_path.rglob("evil"))


def test_a_file_is_never_written_through_a_link(runtime: Runtime, tmp_path: Path) -> None:
    export(runtime, tmp_path / "r.tar.gz", Report())
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        data = (runtime.root / "manifest.json").read_bytes()
        for name, kind, content in (
            ("pagedrun-runtime/manifest.json", tarfile.REGTYPE, data),
            ("pagedrun-runtime/lib/a", tarfile.SYMTYPE, b""),
            ("pagedrun-runtime/lib/a", tarfile.REGTYPE, b"x"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "b", len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(SetupError, match="cannot be used"):
        install_from(tmp_path / "bad.tar.gz", Report())
    assert list(store.root().iterdir()) == []


def test_refuses_other_files(runtime: Runtime, tmp_path: Path) -> None:
    text = tmp_path / "text.tar.gz"
    text.write_text("not an archive")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as tar:
        tar.add(text, "readme.txt")
    (tmp_path / "empty.tar.gz").touch()
    export(runtime, tmp_path / "whole.tar.xz", Report())
    whole = (tmp_path / "whole.tar.xz").read_bytes()
    (tmp_path / "half.tar.xz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.tar.xz").write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    export(runtime, tmp_path / "whole.tar.gz", Report())
    packed = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "flipped.tar.gz").write_bytes(packed[:60] + bytes(100) + packed[160:])
    shutil.rmtree(runtime.lib)
    export(runtime, tmp_path / "nolib.tar.gz", Report())
    names = ["text.tar.gz", "other.tar.gz", "empty.tar.gz", "half.tar.xz", "flipped.tar.xz", "flipped.tar.gz"]
    for name in [*names, "nolib.tar.gz"]:
        with pytest.raises(SetupError, match="cannot be used"):
            install_from(tmp_path / name, Report())
    assert list(store.root().iterdir()) == []


@pytest.mark.parametrize("suffix", ["tar.xz", "tar.gz"])
def test_an_archive_that_is_cut_short_says_so(runtime: Runtime, tmp_path: Path, suffix: str) -> None:
    (runtime.lib / "large").write_bytes(os.urandom(100_000))
    export(runtime, tmp_path / f"whole.{suffix}", Report())
    data = (tmp_path / f"whole.{suffix}").read_bytes()
    for size in (50, len(data) // 2, len(data) * 9 // 10):
        (tmp_path / f"half.{suffix}").write_bytes(data[:size])
        with pytest.raises(SetupError, match=rf"half\.{suffix} cannot be used: it is cut short"):
            install_from(tmp_path / f"half.{suffix}", Report())
    assert list(store.root().iterdir()) == []


def test_a_file_that_differs_from_the_manifest(runtime: Runtime, tmp_path: Path) -> None:
    made = dataclasses.replace(runtime.manifest, files=manifest.checksums(runtime.root))
    manifest.save(made, runtime.root)
    export(runtime, tmp_path / "good.tar.gz", Report())
    assert install_from(tmp_path / "good.tar.gz", Report()).manifest.files == made.files
    (runtime.lib / "libllama.so.0.5").write_text("other")
    export(runtime, tmp_path / "bad.tar.gz", Report())
    with pytest.raises(SetupError, match=r"damaged: lib/libllama\.so"):
        install_from(tmp_path / "bad.tar.gz", Report())


def test_messages_do_not_name_the_folder_for_unpacking(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(runtime: Runtime, report: object) -> None:
        raise BuildError(f"there are no bindings in {runtime.python}")

    export(runtime, tmp_path / "r.tar.gz", Report())
    monkeypatch.setattr(archive, "check_loads", refuse)
    with pytest.raises(BuildError) as caught:
        install_from(tmp_path / "r.tar.gz", Report())
    assert caught.value.message == f"there are no bindings in {tmp_path}/r.tar.gz/python"
    twice = repack(tmp_path / "r.tar.gz", tmp_path / "twice.tar.gz", _rename("pagedrun-runtime/bin/llama-bench"))
    with pytest.raises(SetupError, match=r"cannot be used: it holds 'pagedrun-runtime/.*' twice") as wrong:
        install_from(twice, Report())
    assert "import-" not in wrong.value.message


def test_export_that_cannot_be_written(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere")

    monkeypatch.setattr(tarfile, "open", refuse)
    with pytest.raises(SetupError, match=r"cannot write .*r\.tar\.gz: Permission denied"):
        export(runtime, tmp_path / "r.tar.gz", Report())


def test_a_runtime_that_does_not_load_is_not_installed(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(runtime: Runtime, report: object) -> None:
        raise BuildError("it cannot be loaded")

    export(runtime, tmp_path / "r.tar.gz", Report())
    monkeypatch.setattr(archive, "check_loads", refuse)
    with pytest.raises(BuildError):
        install_from(tmp_path / "r.tar.gz", Report())
    assert list(store.root().iterdir()) == []


def test_the_manifest_is_the_first_member(runtime: Runtime, tmp_path: Path) -> None:
    export(runtime, tmp_path / "r.tar.gz", Report())
    with tarfile.open(tmp_path / "r.tar.gz") as tar:
        first = tar.next()
        assert first is not None
        stream = tar.extractfile(first)
        assert stream is not None
        assert json.load(stream)["key"] == "0123abcd"
