"""What the runtime is made of: one pinned sdist, and the patches that ship with these Python files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from pagedrun import paths


@dataclass(frozen=True)
class Source:
    """A source distribution on the Python package index; `size` in bytes."""

    name: str
    version: str
    sha256: str
    size: int

    @property
    def folder(self) -> str:
        """The one folder inside the archive."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def file_name(self) -> str:
        """The archive's name."""
        return f"{self.folder}.tar.gz"


PINNED = Source(
    name="llama-cpp-python",
    version="0.3.36",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    size=76_589_250,
)

#: llama.cpp inside the archive's folder, and the commit it was taken at.
LLAMA_CPP = PurePosixPath("vendor/llama.cpp")
LLAMA_CPP_COMMIT = "0c1e570"


@dataclass(frozen=True)
class Patch:
    """One file of `patches/`."""

    name: str
    data: bytes


def shipped_patches() -> tuple[Patch, ...]:
    """The patches that belong to these Python files, in the order they apply."""
    folder = paths.data_file("patches")
    return tuple(Patch(path.name, path.read_bytes()) for path in sorted(folder.glob("*.patch")))


def build_id(source: Source = PINNED, patches: tuple[Patch, ...] | None = None) -> str:
    """Names base and patches (16 hex digits); compiled into the library, and compared when it is loaded."""
    digest = hashlib.sha256(source.sha256.encode())
    for patch in shipped_patches() if patches is None else patches:
        digest.update(f"\0{patch.name}\0{len(patch.data)}\0".encode())
        digest.update(patch.data)
    return digest.hexdigest()[:16]
