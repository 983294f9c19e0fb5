"""Facts about the machine, from pretended kernels and drivers."""

from __future__ import annotations

import platform
import sys
import types
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.errors import NotEnoughMemoryError, PlatformError
from pagedrun.memory import FreeMemory, check_context


class NVMLError(Exception):
    pass


def driver(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    """A pretended pynvml with two GPUs, none of them hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=(handle + 1) << 30, free=1 << 30),
        nvmlDeviceGetCudaComputeCapability=lambda handle: [(8, 6), (12, 0)][handle],
        nvmlDeviceGetName=lambda handle: ["RTX", b"RTX PRO"][handle],
        nvmlDeviceGetUUID=lambda handle: ["GPU-1a2b-0", b"GPU-1a3c-1"][handle],
        nvmlSystemGetDriverVersion=lambda: b"580.1",
    )
    for name, function in functions.items():
        setattr(nvml, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch)
    first, second = machine.gpus()
    assert (first.name, first.arch, first.vram, first.vram_free) == ("RTX", "86", 1 << 30, 1 << 30)
    assert (second.name, second.arch, second.vram) == ("RTX PRO", "120", 2 << 30)
    assert machine.driver_version() == "580.1"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("0", [0]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("0, 1", [0, 1]),
        ("1gpu", [1]),
        ("GPU-1a3", [1]),
        ("GPU-1a3c-1,GPU-1a2b-0", [1, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,0", [1]),  # nothing counts after the first that names no GPU
        ("1,2,0", [1]),
        ("1,,0", [1]),
        ("1,1,0", [1]),
        ("1,GPU-1a3,0", [1]),
        ("GPU-1a", []),  # both start so
        ("GPU-1a3,GPU-ff,GPU-1a2", [1]),
        ("gpu-1a3", []),
        ("MIG-GPU-1a2b-0/1/0", []),
        ("0,MIG-1a3c,1", [0]),
    ],
)
def test_gpus_that_cuda_is_shown(monkeypatch: pytest.MonkeyPatch, entries: str, expected: list[int]) -> None:
    driver(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", entries)
    found = machine.gpus()
    assert [gpu.index for gpu in found] == expected
    assert [gpu.vram for gpu in found] == [(index + 1) << 30 for index in expected]
    assert machine.free_memory().vram == len(expected) << 30


def test_a_hidden_gpu_still_has_driver_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch)
    monkeypatch.setattr(machine, "_NVIDIA_DEVICES", (tmp_path,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpus() == []
    assert machine.driver_version() == "580.1" and machine.has_nvidia_gpu()


def test_free_memory_is_what_is_available_and_the_vram_of_the_gpus_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(8 << 30, 3 << 30))
    assert machine.free_memory() == FreeMemory(3 << 30, 2 << 30)
    assert machine.free_memory(machine.gpus()[:1]) == FreeMemory(3 << 30, 1 << 30)
    assert machine.free_memory([]) == FreeMemory(3 << 30)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError

    driver(monkeypatch, nvmlInit=fail)
    assert machine.gpus() == []
    assert machine.driver_version() is None


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ((), False),
        (("nvidia0",), True),
        (("gpus",), True),
        (("dxg",), False),  # WSL2 with another maker's GPU
        (("dxg", "libcuda.so.1"), True),
    ],
)
def test_seeing_a_gpu_without_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.setattr(machine, "_NVIDIA_DEVICES", (tmp_path / "nvidia0", tmp_path / "gpus"))
    monkeypatch.setattr(machine, "_WSL_DEVICES", (tmp_path / "dxg", tmp_path / "libcuda.so.1"))
    for name in present:
        (tmp_path / name).touch()
    assert machine.has_nvidia_gpu() is expected


def test_instruction_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f amx_tile hypervisor\nprocessor\t: 1\nflags\t: avx\n"
    )
    monkeypatch.setattr(machine, "_CPUINFO", info)
    assert machine.instruction_sets() == {"sse4_2", "avx2", "avx512f", "amx_tile"}


def test_memory_within_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.memory()
    assert whole.total >= whole.available > 0
    monkeypatch.setattr(machine, "_container_limit", lambda: 1 << 20)
    assert machine.memory() == machine.Memory(1 << 20, 1 << 20)
    monkeypatch.setattr(machine, "_container_limit", lambda: 1 << 60)
    assert machine.memory().total == whole.total


@pytest.mark.parametrize(("system", "processor"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_other_platforms(monkeypatch: pytest.MonkeyPatch, system: str, processor: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    with pytest.raises(PlatformError, match="Linux x86-64") as caught:
        machine.require_supported()
    assert "WSL2" in caught.value.hint


def test_this_platform() -> None:
    machine.require_supported()
    assert machine.glibc_version() >= (2, 17)


def test_the_hint_about_memory_names_what_there_is() -> None:
    with pytest.raises(NotEnoughMemoryError) as e:
        check_context(10**9, 10**9, FreeMemory(ram=10**9))
    assert "--max-num-seqs" not in e.value.hint and "max_num_seqs in the settings file" in e.value.hint
