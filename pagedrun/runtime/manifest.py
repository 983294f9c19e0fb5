"""What a built runtime says about itself: `manifest.json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pagedrun.errors import RuntimeLibraryError

FORMAT = 1
FILE = "manifest.json"
_VERIFIED = ("lib", "bin", "python")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """How a runtime was made, and what it needs to run.

    key: what it was built from and with; names its folder.
    build_id: base and patches; the library says the same.
    cuda_version, cuda_archs: empty for the CPU alone.
    cpu_flags: instruction sets the processor must have (of a portable build: the few it assumes).
    glibc: the C library it needs at least, like "2.34".
    tools: llama.cpp's own programs in bin/.
    imported: it was built on another machine.
    files: sha256 of each file in lib/, bin/ and python/, "" for a symbolic link; empty if an older pagedrun built it.
    """

    format: int = FORMAT
    key: str
    build_id: str
    base: str
    patches: tuple[str, ...]
    cuda_version: str = ""
    cuda_archs: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    compiler: str
    options: tuple[str, ...]
    glibc: str
    built: str
    tools: tuple[str, ...] = ()
    imported: bool = False
    files: dict[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether it can compute on a GPU."""
        return bool(self.cuda_version)

    @property
    def backend(self) -> str:
        """For people: `CPU` or `CUDA 13.0 (compute 8.6)`."""
        if not self.on_gpu:
            return "CPU"
        archs = ", ".join(f"{arch[:-1]}.{arch[-1]}" for arch in self.cuda_archs)
        return f"CUDA {self.cuda_version} (compute {archs})"


def save(manifest: Manifest, folder: Path) -> None:
    """Write it into a runtime's folder, whole or not at all."""
    aside = folder / f"{FILE}.tmp"
    aside.write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
    aside.replace(folder / FILE)


def checksums(folder: Path) -> dict[str, str]:
    """What `files` says of a runtime's folder. Reads all of it."""
    names = [path.relative_to(folder) for part in _VERIFIED for path in sorted((folder / part).rglob("*"))]
    return {
        name.as_posix(): _checksum(folder / name)
        for name in names
        if "__pycache__" not in name.parts and ((folder / name).is_symlink() or (folder / name).is_file())
    }


def damaged(manifest: Manifest, folder: Path) -> list[str]:
    """The files of `manifest` that are missing in `folder` or differ, like "lib/libllama.so". Reads all of them."""
    found = []
    for name, wanted in manifest.files.items():
        try:
            good = _checksum(folder / name) == wanted
        except OSError:
            good = False
        if not good:
            found.append(name)
    return found


def _checksum(path: Path) -> str:
    if path.is_symlink():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load(folder: Path) -> Manifest:
    """The manifest in a runtime's folder. Raises RuntimeLibraryError."""
    try:
        return parse((folder / FILE).read_bytes())
    except FileNotFoundError:
        raise RuntimeLibraryError(f"{folder} is not a complete runtime", hint="run: pagedrun setup") from None
    except OSError as e:
        raise RuntimeLibraryError(
            f"the runtime's manifest cannot be read: {e.strerror}", hint="run: pagedrun setup"
        ) from e


def parse(data: bytes) -> Manifest:
    """A manifest from JSON; fields that we do not know are left out. Raises RuntimeLibraryError."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, and this version reads {FORMAT}")
        known = {one.name for one in fields(Manifest)}
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in raw.items() if n in known}
        if not isinstance(values.get("files", {}), dict):
            raise TypeError("its files are not a table")
        return Manifest(**values)
    except (ValueError, KeyError, TypeError) as e:
        raise RuntimeLibraryError(f"the runtime's manifest cannot be read: {e}", hint="run: pagedrun setup") from e
