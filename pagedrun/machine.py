"""Facts about this machine, measured: processor, memory, GPUs."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.errors import PlatformError
from pagedrun.memory import FreeMemory

# Where the kernel says what it found. Names, so that tests can point them elsewhere.
_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA_DEVICES = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia/gpus"))
_WSL_DEVICES = (Path("/dev/dxg"), Path("/usr/lib/wsl/lib/libcuda.so.1"))

# Instruction sets that -march=native lets the compiler use, as /proc/cpuinfo names them.
_INSTRUCTION_SETS = frozenset(
    [
        "abm",
        "adx",
        "aes",
        "avx",
        "avx2",
        "avx_vnni",
        "bmi1",
        "bmi2",
        "clflushopt",
        "clwb",
        "f16c",
        "fma",
        "fma4",
        "fsgsbase",
        "gfni",
        "lzcnt",
        "movbe",
        "movdir64b",
        "movdiri",
        "pclmulqdq",
        "pni",
        "popcnt",
        "prfchw",
        "rdrand",
        "rdseed",
        "serialize",
        "sha_ni",
        "sse4_1",
        "sse4_2",
        "sse4a",
        "ssse3",
        "tbm",
        "vaes",
        "vpclmulqdq",
        "xop",
        "xsave",
        "xsavec",
        "xsaveopt",
        "xsaves",
        "waitpkg",
    ]
)


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU. `index` is nvidia-smi's, not CUDA's; memory is in bytes; `arch` is the compute capability without
    its dot, such as "86"."""

    index: int
    name: str
    vram: int
    vram_free: int
    arch: str


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; `available` is what programs can get without swapping."""

    total: int
    available: int


def require_supported() -> None:
    """Raise PlatformError unless this is Linux on x86-64 (WSL2 counts)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise PlatformError(
            f"pagedrun runs on Linux x86-64 (and WSL2), not on {platform.system()} {platform.machine()}",
            hint="on Windows, use WSL2",
        )


def has_nvidia_gpu() -> bool:
    """Whether an NVIDIA GPU can be seen: a look at a few paths, no driver call."""
    return any(path.exists() for path in _NVIDIA_DEVICES) or all(path.exists() for path in _WSL_DEVICES)


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs that CUDA programs of this process will see, in CUDA's order; empty without a driver.

    CUDA_VISIBLE_DEVICES is followed. Its indices are taken in the order of the PCI bus, as nvidia-smi has them. CUDA
    itself counts so with CUDA_DEVICE_ORDER=PCI_BUS_ID, and otherwise puts the fastest first: for equal GPUs the same.
    """
    with _driver() as nvml:
        return [_gpu(nvml, index) for index in _visible(nvml)] if nvml else []


def driver_version() -> str | None:
    """The NVIDIA driver's version, None without one."""
    with _driver() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml else None


def memory() -> Memory:
    """Main memory now; inside a container with a limit, that limit."""
    import psutil

    found = psutil.virtual_memory()
    limit = _container_limit()
    if limit is None or limit >= found.total:
        return Memory(found.total, found.available)
    return Memory(limit, min(found.available, limit))


def free_memory(on: Sequence[Gpu] | None = None) -> FreeMemory:
    """RAM that programs can get without swapping, and free VRAM of these GPUs; None: of all that CUDA sees."""
    return FreeMemory(memory().available, sum(gpu.vram_free for gpu in (gpus() if on is None else on)))


def instruction_sets() -> frozenset[str]:
    """What the processor can do, of the things that make a program built for it fail on another."""
    with _CPUINFO.open() as file:
        for line in file:
            if line.startswith("flags"):
                flags = line.partition(":")[2].split()
                return frozenset(f for f in flags if f in _INSTRUCTION_SETS or f.startswith(("avx", "amx")))
    return frozenset()


def glibc_version() -> tuple[int, ...]:
    """(2, 36); () where the C library is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ()
    return tuple(int(part) for part in text.rpartition(" ")[2].split(".") if part.isdigit())


def _container_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@contextmanager
def _driver() -> Iterator[Any]:
    """NVIDIA's management library, ready for questions; None without a driver that answers."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _visible(nvml: Any) -> list[int]:
    """NVML's indices of the GPUs that CUDA_VISIBLE_DEVICES leaves, up to its first invalid or repeated entry."""
    count = int(nvml.nvmlDeviceGetCount())
    entries = os.environ.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return list(range(count))
    visible: list[int] = []
    for entry in entries.split(","):
        index = _index(nvml, entry.strip(), count)
        if index is None or index in visible:
            break
        visible.append(index)
    return visible


def _index(nvml: Any, entry: str, count: int) -> int | None:
    """Of the GPU that an entry names by its index (CUDA ignores what follows the digits) or by the start of its UUID;
    None where that is no GPU or several, or a part of one (MIG)."""
    if entry.startswith("GPU-"):
        uuids = [_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
        found = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    digits = re.match("[0-9]+", entry)
    return int(digits[0]) if digits and int(digits[0]) < count else None


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    used = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(index, _text(nvml.nvmlDeviceGetName(handle)), int(used.total), int(used.free), f"{major}{minor}")


def _text(value: str | bytes) -> str:
    """Older releases of nvidia-ml-py answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
