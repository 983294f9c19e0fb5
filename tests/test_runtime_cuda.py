"""When the runtime is built for CUDA, and what is said when it cannot be. The toolkits here are shell scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.errors import SetupError, UsageError
from pagedrun.machine import Gpu
from pagedrun.runtime import cuda
from pagedrun.runtime.build import Recipe
from pagedrun.runtime.sources import PINNED
from pagedrun.runtime.toolchain import Compiler
from tests.runtime_fakes import Report

NVCC = """#!/bin/sh
case "$*" in
    *--version*) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
    *--dryrun*) echo '#$ LIBRARIES=  "-L{folder}/lib/stubs" "-L{folder}/lib" "-L{folder}/none"' >&2 ;;
    *--list-gpu-arch*) for arch in {archs}; do echo "compute_$arch"; done ;;
    *-E*) {header} ;;
    *-lcublas*) {link} ;;
esac
"""

Toolkit = Callable[..., str]


@pytest.fixture(autouse=True)
def no_other_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_USUAL", ())
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setattr(cuda.shutil, "which", lambda name: name if Path(name).is_absolute() else None)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolkit:
    def make(version: str = "13.0", archs: str = "75 86 90 120", header: str = "true", link: str = "true") -> str:
        nvcc = tmp_path / "nvcc"
        (tmp_path / "lib" / "stubs").mkdir(parents=True, exist_ok=True)
        nvcc.write_text(NVCC.format(folder=tmp_path, version=version, archs=archs, header=header, link=link))
        nvcc.chmod(0o755)
        monkeypatch.setenv("CUDACXX", str(nvcc))
        return str(nvcc)

    return make


def has_gpus(monkeypatch: pytest.MonkeyPatch, *archs: str) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu(i, f"GPU-{a}", 8 << 30, 7 << 30, a) for i, a in enumerate(archs)])


def test_without_a_gpu_the_toolkit_is_not_even_looked_at(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    toolkit(header="echo broken; exit 1")
    report = Report()
    assert cuda.choose(report, cpu_only=False, archs=()) is None
    assert report.lines == []


def test_gpus_and_toolkit(toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = toolkit()
    has_gpus(monkeypatch, "120", "86", "86", "61")  # one is too old; the others are enough
    assert cuda.choose(Report(), cpu_only=False, archs=()) == cuda.Cuda(
        nvcc, (13, 0), ("86", "120"), (str(tmp_path / "lib"),)
    )


def test_cpu_was_asked_for(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit()
    has_gpus(monkeypatch, "86")
    assert cuda.choose(Report(), cpu_only=True, archs=()) is None


def test_archs_do_not_need_a_gpu(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    nvcc = toolkit("12.4")
    chosen = cuda.choose(Report(), cpu_only=False, archs=("90", "86", "90"))
    assert chosen is not None
    assert (chosen.nvcc, chosen.version, chosen.archs) == (nvcc, (12, 4), ("86", "90"))


@pytest.mark.parametrize(("arch", "message"), [("70", "7.0 is not supported"), ("native", "not a compute capability")])
def test_archs_that_make_no_sense(toolkit: Toolkit, arch: str, message: str) -> None:
    toolkit()
    with pytest.raises(UsageError, match=message):
        cuda.choose(Report(), cpu_only=False, archs=(arch,))


PROBLEMS = [
    ({"header": "echo 'x.cu:1: fatal error: cublas_v2.h: No such file'; exit 1"}, "lacks the headers of cuBLAS"),
    ({"link": "echo '/usr/bin/ld: cannot find -lcublas: No such file'; exit 1"}, "lacks libcublas.so"),
    ({"link": "echo '/usr/bin/ld: cannot find -lcuda: No such file'; exit 1"}, "lacks libcuda.so"),
    ({"link": "echo 'unsupported GNU version! gcc versions later than 13'; exit 1"}, "unsupported GNU version"),
    ({"version": "11.8"}, "CUDA 11.8 .* is too old"),
    ({"archs": "75 80"}, "does not know compute capability 8.6"),
]


@pytest.mark.parametrize(("changes", "message"), PROBLEMS)
def test_an_incomplete_toolkit_is_an_error_when_cuda_was_asked_for(
    toolkit: Toolkit, changes: dict[str, str], message: str
) -> None:
    toolkit(**changes)
    with pytest.raises(SetupError, match=message) as caught:
        cuda.choose(Report(), cpu_only=False, archs=("86",))
    assert "apt install" in caught.value.hint or "newer CUDA" in caught.value.hint


@pytest.mark.parametrize(("changes", "message"), PROBLEMS)
def test_an_incomplete_toolkit_beside_a_gpu_means_the_cpu_and_says_so(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], message: str
) -> None:
    toolkit(**changes)
    has_gpus(monkeypatch, "86")
    report = Report()
    assert cuda.choose(report, cpu_only=False, archs=()) is None
    assert "this machine has an NVIDIA GPU, but" in report.text
    assert "built for the CPU" in report.text


def test_packages_are_named_exactly(toolkit: Toolkit) -> None:
    toolkit("12.6", header="echo cublas_v2.h; exit 1")
    with pytest.raises(SetupError) as caught:
        cuda.check_toolkit(cuda.find_nvcc())
    assert "sudo apt install libcublas-dev-12-6" in caught.value.hint
    assert "sudo apt install nvidia-cuda-toolkit" in caught.value.hint


def test_no_nvcc_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpus(monkeypatch, "89")
    report = Report()
    assert cuda.choose(report, cpu_only=False, archs=()) is None
    assert "there is no CUDA compiler (nvcc)" in report.text
    assert "cuda-nvcc-13-0" in report.text


@pytest.mark.parametrize(("archs", "message"), [((), "driver does not answer"), (("61", "70"), "GPU-61 (6.1)")])
def test_gpus_that_cannot_be_used(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, archs: tuple[str, ...], message: str
) -> None:
    toolkit()
    has_gpus(monkeypatch, *archs)
    report = Report()
    assert cuda.choose(report, cpu_only=False, archs=()) is None
    assert message in report.text


def test_cuda_changes_options_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler("cc", "c++", "12")
    recipes = [
        Recipe(PINNED, (), compiler),
        Recipe(PINNED, (), compiler, portable=True),
        Recipe(PINNED, (), Compiler("cc", "c++", "13")),
        Recipe(PINNED, (), compiler, cuda.Cuda("/a/nvcc", (13, 0), ("86",))),
        Recipe(PINNED, (), compiler, cuda.Cuda("/a/nvcc", (13, 0), ("86", "89"))),
        Recipe(PINNED, (), compiler, cuda.Cuda("/a/nvcc", (12, 4), ("86",))),
    ]
    keys = [recipe.key for recipe in recipes]
    assert len(set(keys)) == len(keys)
    assert "-DCMAKE_CUDA_ARCHITECTURES=86;89" in recipes[4].options
    # Where the tools lie does not matter.
    assert Recipe(PINNED, (), Compiler("/x/gcc", "/x/g++", "12")).key == keys[0]
    assert Recipe(PINNED, (), compiler, cuda.Cuda("/b/nvcc", (13, 0), ("86",), ("/b/lib",))).key == keys[3]
    # Flags from the environment reach the compiler, so they do.
    monkeypatch.setenv("CXXFLAGS", "-O1")
    assert Recipe(PINNED, (), compiler).key != keys[0]
