"""Looks at everything pagedrun needs, and says of each thing whether it is ok, missing or wrong."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pagedrun import machine, paths
from pagedrun.errors import (
    ModelFileError,
    ModelNotFoundError,
    PagedrunError,
    PlatformError,
    RuntimeLibraryError,
    SetupError,
)
from pagedrun.native.driver import virtual_memory
from pagedrun.runtime import cuda, manifest, space, store, toolchain
from pagedrun.runtime.process import output_of
from pagedrun.runtime.sources import build_id, shipped_patches
from pagedrun.runtime.store import Runtime
from pagedrun.units import size

Status = Literal["ok", "missing", "wrong"]

_LOW_DISK = 2 << 30  # a CPU build and the small default model fit; no larger model does
_LOW_MEMORY = 1 << 30


@dataclass(frozen=True)
class Check:
    """One line of the report. `required`: pagedrun cannot run unless this is ok."""

    name: str
    status: Status
    detail: str
    hint: str = ""
    required: bool = False


def examine() -> Iterator[Check]:
    """All checks, as they are made; takes a second or two, longer with a CUDA toolkit. Changes nothing."""
    yield _platform()
    runtime, build = _runtime()
    # What builds is only required as long as there is nothing built.
    building = runtime is None
    yield _compiler(building)
    yield from _build_tools()
    yield from _gpu_checks(runtime)
    yield _memory()
    yield from _disks()
    yield Check("patches", "ok", f"{len(shipped_patches())} shipped, build id {build_id()}")
    yield build
    if runtime is not None:
        damaged = manifest.damaged(runtime.manifest, runtime.root)
        yield _library(runtime, [name for name in damaged if name.startswith("lib/")])
        yield _bindings(runtime, [name for name in damaged if name.startswith("python/")])
    yield from _models()


def can_run(checks: list[Check]) -> bool:
    """Whether everything that is required is ok."""
    return all(check.status == "ok" for check in checks if check.required)


def _platform() -> Check:
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if os.environ.get("WSL_DISTRO_NAME"):
        name += f", WSL ({os.environ['WSL_DISTRO_NAME']})"
    try:
        machine.require_supported()
    except PlatformError as e:
        return Check("system", "wrong", e.message, e.hint, required=True)
    return Check("system", "ok", name, required=True)


def _compiler(required: bool) -> Check:
    try:
        compiler = toolchain.find_compiler()
    except SetupError as e:
        return Check("C++ compiler", "missing", e.message, e.hint, required)
    return Check("C++ compiler", "ok", f"{_compiler_name(compiler.version)} ({compiler.cxx})", required=required)


def _compiler_name(version: str) -> str:
    """Like "g++ 12.2.0", from the line that a compiler prints about itself."""
    number = re.search(r"\d+(\.\d+)+", re.sub(r"\(.*?\)", "", version))
    name = "clang++" if "clang" in version else "g++" if version.startswith("(") else ""
    return f"{name} {number[0]}" if name and number else version


def _build_tools() -> Iterator[Check]:
    for name, find in (("cmake", toolchain.find_cmake), ("ninja", toolchain.find_ninja)):
        found = find()
        if found is None:
            yield Check(name, "ok", "not installed; setup fetches its package")
            continue
        printed = output_of([found, "--version"]) or "?"
        yield Check(name, "ok", f"{printed.splitlines()[0].removeprefix('cmake version ')} ({found})")
    ccache = toolchain.find_ccache()
    yield Check("ccache", "ok", ccache or "not installed; it would make rebuilding quick")


def _gpu_checks(runtime: Runtime | None) -> Iterator[Check]:
    present = machine.has_nvidia_gpu()
    gpus, driver = machine.gpus(), machine.driver_version()
    if not present and not gpus:
        yield Check("GPU", "ok", "no NVIDIA GPU; models run on the CPU")
        return
    if driver is None:
        hint = "on WSL2 install the driver in Windows" if os.environ.get("WSL_DISTRO_NAME") else "try: nvidia-smi"
        yield Check("NVIDIA driver", "wrong", "there is a GPU, but its driver does not answer", hint)
    else:
        yield Check("NVIDIA driver", "ok", driver)
    for gpu in gpus:
        vram = f"{size(gpu.vram)} VRAM, {size(gpu.vram_free)} free"
        detail = f"{gpu.name}, compute {gpu.arch[:-1]}.{gpu.arch[-1]}, {vram}"
        if int(gpu.arch) < cuda.MIN_ARCH:
            yield Check(f"GPU {gpu.index}", "wrong", detail, "it is too old: compute 7.5 and newer are supported")
        else:
            yield Check(f"GPU {gpu.index}", "ok", detail)
    yield from _gpu_pages()
    yield _toolkit(runtime)


def _gpu_pages() -> Iterator[Check]:
    unpaged = "KV caches are not paged, and long contexts have to fit VRAM"
    if "PAGEDRUN_NO_VMM" in os.environ:
        yield Check("GPU pages", "wrong", f"PAGEDRUN_NO_VMM is set: {unpaged}", "unset it")
    elif (there := virtual_memory()) is not None:
        lacking = f"this driver has no virtual memory management: {unpaged}"
        yield Check("GPU pages", "ok", "KV caches can be paged") if there else Check("GPU pages", "wrong", lacking)


def _toolkit(runtime: Runtime | None) -> Check:
    nvcc = cuda.find_nvcc()
    try:
        version = cuda.check_toolkit(nvcc)
    except SetupError as e:
        if runtime is not None and runtime.manifest.on_gpu:  # built elsewhere
            return Check("CUDA toolkit", "ok", f"{e.message}; the runtime has CUDA already")
        status: Status = "missing" if nvcc is None else "wrong"
        return Check("CUDA toolkit", status, e.message, f"{e.hint}; then: pagedrun setup")
    return Check("CUDA toolkit", "ok", f"{version[0]}.{version[1]} with cuBLAS ({nvcc})")


def _memory() -> Check:
    found = machine.memory()
    detail = f"{size(found.total)}, {size(found.available)} available"
    if found.available < _LOW_MEMORY:
        return Check("memory", "wrong", detail, "close something: even a small model needs about 1 GiB")
    return Check("memory", "ok", detail)


def _disks() -> Iterator[Check]:
    for name, folder in (("disk, cache", paths.cache_dir()), ("disk, models", paths.models_dir())):
        parent = folder
        while not parent.exists():
            parent = parent.parent
        detail = f"{size(space.free(folder))} free in {folder}"
        if not os.access(parent, os.W_OK | os.X_OK):
            hint = "change its owner, or set PAGEDRUN_CACHE and PAGEDRUN_MODELS to other folders"
            yield Check(name, "wrong", f"{parent} cannot be written to", hint)
        elif space.free(folder) < _LOW_DISK:
            yield Check(name, "wrong", detail, "free some space, or set PAGEDRUN_CACHE and PAGEDRUN_MODELS elsewhere")
        else:
            yield Check(name, "ok", detail)


def _runtime() -> tuple[Runtime | None, Check]:
    try:
        runtime = store.find_runtime()
    except RuntimeLibraryError as e:
        status: Status = "wrong" if store.anything_built() else "missing"
        return None, Check("runtime", status, e.message, e.hint, required=True)
    made = runtime.manifest
    portable = ", portable" if "-DGGML_NATIVE=OFF" in made.options else ""
    detail = f"{made.backend}{portable}, built {made.built}, key {made.key}"
    notice = store.cpu_notice(runtime)
    if notice:
        # It runs, so it is not a failure; the lines about the driver and the toolkit say what to do.
        return runtime, Check("runtime", "ok", f"{detail}; it cannot use this machine's GPU", required=True)
    return runtime, Check("runtime", "ok", detail, required=True)


def _damage(name: str, files: list[str]) -> Check:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return Check(name, "wrong", f"damaged: {files[0]}{more} missing or changed", "run: pagedrun setup", required=True)


def _library(runtime: Runtime, damaged: list[str]) -> Check:
    if damaged:
        return _damage("library", damaged)
    wanted = build_id()
    try:
        found = store.reported_build_id(runtime)
    except RuntimeLibraryError as e:
        return Check("library", "wrong", e.message, e.hint, required=True)
    if found != wanted and runtime.manifest.patches:
        return Check(
            "library", "wrong", f"says build id {found or 'none'}, not {wanted}", "run: pagedrun setup", required=True
        )
    return Check("library", "ok", f"loads, and says build id {wanted}", required=True)


def _bindings(runtime: Runtime, damaged: list[str]) -> Check:
    if damaged:
        return _damage("bindings", damaged)
    if (runtime.python / "llama_cpp" / "llama_cpp.py").is_file():
        return Check("bindings", "ok", runtime.manifest.base, required=True)
    return Check("bindings", "missing", f"not in {runtime.python}", "run: pagedrun setup", required=True)


def _models() -> Iterator[Check]:
    yield _library_of_models()
    yield _default_model()


def _library_of_models() -> Check:
    from pagedrun.hub import library

    try:
        here = library.entries()
    except PagedrunError as e:  # a models.toml of the user's that is wrong
        return Check("models", "wrong", e.message, e.hint)
    if not here:
        return Check("models", "ok", f"none yet in {paths.models_dir()}")
    own = [entry for entry in here if entry.place == "pagedrun"]
    others = f"; {len(here) - len(own)} of other programs" if len(here) > len(own) else ""
    return Check("models", "ok", f"{len(own)} in {paths.models_dir()}, {size(sum(e.size for e in own))}{others}")


def _default_model() -> Check:
    from pagedrun.catalog import load_catalog
    from pagedrun.gguf_file import check_file
    from pagedrun.hub import locate

    try:
        model = locate(load_catalog().default)
    except ModelNotFoundError as e:
        return Check("default model", "missing", e.message, "run: pagedrun setup")
    except PagedrunError as e:
        return Check("default model", "wrong", e.message, e.hint)
    try:
        check_file(model.path)
    except ModelFileError as e:
        return Check("default model", "wrong", e.message, "run: pagedrun setup")
    return Check("default model", "ok", f"{model.name}, {size(model.path.stat().st_size)}")
