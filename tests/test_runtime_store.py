"""Which runtime is the one to use, and what is said when there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pagedrun import first_run, machine
from pagedrun.errors import RuntimeLibraryError
from pagedrun.runtime import install, manifest, store
from pagedrun.runtime.install import Options
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import build_id
from pagedrun.runtime.store import Runtime


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path))
    monkeypatch.delenv(first_run.AUTO_SETUP, raising=False)
    return tmp_path


def make(key: str = "abc", **changes: object) -> Runtime:
    made = Manifest(
        key=key, build_id=build_id(), base="x 1", patches=("0001",), compiler="c", options=(), glibc="2.17", built="now"
    )
    made = dataclasses.replace(made, **changes)  # type: ignore[arg-type]
    folder = store.root() / key
    folder.mkdir(parents=True)
    manifest.save(made, folder)
    return Runtime(folder, made)


def test_nothing_built_yet() -> None:
    with pytest.raises(RuntimeLibraryError, match="has not been built") as caught:
        store.find_runtime()
    assert caught.value.hint == "run: pagedrun setup"


def test_finds_the_current_one() -> None:
    make("old")
    wanted = make("new")
    store.set_current(wanted)
    found = store.find_runtime()
    assert found == wanted
    assert (found.lib, found.bin, found.python) == (wanted.root / "lib", wanted.root / "bin", wanted.root / "python")
    assert sorted(path.name for path in store.root().iterdir()) == [f"current-{build_id()}", "new", "old"]


def test_one_built_from_other_patches_is_stale() -> None:
    store.set_current(make(build_id="0" * 16))
    with pytest.raises(RuntimeLibraryError, match="built from other patches"):
        store.find_runtime()


def test_a_manifest_that_disagrees_with_its_pointer_is_stale() -> None:
    runtime = make(build_id="0" * 16)
    (store.root() / f"current-{build_id()}").write_text(runtime.manifest.key)
    with pytest.raises(RuntimeLibraryError, match="built from other patches"):
        store.find_runtime()


def test_a_deleted_one() -> None:
    runtime = make()
    store.set_current(runtime)
    (runtime.root / "manifest.json").unlink()
    with pytest.raises(RuntimeLibraryError, match="deleted"):
        store.find_runtime()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1, "key": "x"}'])
def test_a_manifest_that_cannot_be_read(text: str) -> None:
    runtime = make()
    store.set_current(runtime)
    (runtime.root / "manifest.json").write_text(text)
    with pytest.raises(RuntimeLibraryError, match="manifest cannot be read"):
        store.find_runtime()


def test_a_manifest_of_a_later_version_may_say_more() -> None:
    data = b'{"format": 1, "key": "k", "build_id": "b", "base": "", "patches": ["p"], "compiler": "", "options": [], '
    data += b'"glibc": "", "built": "", "colour": "red"}'
    assert manifest.parse(data).patches == ("p",)


def test_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_current(make(cpu_flags=("avx2", "avx512f", "fma")))
    monkeypatch.setattr(machine, "instruction_sets", lambda: frozenset({"avx2", "fma", "sse4_2"}))
    with pytest.raises(RuntimeLibraryError, match="another processor: this one lacks avx512f"):
        store.find_runtime()


def test_only_the_launcher_builds_on_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds: list[Options] = []

    def build(options: Options, report: Reporter) -> Runtime:
        builds.append(options)
        runtime = make()
        store.set_current(runtime)
        return runtime

    monkeypatch.setattr(install, "install", build)
    with pytest.raises(RuntimeLibraryError):
        first_run.ensure_runtime()
    monkeypatch.setenv(first_run.AUTO_SETUP, "1")
    built = first_run.ensure_runtime()
    assert first_run.ensure_runtime() == built
    assert builds == [Options()]
    out, err = capsys.readouterr()
    assert out == ""
    assert "builds its runtime now" in err


def test_cpu_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, on_gpu = make("cpu"), make("gpu", cuda_version="13.0", cuda_archs=("86",))
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    assert store.cpu_notice(on_cpu) is None
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    assert store.cpu_notice(on_gpu) is None
    notice = store.cpu_notice(on_cpu)
    assert notice is not None
    assert "on the CPU although this machine has an NVIDIA GPU" in notice


def test_a_library_that_does_not_load_says_why() -> None:
    runtime = make()
    runtime.lib.mkdir()
    with pytest.raises(RuntimeLibraryError, match=r"cannot be loaded: .*libllama-common\.so"):
        store.reported_build_id(runtime)


def test_backend_for_people() -> None:
    assert make("cpu").manifest.backend == "CPU"
    assert (
        make("gpu", cuda_version="12.4", cuda_archs=("75", "120")).manifest.backend == "CUDA 12.4 (compute 7.5, 12.0)"
    )
