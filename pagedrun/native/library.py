"""Loads the native runtime once per process, checks that it belongs to these sources, and catches its log."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedrun.errors import RuntimeLibraryError
from pagedrun.runtime.sources import build_id
from pagedrun.runtime.store import find_runtime

_LOG_LINES = 400  # enough for everything a failing load prints
_ANSWERS = (b"Grammar still awaiting trigger", b"Grammar triggered on")  # llama.cpp's, with the text of an answer


@dataclass(frozen=True)
class Library:
    """The loaded runtime: llama-cpp-python's low-level module, libllama-common, and the log."""

    llama: Any
    common: ctypes.CDLL
    log: LogBuffer


class LogBuffer:
    """llama.cpp's log: the last lines are kept for error messages, and shown on stderr when `verbose`.

    Lines that quote answers are not. on_verbose is told whether lines for whoever debugs llama.cpp are to come too.
    """

    def __init__(self, on_verbose: Callable[[bool], None] = lambda verbose: None) -> None:
        self._verbose = False
        self._on_verbose = on_verbose
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)

    @property
    def verbose(self) -> bool:
        """Whether lines are shown."""
        return self._verbose

    @verbose.setter
    def verbose(self, on: bool) -> None:
        self._verbose = on
        self._on_verbose(on)

    def write(self, level: int, text: bytes | None, _user_data: object) -> None:
        """llama.cpp's log callback; called from any thread, must not raise."""
        if text and text.startswith(_ANSWERS):
            return
        line = (text or b"").decode("utf-8", "replace")
        self._lines.append(line)
        if self._verbose:
            sys.stderr.write(line)

    def clear(self) -> None:
        """Forget the lines so far."""
        self._lines.clear()

    def text(self) -> str:
        """The lines kept."""
        return "".join(self._lines)


@functools.cache
def load() -> Library:
    """The runtime that `pagedrun setup` built.

    Raises RuntimeLibraryError when there is none, when it cannot be loaded, or when it was built from other
    patches than these sources ship.
    """
    runtime = find_runtime()
    os.environ["LLAMA_CPP_LIB_PATH"] = str(runtime.lib)
    if not runtime.manifest.on_gpu:
        _bound_spinning()
    try:
        # libllama-common depends on all the others, which its RPATH finds beside it.
        common = ctypes.CDLL(str(runtime.lib / "libllama-common.so"))
        llama = _bindings(runtime.python)
    except (OSError, RuntimeError, ImportError) as e:
        raise RuntimeLibraryError(f"the runtime library cannot be loaded: {e}", hint="run: pagedrun doctor") from e
    _check_build(llama._lib)
    log = _log(llama, common)
    llama.llama_backend_init()
    return Library(llama, common, log)


def _log(llama: Any, common: ctypes.CDLL) -> LogBuffer:
    """Has the library's log kept, without lines for debugging: ggml-cuda writes one in every step."""
    log_set = common.pagedrun_log_set
    log_set.restype, log_set.argtypes = None, (llama.llama_log_callback, ctypes.c_bool)
    log = LogBuffer(lambda verbose: log_set(callback, verbose))
    callback = llama.llama_log_callback(log.write)
    log.verbose = False
    return log


def give_back_heap() -> None:
    """Give the system what the C library keeps of freed memory. A vocabulary alone is tens of MiB of small pieces."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _bound_spinning() -> None:
    """Keep OpenMP's threads from spinning for milliseconds at every barrier; libgomp reads this when it is loaded.

    By default they do (300,000 spins), and when another program wants the same cores decoding becomes many times
    slower. Sleeping after 1,000 costs little on an idle machine, and keeps two models at once on two cores several
    times faster; not spinning at all makes decoding three times slower (tried with GOMP_SPINCOUNT=N pagedrun complete
    --json, one and two at a time). With layers on a GPU the threads wait for it between their own, and waking them
    each time would cost more; so this is for the CPU alone. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _bindings(folder: Path) -> Any:
    """The module `llama_cpp.llama_cpp`, without running the package's `__init__`.

    That would import the high-level Llama class and what it needs: 0.6 s and two packages that pagedrun has no
    use for.
    """
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(folder / "llama_cpp")]
    sys.modules.setdefault("llama_cpp", package)
    import llama_cpp.llama_cpp as bindings

    return bindings


def _check_build(lib: ctypes.CDLL) -> None:
    try:
        function = lib.pagedrun_build_id
    except AttributeError:
        raise RuntimeLibraryError(
            "the llama.cpp library is a stock build, without pagedrun's patches", hint="run: pagedrun setup"
        ) from None
    function.restype = ctypes.c_char_p
    found = function().decode()
    if found != build_id():
        raise RuntimeLibraryError(
            f"the runtime was built from other patches ({found}) than this version ships ({build_id()})",
            hint="run: pagedrun setup",
        )
