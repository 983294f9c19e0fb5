"""Decides whether the runtime is built for CUDA, and says what is missing when it cannot be."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagedrun import machine
from pagedrun.errors import SetupError, UsageError
from pagedrun.runtime.process import output_of, run
from pagedrun.runtime.report import Reporter

MIN_CUDA = (12, 0)
MIN_ARCH = 75  # Turing: older GPUs lack the int8 and fp16 tensor paths, and CUDA 13 has dropped them

_USUAL = ("/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc", "/usr/lib/cuda/bin/nvcc")
_HEADER_PROBE = "#include <cublas_v2.h>\n"
_LINK_PROBE = """
#include <cublas_v2.h>
#include <cuda.h>
int main() { cublasHandle_t h; return cublasCreate(&h) + cuInit(0); }
"""


@dataclass(frozen=True)
class Cuda:
    """A usable CUDA toolkit and what to build for: `archs` like ("75", "86"), `libs` where cuBLAS lies."""

    nvcc: str
    version: tuple[int, int]
    archs: tuple[str, ...]
    libs: tuple[str, ...] = ()

    @property
    def version_text(self) -> str:
        """12.4"""
        return f"{self.version[0]}.{self.version[1]}"


def choose(report: Reporter, *, cpu_only: bool, archs: Sequence[str]) -> Cuda | None:
    """The CUDA build to make, or None for the CPU alone.

    `archs`, if given, are compute capabilities without the dot, and CUDA is then required. Otherwise it is used if
    this machine has a GPU and a complete toolkit; `report` hears why not. Raises UsageError, SetupError.
    """
    if cpu_only:
        return None
    if archs:
        return _toolkit(_checked(archs))
    if not machine.has_nvidia_gpu():
        return None
    try:
        return _toolkit(_installed_archs())
    except SetupError as e:
        report.warn(f"this machine has an NVIDIA GPU, but {e.message}")
        report.note(f"hint:  {e.hint}")
        report.note("The runtime is built for the CPU now. Run pagedrun setup again once that is done.")
        return None


def find_nvcc() -> str | None:
    """nvcc: $CUDACXX, the PATH, or where the toolkit usually lies."""
    candidates = (os.environ.get("CUDACXX"), "nvcc", *_USUAL)
    return next((found for c in candidates if c and (found := shutil.which(c))), None)


def nvcc_version(nvcc: str) -> tuple[int, int] | None:
    """(13, 0), or None if it does not run."""
    match = re.search(r"release (\d+)\.(\d+)", output_of([nvcc, "--version"]) or "")
    return (int(match[1]), int(match[2])) if match else None


def library_folders(nvcc: str) -> tuple[str, ...]:
    """Where the toolkit links from, without its stubs: the loader does not look there by itself everywhere."""
    plan = output_of([nvcc, "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull]) or ""
    line = next((line for line in plan.splitlines() if line.startswith("#$ LIBRARIES=")), "")
    folders = (Path(folder) for folder in re.findall(r'"-L([^"]+)"', line))
    return tuple(str(folder.resolve()) for folder in folders if folder.name != "stubs" and folder.is_dir())


def install_hint(version: tuple[int, int] = (13, 0)) -> str:
    """How to get a complete toolkit, on the systems that most people have."""
    v = f"{version[0]}-{version[1]}"
    return (
        "with NVIDIA's CUDA repository set up (on WSL2 its wsl-ubuntu variant): sudo apt install "
        f"cuda-nvcc-{v} cuda-cudart-dev-{v} cuda-driver-dev-{v} libcublas-dev-{v}; without it, on Ubuntu 24.04, "
        "Debian 13 or newer: sudo apt install nvidia-cuda-toolkit"
    )


def check_toolkit(nvcc: str | None) -> tuple[int, int]:
    """The version of a complete, new enough toolkit. Raises SetupError that says what is missing.

    Takes a few seconds: it compiles and links a small program against cuBLAS.
    """
    if nvcc is None:
        raise SetupError("there is no CUDA compiler (nvcc)", hint=install_hint())
    version = nvcc_version(nvcc)
    if version is None:
        raise SetupError(f"the CUDA compiler {nvcc} does not run", hint=install_hint())
    if version < MIN_CUDA:
        raise SetupError(
            f"CUDA {version[0]}.{version[1]} ({nvcc}) is too old: llama.cpp's kernels need CUDA 12 or newer",
            hint=install_hint(),
        )
    with tempfile.TemporaryDirectory(prefix="pagedrun-") as folder:
        _check_cublas(nvcc, version, Path(folder))
    return version


def _check_cublas(nvcc: str, version: tuple[int, int], folder: Path) -> None:
    header, program = folder / "header.cu", folder / "program.cu"
    header.write_text(_HEADER_PROBE)
    program.write_text(_LINK_PROBE)
    result = run([nvcc, "-E", str(header), "-o", os.devnull], env=os.environ)
    if result.status != 0 and "cublas_v2.h" in result.tail:
        raise SetupError(
            f"the CUDA toolkit of {nvcc} lacks the headers of cuBLAS", hint=_package_hint("libcublas-dev", version)
        )
    result = run([nvcc, str(program), "-lcublas", "-lcuda", "-o", str(folder / "program")], env=os.environ)
    if result.status == 0:
        return
    for library, package in (("cublas", "libcublas-dev"), ("cuda", "cuda-driver-dev")):
        if re.search(rf"cannot find -l{library}\b|unable to find library -l{library}\b", result.tail):
            raise SetupError(f"the CUDA toolkit of {nvcc} lacks lib{library}.so", hint=_package_hint(package, version))
    raise SetupError(f"{nvcc} cannot compile a small program:\n{result.last_lines(5)}", hint=install_hint(version))


def _package_hint(package: str, version: tuple[int, int]) -> str:
    return (
        f"NVIDIA's CUDA repository: sudo apt install {package}-{version[0]}-{version[1]}; "
        "Debian's or Ubuntu's own packages: sudo apt install nvidia-cuda-toolkit"
    )


def _toolkit(archs: tuple[str, ...]) -> Cuda:
    nvcc = find_nvcc()
    version = check_toolkit(nvcc)
    assert nvcc is not None  # check_toolkit has said so
    known = set(re.findall(r"compute_(\d+)", output_of([nvcc, "--list-gpu-arch"]) or ""))
    unknown = [arch for arch in archs if known and arch not in known]
    if unknown:
        raise SetupError(
            f"CUDA {version[0]}.{version[1]} does not know compute capability {', '.join(map(_dotted, unknown))}",
            hint="install a newer CUDA toolkit, or choose with --cuda-arch",
        )
    return Cuda(nvcc, version, archs, library_folders(nvcc))


def _installed_archs() -> tuple[str, ...]:
    """What the GPUs of this machine can do; those that are too old are left out."""
    gpus = machine.gpus()
    if not gpus:
        raise SetupError(
            "its driver does not answer, so its compute capability is unknown",
            hint="try nvidia-smi; or name it: pagedrun setup --cuda-arch 86",
        )
    usable = sorted({gpu.arch for gpu in gpus if int(gpu.arch) >= MIN_ARCH}, key=int)
    if not usable:
        names = ", ".join(f"{gpu.name} ({_dotted(gpu.arch)})" for gpu in gpus)
        raise SetupError(
            f"{names} is below compute capability {_dotted(str(MIN_ARCH))}, the oldest that is supported",
            hint="a GPU of the Turing generation (2018) or newer is needed; pagedrun setup --cpu hides this line",
        )
    return tuple(usable)


def _checked(archs: Sequence[str]) -> tuple[str, ...]:
    for arch in archs:
        if not arch.isdigit():
            raise UsageError(f"--cuda-arch {arch} is not a compute capability", hint="like 86, or 75,89 for two")
        if int(arch) < MIN_ARCH:
            raise UsageError(
                f"compute capability {_dotted(arch)} is not supported", hint=f"{_dotted(str(MIN_ARCH))} and newer are"
            )
    return tuple(sorted(set(archs), key=int))


def _dotted(arch: str) -> str:
    return f"{arch[:-1]}.{arch[-1]}"
