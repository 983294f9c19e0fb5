"""Pulling in tests: one model of a repository by default, into the models folder of the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pagedrun.errors import DownloadError
from pagedrun.hub import pull
from tests.fake_hub import FakeHub, Repo, model

CONTENT = model(300_000)
NAME = "hf:me/M-GGUF:Q4_K_M"


def fill(hub: FakeHub) -> FakeHub:
    """The model in a repository, and at an address."""
    hub.repos["me/M-GGUF"] = Repo({"M-Q4_K_M.gguf": CONTENT})
    hub.files["m.gguf"] = CONTENT
    return hub


def final() -> Path:
    return Path(os.environ["PAGEDRUN_MODELS"]) / "me" / "M-GGUF" / "M-Q4_K_M.gguf"


def get(name: str = NAME, **more: Any) -> Path:
    return pull.fetch(pull.resolve(name), more.pop("on_progress", lambda done, total: None), **more)


def refused(name: str = NAME) -> DownloadError:
    with pytest.raises(DownloadError) as caught:
        get(name)
    assert caught.value.hint
    return caught.value


def interrupted_at(n_bytes: int, name: str = NAME) -> None:
    def stop(done: int, total: int) -> None:
        if done >= n_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(name, on_progress=stop)


def left_over() -> set[str]:
    folder = Path(os.environ["PAGEDRUN_MODELS"]) / ".pull"
    return {p.name for p in folder.rglob("*") if p.is_file()}
