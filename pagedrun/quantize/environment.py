"""Where llama.cpp's converter runs: a Python environment of its own, with torch and transformers, made once.

    CACHE/convert/KEY/           one for each set of requirements
        bin/python               the environment
        llama.cpp/               convert_hf_to_gguf.py, conversion/, gguf-py/ of the pinned sources
    CACHE/convert/KEY.new/       being made, under CACHE/convert/lock

Neither pagedrun nor its runtime needs any of this, so it is no dependency.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pagedrun import paths
from pagedrun.errors import DownloadError, SetupError, UsageError
from pagedrun.runtime import lock, space
from pagedrun.runtime.fetch import extract, fetch
from pagedrun.runtime.install import locked
from pagedrun.runtime.packages import pip
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import PINNED

#: By package, as in llama.cpp's requirements/ but for torch, where a newer one is needed for newer Pythons.
PINS = {
    "torch": "torch==2.13.0",
    "transformers": "transformers==4.57.6",
    "sentencepiece": "sentencepiece>=0.1.98,<0.3.0",
    "protobuf": "protobuf>=4.21.0,<5.0.0",
    "numpy": "numpy~=2.2.6",
}
#: Requirements in place of the pins, and beside them, separated by spaces.
VARIABLE = "PAGEDRUN_CONVERT_WITH"

# Measured: 1.2 GiB with a torch for the CPU. Twice that while wheels are unpacked.
_BYTES = 5 << 29
_CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HINT = "other versions: --with torch==2.11.0 or the like; or get the model as GGUF: pagedrun search WORD"


def requirements(wanted: Sequence[str]) -> tuple[str, ...]:
    """The pins, with those of PAGEDRUN_CONVERT_WITH and then `wanted` in their place. Raises UsageError."""
    chosen = dict(PINS)
    for requirement in (*os.environ.get(VARIABLE, "").split(), *wanted):
        name = _NAME.match(requirement)
        if name is None:
            raise UsageError(f"--with {requirement!r} is no requirement", hint="for example --with torch==2.11.0")
        chosen[re.sub(r"[-_.]+", "-", name[0]).lower()] = requirement
    return tuple(chosen[name] for name in sorted(chosen))


def folder(wanted: Sequence[str]) -> Path:
    """Where the environment for these requirements is, or will be."""
    parts = [PINNED.sha256, sys.version.split()[0], sys.base_prefix, requirements(wanted)]
    return paths.cache_dir() / "convert" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def get(wanted: Sequence[str], report: Reporter) -> Path:
    """The environment's folder; it is made if need be.

    Raises UsageError (a requirement that is none), DownloadError with the end of pip's output, DiskFullError.
    """
    target = folder(wanted)
    if target.exists():
        return target
    with lock.exclusive(target.parent / "lock", lambda: report.note("Another pagedrun makes it; waiting.")) as held:
        if not target.exists():
            _make(target, requirements(wanted), report, held)
    return target


def _make(target: Path, wanted: tuple[str, ...], report: Reporter, held: int) -> None:
    space.require(target.parent, _BYTES, "the environment for conversions")
    report.note(
        "Converting needs PyTorch and transformers. They go into an environment of their own, once: about 1.2 GiB, "
        f"and several more where pip chooses PyTorch for CUDA ({target})"
    )
    aside = target.with_name(f"{target.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with locked(report) as fd:
            archive = fetch(PINNED, report, fd)
        report.progress("Unpacking the converter", 0, None)
        with space.watched(target.parent, "unpacking the converter"):
            extract(archive, PINNED, _CONVERTER, aside / "llama.cpp")
        report.progress(f"Installing {', '.join(wanted)}", 0, None)
        _make_venv(aside)
        # The lock is pip's too: whoever kills us must not let two of them into one folder.
        pip(
            ["--python", str(aside / "bin" / "python"), "install", *wanted],
            purpose="installing what the converter needs",
            scratch=aside / "tmp",
            fd=held,
        )
        shutil.rmtree(aside / "tmp", ignore_errors=True)
        aside.rename(target)
    except DownloadError as e:
        raise DownloadError(e.message, hint=_HINT) from e
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_venv(aside: Path) -> None:
    # Without pip: ours installs into it, and Debian leaves ensurepip out.
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", str(aside)]
    made = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if made.returncode != 0:
        lines = (made.stderr or made.stdout).strip().splitlines() or ["it gives no reason"]
        raise SetupError(
            f"the environment for conversions cannot be made: {lines[-1]}",
            hint="Debian, Ubuntu: sudo apt install python3-venv; or get the model as GGUF: pagedrun search WORD",
        )
