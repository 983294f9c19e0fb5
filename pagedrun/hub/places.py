"""The folders in which model files lie: pagedrun's own, and those of other programs, which are only read.

pagedrun      MODELS/NAME.gguf, MODELS/OWNER/REPO/NAME.gguf
huggingface   CACHE/models--OWNER--REPO/snapshots/COMMIT/NAME.gguf, a link to ../../blobs/SHA256
lmstudio      MODELS/OWNER/REPO/NAME.gguf
ollama        MODELS/manifests/HOST/NAMESPACE/NAME/TAG, which lists MODELS/blobs/sha256-HEX

What is damaged, unreadable or of another kind is passed over: it is not for pagedrun to mend, and no error.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pagedrun.hub import quants, record
from pagedrun.paths import models_dir

Place = Literal["pagedrun", "huggingface", "lmstudio", "ollama", "elsewhere"]

#: How people call them.
TITLES: dict[Place, str] = {
    "pagedrun": "pagedrun",
    "huggingface": "Hugging Face",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "elsewhere": "elsewhere",
}

# Where Ollama keeps models when it runs as a service. Names, so that tests can point them elsewhere.
_OLLAMA_SERVICE = (
    "/usr/share/ollama/.ollama/models",
    "/var/lib/ollama/.ollama/models",
    "/var/lib/ollama/models",
    "/var/snap/ollama/common/models",
)
_OLLAMA_HOST = "registry.ollama.ai"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"

# Real trees are less deep, and real manifests and settings smaller.
_DEPTH = 6
_JSON_BYTES = 1 << 20

_DIGEST = re.compile(r"(?:sha256[-:])?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """One GGUF file. `file`: its path inside the repository, or its name. `repo`: OWNER/REPO, where that is known.

    revisions: the commit it is of, and the branches that are there now. sha256: of its content, as far as it is
    recorded; nothing is hashed. ollama: its NAME:TAG there.
    """

    path: Path
    place: Place
    file: str
    size: int
    sha256: str | None = None
    repo: str | None = None
    revisions: frozenset[str] = frozenset()
    ollama: str | None = None

    @property
    def name(self) -> str:
        """What to type for it, if nothing else is called the same."""
        if self.ollama:
            return f"ollama:{self.ollama}"
        if self.repo and "/" in self.repo:
            quant = quants.quant_of(Path(self.file).name)
            return f"hf:{self.repo}:{quant}" if quant else f"hf:{self.repo}/{self.file}"
        return self.file if self.path.parent == models_dir() else str(self.path)


def all_files(repo: str | None = None) -> Iterator[PlacedFile]:
    """The GGUF files of all places, in the order in which `locate` prefers them; only those of `repo`, if given."""
    for files in (own_files(), huggingface_files(repo), lmstudio_files(), ollama_files()):
        for file in files:
            if repo is None or (file.repo or "").lower() == repo.lower():
                yield file


def own_files() -> Iterator[PlacedFile]:
    """What lies in pagedrun's models folder. Downloads under way are in a hidden folder, and left out."""
    return _in_repositories(models_dir(), "pagedrun")


def huggingface_files(repo: str | None = None) -> Iterator[PlacedFile]:
    """What is in the Hugging Face cache: of each repository what `main` points to first, then the newest."""
    # Not scan_cache_dir: it gives up a whole repository for one broken link or one reference to nothing.
    from huggingface_hub import constants

    for folder in entries(Path(constants.HF_HUB_CACHE)):
        found = folder.name.removeprefix("models--").replace("--", "/")
        if folder.name.startswith("models--") and (repo is None or found.lower() == repo.lower()):
            yield from _in_cached_repository(folder, found)


def lmstudio_files() -> Iterator[PlacedFile]:
    """What LM Studio has, in its folder of today, in one chosen in its settings, and in that of older versions."""
    home = Path.home()
    try:
        base = Path((home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip() or home / ".lmstudio")
    except (OSError, UnicodeDecodeError):
        base = home / ".lmstudio"
    chosen = _json(base / "settings.json").get("downloadsFolder")
    roots = [base / "models", home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    if isinstance(chosen, str) and chosen:
        roots.insert(0, Path(chosen).expanduser())
    for root in _distinct(roots):
        yield from _in_repositories(root, "lmstudio")


def ollama_files() -> Iterator[PlacedFile]:
    """The models that Ollama has fetched. One with an adapter is left out: alone, its model answers differently."""
    chosen = os.environ.get("OLLAMA_MODELS")
    roots = [Path(root).expanduser() for root in (chosen, "~/.ollama/models", *_OLLAMA_SERVICE) if root]
    for root in _distinct(roots):
        for manifest in _files_below(root / "manifests"):
            if file := _of_manifest(root, manifest):
                yield file


def at(path: Path) -> PlacedFile:
    """The file at any path, with what is recorded about it there, or where it is linked to."""
    known = record.read(path) or record.read(Path(os.path.realpath(path)))
    sha256 = known.sha256 if known else digest_in_name(path)
    return PlacedFile(path=path, place="elsewhere", file=path.name, size=_size(path), sha256=sha256)


def found_at(path: Path) -> os.stat_result | None:
    """What the system says about a path; None for what is not there, not allowed, or too long to be a path."""
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def is_file(path: Path) -> bool:
    """Whether there is a file, or a link to one, that can be seen."""
    found = found_at(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: Path) -> bool:
    """Whether there is a folder, or a link to one, that can be seen."""
    found = found_at(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name, hidden things left out; nothing when it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError):
        return []


def digest_in_name(path: Path) -> str | None:
    """The sha256 that a file is stored under (in Ollama's blobs, in the Hugging Face cache), also behind a link."""
    try:
        linked = path.readlink().name if path.is_symlink() else path.name
        for name in (linked, path.resolve().name):
            if match := _DIGEST.fullmatch(name):
                return match[1]
    except (OSError, RuntimeError):  # a circle of links
        pass
    return None


def _in_repositories(root: Path, place: Place) -> Iterator[PlacedFile]:
    for path in _files_below(root, ".gguf"):
        parts = path.relative_to(root).parts
        repo = "/".join(parts[:2]) if len(parts) >= 3 else None
        known = record.read(path)
        commit = known.source.partition("@")[2] if known and known.source.startswith("hf:") else ""
        yield PlacedFile(
            path=path,
            place=place,
            file="/".join(parts[2:] if repo else parts),
            size=_size(path),
            sha256=known.sha256 if known else digest_in_name(path),
            repo=repo,
            revisions=frozenset({commit} - {""}),
        )


def _in_cached_repository(folder: Path, repo: str) -> Iterator[PlacedFile]:
    refs = {}
    for path in _files_below(folder / "refs"):
        refs[path.relative_to(folder / "refs").as_posix()] = _text(path).strip()
    snapshots = [path for path in entries(folder / "snapshots") if is_folder(path)]
    snapshots.sort(key=lambda path: (path.name != refs.get("main"), -path.stat().st_mtime))
    for snapshot in snapshots:
        revisions = {snapshot.name, *(ref for ref, commit in refs.items() if commit == snapshot.name)}
        # The path is that of the link: only there does a part of a split model find the others.
        for path in _files_below(snapshot, ".gguf"):
            yield PlacedFile(
                path=path,
                place="huggingface",
                file=path.relative_to(snapshot).as_posix(),
                size=_size(path),
                sha256=digest_in_name(path),
                repo=repo,
                revisions=frozenset(revisions),
            )


def _of_manifest(root: Path, manifest: Path) -> PlacedFile | None:
    parts = manifest.relative_to(root / "manifests").parts
    layers = _json(manifest).get("layers")
    if len(parts) < 3 or not isinstance(layers, list):
        return None
    digests = {str(layer.get("mediaType")): layer.get("digest") for layer in layers if isinstance(layer, dict)}
    match = _DIGEST.fullmatch(str(digests.get(_MODEL_LAYER)))
    if match is None or _ADAPTER_LAYER in digests:
        return None
    # The first releases wrote a colon.
    blob = next((b for mark in "-:" if is_file(b := root / "blobs" / f"sha256{mark}{match[1]}")), None)
    if blob is None:
        return None
    *owner, name, tag = parts
    owner = owner[1:] if owner[0] == _OLLAMA_HOST else owner
    owner = [] if owner == ["library"] else owner
    title = "/".join([*owner, name]) + f":{tag}"
    return PlacedFile(path=blob, place="ollama", file=blob.name, size=_size(blob), sha256=match[1], ollama=title)


def _files_below(folder: Path, suffix: str = "") -> Iterator[Path]:
    """Files below a folder, by name, behind links too, each folder once; nothing hidden, nothing broken."""
    waiting = [(folder, 0)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        here, depth = waiting.pop(0)
        found = found_at(here)
        if found is None or (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        for path in entries(here):
            if is_folder(path):
                waiting += [(path, depth + 1)] if depth < _DEPTH else []
            elif path.name.lower().endswith(suffix) and is_file(path):
                yield path


def _distinct(folders: list[Path]) -> list[Path]:
    """Each folder once, by its first name."""
    found: dict[str, Path] = {}
    for folder in folders:
        found.setdefault(os.path.realpath(folder), folder)
    return list(found.values())


def _size(path: Path) -> int:
    found = found_at(path)
    return found.st_size if found else 0  # deleted a moment ago


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_JSON_BYTES)
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
