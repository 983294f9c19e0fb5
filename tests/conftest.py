"""Fixtures over the real runtime, and a hub on this machine.

A test that needs the runtime is skipped, with the reason, where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.errors import PagedrunError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from pagedrun.native.library import Library
    from pagedrun.service import Service
    from tests.fake_hub import FakeHub
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
def cuda_runtime(library: Library) -> None:
    """The runtime is built for CUDA."""
    from pagedrun.runtime.store import find_runtime

    if not find_runtime().manifest.on_gpu:
        pytest.skip("the runtime is built for the CPU: pagedrun setup builds one for CUDA where nvcc is")


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
    return _random_model(tmp_path_factory.mktemp("models") / "tiny-qwen35moe.gguf", "--tiny")


@pytest.fixture(scope="session")
def tiny_dense(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with an 8B's kind of attention, 8 KV heads of 128, and room for 262,144 tokens."""
    return _random_model(tmp_path_factory.mktemp("models") / "tiny-llama.gguf", "--dense", "--tiny")


def _random_model(path: Path, *shape: str) -> Path:
    script = Path(__file__).parents[1] / "scripts" / "random_model.py"
    vocab = os.environ.get("PAGEDRUN_TEST_VOCAB")  # where the sources, which have one, are not at hand
    arguments = [*shape, *(["--vocab", vocab] if vocab else [])]
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


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub for HF_ENDPOINT, with folders of our own, no token, and no waiting between attempts."""
    from huggingface_hub import close_session

    from pagedrun.hub import http
    from tests import fake_hub, hub_fakes

    hub_fakes.make_home(tmp_path, monkeypatch)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    close_session()  # the library's client keeps the proxies that it was made with
    with fake_hub.running() as hub:
        short = http.Patience(connect_s=5, read_s=0.3, answer_s=0.3, sleep=hub.waits.append)
        monkeypatch.setattr(http, "patience", short)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    from tests.page_visits import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`with visit(says, ...) as v:` serves the fake model, and opens the page: `tests.page_visits.visiting`."""
    from tests.cli_fakes import folders
    from tests.page_visits import visiting

    monkeypatch.delenv("PAGEDRUN_API_KEY", raising=False)
    model = folders(tmp_path, monkeypatch)

    def of(says: str = "Hello!", *args: str, **how: Any) -> Any:
        return visiting(browser, tmp_path, model, says, *args, **{"step_s": 0, "load_s": 0, "key": "", **how})

    return of
