"""llama-cpp-python's bindings: Python files only, from the verified sdist, built without the library."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from pagedrun import paths
from pagedrun.errors import DownloadError
from pagedrun.runtime.packages import pip
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import Source

_WITHOUT_LIBRARY = {"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"}


def get_bindings(archive: Path, source: Source, report: Reporter, fd: int) -> Path:
    """The folder to import `llama_cpp` from, installed once per sdist. `fd`: the setup lock.

    Raises DownloadError, DiskFullError.
    """
    target = paths.cache_dir() / "bindings" / source.sha256[:16]
    if target.exists():
        return target
    report.progress(f"Installing the bindings of {source.name}", 0, None)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="install-", dir=target.parent) as scratch:
        aside = Path(scratch) / "python"
        pip(
            ["install", "--no-deps", "--no-binary", source.name, "--target", str(aside), str(archive)],
            purpose=f"installing the bindings of {source.name}",
            scratch=Path(scratch) / "tmp",
            extra_env=_WITHOUT_LIBRARY,
            fd=fd,
        )
        if not (aside / "llama_cpp" / "llama_cpp.py").is_file():
            raise DownloadError(f"{archive.name} holds no bindings", hint="run: pagedrun setup")
        shutil.rmtree(aside / "bin", ignore_errors=True)
        aside.rename(target)
    return target
