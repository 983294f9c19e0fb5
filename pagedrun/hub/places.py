"""The folders in which model files lie: pagedrun's own, and those of other programs, which are only read.

pagedrun      MODELS/NAME.gguf, MODELS/OWNER/REPO/FILE; the first versions left the folders of FILE out
huggingface   CACHE/models--OWNER--REPO/snapshots/COMMIT/NAME.gguf, a link to ../../blobs/SHA256
lmstudio      MODELS/OWNER/REPO/NAME.gguf
ollama        MODELS/manifests/HOST/NAMESPACE/NAME/TAG, which lists MODELS/blobs/sha256-HEX

What is damaged, unreadable or of another kind is passed over: it is not for pagedrun to mend, and no error. A folder
that is linked into another belongs to who really has it: see `keeper`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pagedrun.hub import folders, quants, record, remote
from pagedrun.paths import expanded, models_dir

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

_DIGEST = re.compile(r"(?:sha256[-:])?([0-9a-f]{64})")
_COMMIT_BEGINS = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """One GGUF file. `file`: its path inside the repository, or its name. `repo`: OWNER/REPO, where that is known.

    commit: the one it is of, where that is known; revisions: branches and tags it was fetched as, or is now. sha256: of
    its content, as far as it is recorded; nothing is hashed. ollama: its NAME:TAG there.
    """

    path: Path
    place: Place
    file: str
    size: int
    sha256: str | None = None
    repo: str | None = None
    commit: str = ""
    revisions: frozenset[str] = frozenset()
    ollama: str | None = None

    @property
    def name(self) -> str:
        """What to type for it, if nothing else is called the same."""
        if self.ollama:
            return f"ollama:{self.ollama}"
        if self.repo and "/" in self.repo:
            return f"hf:{self.repo}:{self.quant}" if self.quant else f"hf:{self.repo}/{self.file}"
        return self.file if self.path.parent == models_dir() else str(self.path)

    @property
    def quant(self) -> str | None:
        """Its quantisation, by its name or that of its folder in the repository."""
        return quants.quant_of(self.file)

    def is_of(self, repo: str, revision: str | None) -> bool:
        """Whether it is known to be of that repository and, if one is given, that branch, tag or (short) commit."""
        if (self.repo or "").lower() != repo.lower():
            return False
        if revision is None or revision in self.revisions:
            return True
        return bool(_COMMIT_BEGINS.fullmatch(revision.lower())) and self.commit.startswith(revision.lower())


def all_files(repo: str | None = None) -> Iterator[PlacedFile]:
    """The GGUF files of all places, in the order in which `locate` prefers them; only those of `repo`, if given."""
    for files in (own_files(), huggingface_files(repo), lmstudio_files(), ollama_files()):
        for file in files:
            if repo is None or file.is_of(repo, None):
                yield file


def own_files() -> Iterator[PlacedFile]:
    """What lies in pagedrun's models folder. Downloads under way are in a hidden folder, and left out.

    So is what a linked folder has of another program, whose files are found there; of nobody's it is "elsewhere".
    """
    keepers: dict[Path, Place] = {}
    for file in _in_repositories(models_dir(), "pagedrun"):
        folder = file.path.parent
        if folder not in keepers:
            keepers[folder] = keeper(file.path)
        if (place := keepers[folder]) in ("pagedrun", "elsewhere"):
            yield replace(file, place=place)


def huggingface_files(repo: str | None = None) -> Iterator[PlacedFile]:
    """What is in the Hugging Face cache: of each repository what `main` points to first, then the newest."""
    # Not scan_cache_dir: it gives up a whole repository for one broken link or one reference to nothing.
    for folder in folders.entries(Path(remote.settings().HF_HUB_CACHE)):
        found = folder.name.removeprefix("models--").replace("--", "/")
        if folder.name.startswith("models--") and (repo is None or found.lower() == repo.lower()):
            yield from _in_cached_repository(folder, found)


def lmstudio_files() -> Iterator[PlacedFile]:
    """What LM Studio has in its folders."""
    for root in _lmstudio_roots():
        yield from _in_repositories(root, "lmstudio")


def ollama_files() -> Iterator[PlacedFile]:
    """The models that Ollama has fetched. One with an adapter is left out: alone, its model answers differently."""
    for root in _ollama_roots():
        for manifest in folders.below(root / "manifests"):
            if file := _of_manifest(root, manifest):
                yield file


def keeper(path: Path) -> Place:
    """Who has the folder in which a file really lies, whatever links lead there; a linked file lies where its link is.

    Where one has a folder inside another's, it is that one's.
    """
    real = Path(os.path.realpath(path.parent))
    roots: list[tuple[Place, list[Path]]] = [
        ("pagedrun", [models_dir()]),
        ("huggingface", [Path(remote.settings().HF_HUB_CACHE)]),
        ("lmstudio", _lmstudio_roots()),
        ("ollama", _ollama_roots()),
    ]
    found = [(place, Path(os.path.realpath(root))) for place, all_of in roots for root in all_of]
    around = [(place, root) for place, root in found if real.is_relative_to(root)]
    return max(around, key=lambda one: len(one[1].parts))[0] if around else "elsewhere"


def at(path: Path) -> PlacedFile:
    """The file at any path, with what is recorded about it there, or where it is linked to."""
    known = record.read(path) or record.read(Path(os.path.realpath(path)))
    sha256 = known.sha256 if known else digest_in_name(path)
    return PlacedFile(path=path, place="elsewhere", file=path.name, size=folders.size_of(path), sha256=sha256)


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


def _lmstudio_roots() -> list[Path]:
    """Its folder of today, one chosen in its settings, and that of older versions."""
    home = Path.home()
    try:
        base = Path((home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip() or home / ".lmstudio")
    except (OSError, UnicodeDecodeError):
        base = home / ".lmstudio"
    chosen = folders.json_of(base / "settings.json").get("downloadsFolder")
    roots = [base / "models", home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    if isinstance(chosen, str) and chosen:
        roots.insert(0, expanded(chosen))
    return folders.distinct(roots)


def _ollama_roots() -> list[Path]:
    chosen = os.environ.get("OLLAMA_MODELS")
    roots = (chosen, "~/.ollama/models", *_OLLAMA_SERVICE)
    return folders.distinct([expanded(root) for root in roots if root])


def _in_repositories(root: Path, place: Place) -> Iterator[PlacedFile]:
    for path in folders.below(root, ".gguf"):
        parts = path.relative_to(root).parts
        repo = "/".join(parts[:2]) if len(parts) >= 3 else None
        file = "/".join(parts[2:] if repo else parts)
        known = record.read(path)
        source, _, commit = known.source.partition("@") if known else ("", "", "")
        of_hub = source.startswith("hf:")
        yield PlacedFile(
            path=path,
            place=place,
            file=_file_in_source(path, repo) or file,
            size=folders.size_of(path),
            sha256=known.sha256 if known else digest_in_name(path),
            repo=repo,
            commit=commit if of_hub else "",
            revisions=frozenset({known.revision} - {""}) if known and of_hub else frozenset(),
        )


def _file_in_source(path: Path, repo: str | None) -> str | None:
    """The path in its repository that a file was recorded with, be it changed since; it may have been put flat."""
    known = record.last(path)
    same = known and known.source.partition("@")[0].lower() == f"hf:{repo}".lower()
    return known.file if known and same and known.file.rpartition("/")[2] == path.name else None


def _in_cached_repository(folder: Path, repo: str) -> Iterator[PlacedFile]:
    refs = {}
    for path in folders.below(folder / "refs"):
        refs[path.relative_to(folder / "refs").as_posix()] = folders.text_of(path).strip()
    snapshots = [path for path in folders.entries(folder / "snapshots") if folders.is_folder(path)]
    snapshots.sort(key=lambda path: (path.name != refs.get("main"), -path.stat().st_mtime))
    for snapshot in snapshots:
        revisions = frozenset(ref for ref, commit in refs.items() if commit == snapshot.name)
        # The path is that of the link: only there does a part of a split model find the others.
        for path in folders.below(snapshot, ".gguf"):
            yield PlacedFile(
                path=path,
                place="huggingface",
                file=path.relative_to(snapshot).as_posix(),
                size=folders.size_of(path),
                sha256=digest_in_name(path),
                repo=repo,
                commit=snapshot.name,
                revisions=revisions,
            )


def _of_manifest(root: Path, manifest: Path) -> PlacedFile | None:
    parts = manifest.relative_to(root / "manifests").parts
    layers = folders.json_of(manifest).get("layers")
    if len(parts) < 3 or not isinstance(layers, list):
        return None
    digests = {str(layer.get("mediaType")): layer.get("digest") for layer in layers if isinstance(layer, dict)}
    match = _DIGEST.fullmatch(str(digests.get(_MODEL_LAYER)))
    if match is None or _ADAPTER_LAYER in digests:
        return None
    # The first releases wrote a colon.
    blob = next((b for mark in "-:" if folders.is_file(b := root / "blobs" / f"sha256{mark}{match[1]}")), None)
    if blob is None:
        return None
    *owner, name, tag = parts
    owner = owner[1:] if owner[0] == _OLLAMA_HOST else owner
    owner = [] if owner == ["library"] else owner
    title = "/".join([*owner, name]) + f":{tag}"
    return PlacedFile(
        path=blob, place="ollama", file=blob.name, size=folders.size_of(blob), sha256=match[1], ollama=title
    )
