"""Folders as other programs lay them out, with model files in them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.hub_fakes import put

COMMIT = "1" * 40


def hf_cached(home: Path, repo: str, files: dict[str, bytes], *, commit: str = COMMIT, ref: str = "main") -> Path:
    """A repository in the Hugging Face cache: blobs, and a snapshot of links to them; returns the snapshot."""
    root = home / "hf" / f"models--{repo.replace('/', '--')}"
    put(root / "refs" / ref, commit.encode())
    for file, content in files.items():
        blob = put(root / "blobs" / hashlib.sha256(content).hexdigest(), content)
        link = root / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return root / "snapshots" / commit


def in_lmstudio(home: Path, repo: str, name: str, content: bytes, *, root: str = ".lmstudio/models") -> Path:
    """A file in LM Studio's folder."""
    return put(home / root / repo / name, content)


def in_ollama(
    root: Path, name: str, content: bytes, *, mark: str = "-", more: tuple[str, ...] = (), host: str = "library"
) -> Path:
    """A model as Ollama keeps it below `root`; returns its blob. `host`: "library", or HOST/NAMESPACE."""
    digest = hashlib.sha256(content).hexdigest()
    base, _, tag = name.partition(":")
    folder = root / "manifests" / ("registry.ollama.ai/library" if host == "library" else host)
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(content)}]
    layers += [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{'0' * 64}"} for kind in more]
    manifest = {"schemaVersion": 2, "config": {"digest": f"sha256:{'f' * 64}"}, "layers": layers}
    put(folder / base / (tag or "latest"), json.dumps(manifest).encode())
    return put(root / "blobs" / f"sha256{mark}{digest}", content)
