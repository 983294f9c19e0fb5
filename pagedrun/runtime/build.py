"""One build of llama.cpp: what determines it (the recipe), cmake, ninja, and what is taken out of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun import machine
from pagedrun.errors import BuildError
from pagedrun.runtime import space
from pagedrun.runtime.cuda import Cuda
from pagedrun.runtime.process import Result, output_of, run
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import LLAMA_CPP_COMMIT, Patch, Source, build_id
from pagedrun.runtime.toolchain import Compiler, cache_environment, default_jobs

LIBRARIES = ("llama", "llama-common")
#: Programs that pagedrun itself runs: part of every runtime.
PROGRAMS = ("llama-imatrix",)
#: Programs for comparisons, only built when asked for.
TOOLS = ("llama-completion", "llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
#: Libraries that only some program uses, beside its own.
_USED_BY = {"llama-server": ("libmtmd.so*",)}
#: What cmake has to be told for a program; it changes nothing in the libraries, and is no part of a recipe.
_OPTIONS_FOR = {"llama-server": ("-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF")}

# Measured (110 MiB, and 250 MiB with CUDA for one architecture), with room for several and for other compilers.
_CPU_BYTES = 300 << 20
_CUDA_BYTES = 1 << 30

# Memory that one compiler takes for the largest of the files.
_CXX_BYTES = 1 << 30
_NVCC_BYTES = 2 << 30

# Libraries lie beside each other, programs beside the folder of the libraries; the whole can be moved.
_RPATH = "$ORIGIN;$ORIGIN/../lib"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    # Not from git: the cache may lie inside somebody's repository.
    f"-DLLAMA_BUILD_COMMIT={LLAMA_CPP_COMMIT}",
    "-DLLAMA_BUILD_NUMBER=1",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    f"-DCMAKE_INSTALL_RPATH={_RPATH}",
)
_NATIVE = ("-DGGML_NATIVE=ON",)
# What every x86-64 processor since 2013 (Haswell) and 2015 (Excavator) has.
_PORTABLE = ("-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")))
PORTABLE_FLAGS = ("avx", "avx2", "bmi2", "f16c", "fma", "sse4_2")

# Number formats of keys and values that have a fast kernel for single tokens. llama.cpp's own choice, and the pair that
# people mix: keys need the precision more. Other pairs are converted to f16 at every step.
_KV_PAIRS = ("f16-f16", "bf16-bf16", "q8_0-q8_0", "q8_0-q4_0", "q4_0-q4_0")

_FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS")
_PROGRESS = re.compile(r"^\[(\d+)/(\d+)\] ")


@dataclass(frozen=True)
class Recipe:
    """Everything that determines what comes out of a build."""

    source: Source
    patches: tuple[Patch, ...]
    compiler: Compiler
    cuda: Cuda | None = None
    portable: bool = False

    @property
    def build_id(self) -> str:
        """Base and patches alone."""
        return build_id(self.source, self.patches)

    @property
    def options(self) -> tuple[str, ...]:
        """cmake's options, without anything that depends on where things lie."""
        options = (*_OPTIONS, *(_PORTABLE if self.portable else _NATIVE), f"-DPAGEDRUN_BUILD_ID={self.build_id}")
        if self.cuda is None:
            return options
        return (
            *options,
            "-DGGML_CUDA=ON",
            "-DGGML_CUDA_NCCL=OFF",
            f"-DGGML_CUDA_FA_QUANTS={','.join(_KV_PAIRS)}",
            f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(self.cuda.archs)}",
            # The driver's libcuda.so.1 may be absent here, when building for another machine.
            "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined",
        )

    @property
    def cpu_flags(self) -> tuple[str, ...]:
        """The instruction sets that the result may use."""
        return PORTABLE_FLAGS if self.portable else tuple(sorted(machine.instruction_sets()))

    @property
    def key(self) -> str:
        """16 hex digits; two builds with the same key give the same runtime."""
        parts: list[Any] = [self.source.sha256, self.build_id, self.options, self.cpu_flags, self.compiler.version]
        parts.append(self.cuda.version_text if self.cuda else "")
        parts.append({name: os.environ[name] for name in _FLAG_VARIABLES if name in os.environ})
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Builder:
    """cmake and ninja in one folder; `fd` is the setup lock, `jobs` how many compilers run at once."""

    recipe: Recipe
    folder: Path
    cmake: str
    ninja: str
    ccache: str | None
    jobs: int | None
    report: Reporter
    fd: int

    @property
    def log(self) -> Path:
        """All that cmake and the compilers printed."""
        return self.folder / "build.log"

    @property
    def objects(self) -> Path:
        """cmake's binary folder."""
        return self.folder / "objects"

    def require_space(self) -> None:
        """Raise DiskFullError if the build cannot fit, counting what an earlier try has left."""
        needed = (_CUDA_BYTES if self.recipe.cuda else _CPU_BYTES) - folder_size(self.objects)
        space.require(self.folder, max(needed, 50 << 20), "building the runtime")

    def configure(self, tree: Path, programs: Sequence[str] = ()) -> None:
        """Run cmake, so that these programs can be built too. Raises BuildError."""
        self.report.progress("Configuring the build", 0, None)
        compiler, cuda = self.recipe.compiler, self.recipe.cuda
        command = [self.cmake, "-S", str(tree), "-B", str(self.objects), "-G", "Ninja", *self.recipe.options]
        command += [option for name in programs for option in _OPTIONS_FOR.get(name, ())]
        command += [f"-DCMAKE_MAKE_PROGRAM={self.ninja}"]
        command += [f"-DCMAKE_C_COMPILER={compiler.cc}", f"-DCMAKE_CXX_COMPILER={compiler.cxx}"]
        # Also keeps sccache out, whose server would go on running.
        command += [f"-DGGML_CCACHE={'ON' if self.ccache else 'OFF'}"]
        if cuda:
            # The toolkit's libraries are not always where the loader looks.
            command += [f"-DCMAKE_CUDA_COMPILER={cuda.nvcc}", f"-DCMAKE_INSTALL_RPATH={';'.join((_RPATH, *cuda.libs))}"]
        self._check(run(command, env=self._environment(), log=self.log, pass_fds=(self.fd,)), "cmake")

    def compile(self, targets: Sequence[str], label: str) -> None:
        """Build `targets`, reporting how many steps are done. Raises BuildError, DiskFullError."""

        def on_line(line: str) -> None:
            if match := _PROGRESS.match(line):
                self.report.progress(label, int(match[1]), int(match[2]))

        self.report.progress(label, 0, None)
        each = _NVCC_BYTES if self.recipe.cuda else _CXX_BYTES
        jobs = self.jobs or default_jobs(machine.memory().available, each)
        command = [self.ninja, "-C", str(self.objects), f"-j{jobs}", *targets]
        result = run(command, env=self._environment(), log=self.log, on_line=on_line, pass_fds=(self.fd,))
        self._check(result, "the compiler")

    def install_libraries(self, lib: Path) -> None:
        """Copy the shared libraries to `lib`, with OpenMP's, which a machine without a compiler may lack."""
        patterns = ("libggml*.so*", "libllama.so*", "libllama-common.so*")
        _copy([path for pattern in patterns for path in sorted((self.objects / "bin").glob(pattern))], lib)
        openmp = output_of([self.recipe.compiler.cc, "-print-file-name=libgomp.so.1"])
        if openmp and Path(openmp).is_file():
            shutil.copy2(Path(openmp).resolve(), lib / "libgomp.so.1")

    def install_programs(self, names: Sequence[str], root: Path) -> None:
        """Copy programs of llama.cpp, and the libraries that only they use, into the runtime at `root`."""
        built = self.objects / "bin"
        _copy([built / name for name in names], root / "bin")
        patterns = [pattern for name in names for pattern in (f"lib{name}-impl.so*", *_USED_BY.get(name, ()))]
        _copy([path for pattern in patterns for path in sorted(built.glob(pattern))], root / "lib")

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        env["NINJA_STATUS"] = "[%f/%t] "
        env["GIT_CEILING_DIRECTORIES"] = str(self.folder)  # llama.cpp's cmake asks git about the folder above
        if self.ccache:
            env |= cache_environment(self.folder)
        return env

    def _check(self, result: Result, who: str) -> None:
        if result.status == 0:
            return
        if space.is_out_of_space(result.tail):
            raise space.ran_out(self.folder, "building the runtime")
        hint = f"the whole log is in {self.log}"
        if re.search(r"Killed signal|signal terminated program|out of memory", result.tail):
            hint = f"it ran out of memory: try pagedrun setup --jobs 1; {hint}"
        raise BuildError(f"{who} failed:\n{_interesting(result)}", hint=hint)


def folder_size(folder: Path) -> int:
    """Bytes in all files below `folder`; 0 if there is none."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink() and path.is_file())


def needed_glibc(lib: Path) -> str:
    """The newest C library version that any of the libraries asks for, like "2.34"; "" if none says."""
    found = {
        (int(major), int(minor))
        for path in lib.glob("*.so*")
        if not path.is_symlink()
        for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes())
    }
    return ".".join(map(str, max(found))) if found else ""


def _interesting(result: Result) -> str:
    """The first errors of a failed build: what stands after ninja's FAILED line, else the end."""
    lines = [line for line in result.tail.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|\bError\b|fatal", line)]
    return "\n".join(f"  {line[:300]}" for line in (errors[:6] or lines[-8:]))


def _copy(files: Sequence[Path], target: Path) -> None:
    """Copy files and symbolic links, each aside first: somebody may be running the tools already."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        aside = target / f".{file.name}.tmp"
        aside.unlink(missing_ok=True)
        shutil.copy2(file, aside, follow_symlinks=False)
        aside.replace(target / file.name)
