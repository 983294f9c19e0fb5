"""Where built runtimes lie in the cache, and which one belongs to these sources.

cache/sdist/                          the verified archive
cache/tools/                          cmake and ninja, where the machine has none
cache/bindings/SHA/                   llama-cpp-python's Python files
cache/build/KEY/                      patched sources and objects; only needed to build again quickly
cache/runtime/KEY/{lib,bin,python}    what runs, with manifest.json
cache/runtime/current-BUILD_ID        holds the KEY to use: one line per set of patches, so that two versions of
                                      pagedrun do not take turns
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pagedrun import machine, paths
from pagedrun.errors import RuntimeLibraryError
from pagedrun.runtime import manifest as manifests
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.sources import build_id

_SETUP_HINT = "run: pagedrun setup"

# Runs in a process of its own, so that a library that crashes, or has pulled in half a driver, harms nobody.
_PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1] + "/libllama-common.so")
function = getattr(library, "pagedrun_build_id", None)
if function:
    function.restype = ctypes.c_char_p
    print(function().decode())
"""


@dataclass(frozen=True)
class Runtime:
    """A built runtime: `lib` holds the shared libraries, `python` the bindings, `bin` llama.cpp's own tools."""

    root: Path
    manifest: Manifest

    @property
    def lib(self) -> Path:
        """The shared libraries; they find each other."""
        return self.root / "lib"

    @property
    def bin(self) -> Path:
        """llama.cpp's programs: those that pagedrun runs, and the others after `setup --tools`."""
        return self.root / "bin"

    def program(self, name: str) -> Path:
        """The path of one of llama.cpp's programs. Raises RuntimeLibraryError when it is not in this runtime."""
        path = self.bin / name
        if not path.is_file():
            raise RuntimeLibraryError(f"the runtime on this machine has no {name}", hint=_SETUP_HINT)
        return path

    @property
    def python(self) -> Path:
        """The folder to import `llama_cpp` from."""
        return self.root / "python"


def root() -> Path:
    """The folder of all runtimes."""
    return paths.cache_dir() / "runtime"


def build_root() -> Path:
    """The folder of all build trees."""
    return paths.cache_dir() / "build"


def pointer(wanted: str) -> Path:
    """The file that names the runtime to use for a build id."""
    return root() / f"current-{wanted}"


def lock_file() -> Path:
    """The lock that whoever changes the cache holds."""
    return paths.cache_dir() / "setup.lock"


def open_runtime(key: str) -> Runtime | None:
    """The complete runtime of that key, if it is there."""
    folder = root() / key
    return Runtime(folder, manifests.load(folder)) if (folder / manifests.FILE).exists() else None


def find_runtime() -> Runtime:
    """The runtime built from these sources, in a few milliseconds.

    Raises RuntimeLibraryError when there is none, it belongs to other patches, or to another processor.
    """
    try:
        key = pointer(build_id()).read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise RuntimeLibraryError(_why_absent(), hint=_SETUP_HINT) from None
    except (OSError, UnicodeDecodeError) as e:
        raise RuntimeLibraryError(f"{pointer(build_id())} cannot be read", hint=_SETUP_HINT) from e
    runtime = open_runtime(key)
    if runtime is None:
        raise RuntimeLibraryError("the runtime has been deleted", hint=_SETUP_HINT)
    if runtime.manifest.build_id != build_id():
        raise RuntimeLibraryError(_why_absent(), hint=_SETUP_HINT)
    missing = missing_instructions(runtime.manifest)
    if missing:
        raise RuntimeLibraryError(
            f"the runtime was built for another processor: this one lacks {', '.join(missing)}", hint=_SETUP_HINT
        )
    return runtime


def set_current(runtime: Runtime) -> None:
    """Make this the runtime of its build id."""
    file = pointer(runtime.manifest.build_id)
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    aside.write_text(runtime.manifest.key + "\n", encoding="ascii")
    aside.replace(file)


def cpu_notice(runtime: Runtime) -> str | None:
    """The line to show when this machine has a GPU that the runtime cannot use; else None. Costs microseconds."""
    if runtime.manifest.on_gpu or not machine.has_nvidia_gpu():
        return None
    return (
        "running on the CPU although this machine has an NVIDIA GPU: the runtime was built without CUDA "
        "(pagedrun doctor says what is missing)"
    )


def missing_instructions(manifest: Manifest) -> list[str]:
    """The instruction sets that the runtime uses and this processor lacks."""
    return sorted(set(manifest.cpu_flags) - machine.instruction_sets()) if manifest.cpu_flags else []


def reported_build_id(runtime: Runtime) -> str:
    """Load the library in another process and ask it; "" for a build without patches.

    Raises RuntimeLibraryError with the loader's words when it cannot be loaded.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROBE, str(runtime.lib)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise RuntimeLibraryError(
            f"the library in {runtime.lib} cannot be loaded: {lines[-1]}", hint=_load_hint(lines[-1])
        )
    return done.stdout.strip()


def _load_hint(message: str) -> str:
    if "libcuda.so" in message:
        return "it was built for CUDA, and this machine has no NVIDIA driver: install one, or run: pagedrun setup --cpu"
    if "libcublas" in message or "libcudart" in message:
        return "install NVIDIA's libraries of that version (for CUDA 13.0: libcublas-13-0 and cuda-cudart-13-0)"
    return "build it here: pagedrun setup"


def anything_built() -> bool:
    """Whether there is any runtime, whatever it was built from."""
    return any(root().glob("*/" + manifests.FILE))


def _why_absent() -> str:
    if anything_built():
        return "the runtime on this machine was built from other patches than this version of pagedrun ships"
    return "the runtime has not been built on this machine yet"
