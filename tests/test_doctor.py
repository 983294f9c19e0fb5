"""doctor: each line ok, missing or wrong; only what pagedrun cannot do without makes it fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun import doctor, machine, paths
from pagedrun.catalog import load_catalog
from pagedrun.cli.main import run
from pagedrun.errors import SetupError
from pagedrun.machine import Gpu, Memory
from pagedrun.runtime import cuda, manifest, store, toolchain
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.sources import build_id
from pagedrun.runtime.store import Runtime
from tests.hub_fakes import put, without_other_programs
from tests.places_fakes import in_ollama


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing built, no GPU, no model."""
    for name in ("CACHE", "MODELS", "STATE", "CONFIG"):
        monkeypatch.setenv(f"PAGEDRUN_{name}", str(tmp_path / name.lower()))
    without_other_programs(tmp_path, monkeypatch)
    monkeypatch.delenv("WSL_DISTRO_NAME", raising=False)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "driver_version", lambda: None)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Manifest(
        key="abc", build_id=build_id(), base="x 1", patches=("1",), compiler="c", options=(), glibc="2.17", built="now"
    )
    runtime = Runtime(store.root() / "abc", made)
    (runtime.python / "llama_cpp").mkdir(parents=True)
    (runtime.python / "llama_cpp" / "llama_cpp.py").touch()
    manifest.save(made, runtime.root)
    store.set_current(runtime)
    monkeypatch.setattr(store, "reported_build_id", lambda runtime: build_id())
    return runtime


def checks() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine()}


def test_fresh_machine(tmp_path: Path) -> None:
    found = checks()
    assert (found["runtime"].status, found["runtime"].hint) == ("missing", "run: pagedrun setup")
    assert found["default model"].status == "missing"
    assert found["GPU"].status == "ok"
    assert build_id() in found["patches"].detail
    assert not doctor.can_run(list(found.values()))
    assert list(tmp_path.iterdir()) == []  # looking changes nothing


def test_built(built: Runtime) -> None:
    found = checks()
    assert (found["runtime"].status, found["library"].status, found["bindings"].status) == ("ok", "ok", "ok")
    assert "key abc" in found["runtime"].detail
    assert doctor.can_run(list(found.values()))


def test_a_compiler_is_needed_only_until_something_is_built(
    built: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = checks()
    assert (found["C++ compiler"].status, found["C++ compiler"].required) == ("missing", False)
    assert doctor.can_run(list(found.values()))
    (built.root / "manifest.json").unlink()
    assert checks()["C++ compiler"].required


def test_stale_runtime(built: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "build_id", lambda: "0" * 16)
    found = checks()
    assert found["runtime"].status == "wrong"
    assert "other patches" in found["runtime"].detail
    assert not doctor.can_run(list(found.values()))


def test_a_library_that_says_something_else(built: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "reported_build_id", lambda runtime: "")
    found = checks()
    assert found["library"].status == "wrong"
    assert "build id none" in found["library"].detail
    assert not doctor.can_run(list(found.values()))


@pytest.mark.parametrize(("file", "line"), [("lib/a.so", "library"), ("python/b.py", "bindings")])
def test_damaged_files(built: Runtime, file: str, line: str) -> None:
    for name in ("lib/a.so", "python/b.py"):
        (built.root / name).parent.mkdir(exist_ok=True)
        (built.root / name).write_text("x")
    manifest.save(replace(built.manifest, files=manifest.checksums(built.root)), built.root)
    assert doctor.can_run(list(checks().values()))
    (built.root / file).write_text("y")
    found = checks()
    assert [name for name in ("library", "bindings") if found[name].status == "wrong"] == [line]
    assert (found[line].detail, found[line].hint) == (f"damaged: {file} missing or changed", "run: pagedrun setup")
    assert not doctor.can_run(list(found.values()))


def test_a_portable_runtime(built: Runtime) -> None:
    manifest.save(replace(built.manifest, options=("-DGGML_NATIVE=OFF",)), built.root)
    assert checks()["runtime"].detail.startswith("CPU, portable, built")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("(Debian 12.2.0-14+deb12u1) 12.2.0", "g++ 12.2.0"),
        ("(GCC) 13.2.1 20231205 (Red Hat 13.2.1-6)", "g++ 13.2.1"),
        ("Debian clang version 14.0.6", "clang++ 14.0.6"),
        ("some other compiler 1.0", "some other compiler 1.0"),
    ],
)
def test_the_compiler_is_named(version: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.toolchain, "find_compiler", lambda: toolchain.Compiler("/cc", "/c++", version))
    assert checks()["C++ compiler"].detail == f"{name} (/c++)"


def test_models_of_other_programs_are_counted_apart(tmp_path: Path) -> None:
    assert checks()["models"].detail == f"none yet in {paths.models_dir()}"
    put(paths.models_dir() / "m.gguf", bytes(2048))
    in_ollama(tmp_path / ".ollama" / "models", "o", b"o")
    assert checks()["models"].detail == f"1 in {paths.models_dir()}, 2.0 KiB; 1 of other programs"


def test_a_wrong_registry_is_a_line_of_the_report(tmp_path: Path) -> None:
    put(tmp_path / "config" / "models.toml", b"[models")
    found = checks()
    assert found["models"].status == found["default model"].status == "wrong"
    assert "is not valid TOML" in found["models"].detail


def test_garbage_in_place_of_the_default_model() -> None:
    catalog = load_catalog()
    spec = catalog.models[catalog.default]
    file = paths.models_dir() / spec.file_name
    file.parent.mkdir(parents=True)
    with file.open("wb") as out:
        out.truncate(spec.size)
    found = checks()["default model"]
    assert (found.status, found.hint) == ("wrong", "run: pagedrun setup")
    assert "not a GGUF file" in found.detail


def test_a_gpu_that_is_not_used(built: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_toolkit(nvcc: str | None) -> tuple[int, int]:
        raise SetupError("there is no CUDA compiler (nvcc)", hint="install it")

    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(0, "RTX", 8 << 30, 6 << 30, "86"), Gpu(1, "GTX", 1, 1, "61")])
    monkeypatch.setattr(machine, "driver_version", lambda: "580.1")
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda, "check_toolkit", no_toolkit)
    found = checks()
    assert found["GPU 0"].detail == "RTX, compute 8.6, 8.0 GiB VRAM, 6.0 GiB free"
    assert found["GPU 1"].status == "wrong"
    assert (found["CUDA toolkit"].status, found["CUDA toolkit"].hint) == ("missing", "install it; then: pagedrun setup")
    assert "cannot use this machine's GPU" in found["runtime"].detail
    assert doctor.can_run(list(found.values()))


@pytest.mark.parametrize(
    ("answers", "variable", "status", "detail"),
    [
        ((0, 1), None, "ok", "KV caches can be paged"),
        ((0, 0), None, "wrong", "this driver has no virtual memory management: KV caches are not paged"),
        ((0, 1), "1", "wrong", "PAGEDRUN_NO_VMM is set: KV caches are not paged"),
        ((100, 1), None, "", ""),  # no device
        (None, None, "", ""),  # no library
    ],
)
def test_whether_a_gpu_can_have_pages(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int, int] | None, variable: str | None, status: str, detail: str
) -> None:
    """answers: of cuInit, and of the driver about virtual memory."""

    def library(name: str) -> Any:
        if name != "libcuda.so.1" or answers is None:
            raise OSError(name)

        def attribute(found: Any, number: int, device: Any) -> int:
            found._obj.value = answers[1] if number == 102 else -1
            return 0

        return SimpleNamespace(
            cuInit=lambda flags: answers[0], cuDeviceGet=lambda device, index: 0, cuDeviceGetAttribute=attribute
        )

    monkeypatch.delenv("PAGEDRUN_NO_VMM", raising=False)
    if variable:
        monkeypatch.setenv("PAGEDRUN_NO_VMM", variable)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr("pagedrun.native.driver.ctypes.CDLL", library)
    found = checks().get("GPU pages")
    assert (found.status if found else "") == status
    assert (found.detail if found else "").startswith(detail)


def test_a_gpu_without_a_driver(built: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(cuda, "check_toolkit", lambda nvcc: (13, 0))
    assert checks()["NVIDIA driver"].status == "wrong"
    monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu")
    found = checks()
    assert "in Windows" in found["NVIDIA driver"].hint
    assert "WSL (Ubuntu)" in found["system"].detail


def test_little_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: Memory(1 << 30, 100 << 20))
    monkeypatch.setattr(doctor.space, "free", lambda path: 10 << 20)
    found = checks()
    assert found["memory"].status == found["disk, cache"].status == found["disk, models"].status == "wrong"


def test_report_is_aligned_and_exit_code_tells(built: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    for line in out.splitlines():
        status, name = line[:9].strip(), line[9:24].strip()
        assert status in ("ok", "missing", "wrong") or line[:25].strip() == ""
        assert line[24] == " ", name
    assert "hint: run: pagedrun setup" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    by_name = {check["name"]: check for check in report["checks"]}
    assert by_name["runtime"]["status"] == "missing"
    assert set(by_name["runtime"]) == {"name", "status", "detail", "hint", "required"}
