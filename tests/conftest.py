"""Fixtures over the real runtime. A test that needs it is skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagedrun.errors import PagedrunError

if TYPE_CHECKING:
    from pagedrun.native.library import Library
    from pagedrun.service import Service
    from tests.sampler_lab import Lab


@pytest.fixture(scope="session")
def library() -> Library:
    """The loaded runtime."""
    from pagedrun.native.library import load

    try:
        return load()
    except PagedrunError as e:
        pytest.skip(f"no runtime: {e.message} ({e.hint})")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model's file."""
    from pagedrun import hub
    from pagedrun.catalog import load_catalog

    try:
        return hub.locate(load_catalog().default).path
    except PagedrunError as e:
        pytest.skip(f"no default model: {e.message} ({e.hint})")


@pytest.fixture(scope="session")
def service(library: Library, smollm2: Path) -> Iterator[Service]:
    """SmolLM2 with eight slots of 2,048 tokens."""
    from pagedrun.config import EngineConfig
    from pagedrun.load import load_service

    with load_service(smollm2, EngineConfig(max_num_seqs=8, max_seq_len=2048, gpu_layers=0)) as service:
        yield service


@pytest.fixture(scope="session")
def tiny_hybrid(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model of the 35B's architecture: attention in every fourth layer, recurrent state in the rest."""
    path = tmp_path_factory.mktemp("models") / "tiny-qwen35moe.gguf"
    script = Path(__file__).parents[1] / "scripts" / "random_model.py"
    vocab = os.environ.get("PAGEDRUN_TEST_VOCAB")  # where the sources, which have one, are not at hand
    arguments = ["--tiny", *(["--vocab", vocab] if vocab else [])]
    subprocess.run([sys.executable, str(script), str(path), *arguments], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def lab(library: Library, smollm2: Path) -> Iterator[Lab]:
    """SmolLM2 by hand, for samplers."""
    from tests.sampler_lab import opened_lab

    with opened_lab(library, smollm2) as made:
        yield made


@pytest.fixture
def silence(lab: Lab, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing of the test may print, nor leave a thread behind."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    yield
    assert capfd.readouterr() == ("", "")
    assert len(os.listdir("/proc/self/task")) <= threads + 1  # noqa: PTH208 -- ggml's one worker comes with the first decode
