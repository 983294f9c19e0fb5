"""A GPU whose driver manages no virtual memory, or is told to do without: nothing is paged, and that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError, UsageError
from pagedrun.load import load_service
from tests.test_gpu import answer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("cuda_runtime"),
]

SAID = "the KV cache is not paged: this driver has no virtual memory management; long contexts have to fit VRAM"
ROOT = Path(__file__).parents[1]
GIB = 1 << 30


def test_it_answers_as_with_pages(
    tiny_hybrid: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=1024)) as service:
        expected = answer(service)
    monkeypatch.setenv("PAGEDRUN_NO_VMM", "1")
    caplog.clear()
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=1024)) as service:
        assert service.model.on_gpu
        found = answer(service)
        assert service.stats.kv is None
    assert SAID in caplog.messages
    assert found[0].logprob == pytest.approx(expected[0].logprob, abs=0.1)


def test_pages_that_have_to_be_are_refused(tiny_hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_NO_VMM", "1")
    with pytest.raises(UsageError, match="cannot be paged here: this driver has no virtual memory management") as e:
        load_service(tiny_hybrid, EngineConfig(max_seq_len=1024, paging="on"))
    assert "paging auto" in e.value.hint


def test_a_context_that_needs_ram_is_refused(tiny_dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 GiB, half of which would be pages in RAM."""
    if len(machine.gpus()) != 1:
        pytest.skip("only for a single GPU there is a plan that knows")
    monkeypatch.setenv("PAGEDRUN_NO_VMM", "1")
    with pytest.raises(NotEnoughMemoryError, match="without pages all of it has to fit VRAM"):
        load_service(tiny_dense, EngineConfig(max_seq_len=262_144, gpu_memory=3 * GIB, swap_space=4 * GIB))


def test_the_command_says_so_beside_the_answer(
    tiny_hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDRUN_NO_VMM", "1")
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    command = [sys.executable, "-m", "pagedrun", "complete", "-m", str(tiny_hybrid), "--max-seq-len", "1024"]
    ran = subprocess.run(
        [*command, "--raw", "-n", "2", "one two"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert SAID in ran.stderr.decode().splitlines() and SAID not in ran.stdout.decode("utf-8", "replace")
