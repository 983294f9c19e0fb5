"""Another program takes the GPU's memory in the middle of an answer: pages leave in time, and it is the same answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.kv import KvStats
from pagedrun.load import load_service
from pagedrun.native.library import Library
from pagedrun.native.vram import free_vram_of
from pagedrun.request import Finished, GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from pagedrun.slots.pressure import LOW
from pagedrun.step import StepPlan, StepResult
from tests.paged_models import skip_without_pages, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("cuda_runtime"),
]

ROOT = Path(__file__).parents[1]
MIB, GIB = 1 << 20, 1 << 30
#: What the other program leaves: less than LOW, and enough for the steps until that is noticed.
LEFT = 160 * MIB
#: 16 KiB a token: the prompt takes 960 MiB of 1 GiB. Pages of one layer each, so that they can be read through stages.
CONFIG = EngineConfig(max_seq_len=65_536, gpu_memory=3 * GIB, swap_space=4 * GIB, page_size=512, debug_kv=True)
PROMPT, ANSWER = 61_440, 256
TAKEN, HELD = 16, 96  # tokens of the answer


def other_program(leave: int) -> None:
    """What the other program does: takes all but `leave` bytes at a line on stdin, and ends at the end of stdin."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from vram_ballast import PIECE, Driver

    driver, piece, least = Driver(), PIECE, 2 * MIB
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    while (surplus := driver.free() - leave) > least and piece >= least:
        try:
            driver.allocate(min(surplus, piece))
        except RuntimeError:
            piece //= 2
    print(driver.free(), flush=True)
    sys.stdin.read()


class Other:
    """That program, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin and process.stdout
        self._process, self._in, self._out = process, process.stdin, process.stdout
        assert self._out.readline() == "ready\n"

    def take(self) -> None:
        """It has taken what it wants when this returns."""
        self._in.write("take\n")
        self._in.flush()
        assert int(self._out.readline()) < LOW, "it could not take enough"

    def leave(self) -> None:
        """It has ended when this returns."""
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@contextmanager
def started() -> Iterator[Other]:
    """Another program that has taken nothing yet."""
    code = f"from {__name__} import other_program; other_program({LEFT})"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield Other(process)


def generated(
    service: Service, monkeypatch: pytest.MonkeyPatch, between: Mapping[int, Callable[[], None]], n_prompt: int = PROMPT
) -> list[int]:
    """The likeliest tokens. between: called after a step, before the next one, when there are so many of them."""
    runner, n_sampled = service._engine.runner, 0
    compute = runner.run

    def run(plan: StepPlan) -> StepResult:
        nonlocal n_sampled
        result = compute(plan)
        n_sampled += len(result.sampled)
        between.get(n_sampled, lambda: None)()
        return result

    monkeypatch.setattr(runner, "run", run)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(prompt=tuple(tokens_of(1, n_prompt)), sampling=sampling, max_tokens=ANSWER)
    tokens: list[int] = []
    for event in service.submit(request):
        if isinstance(event, TextDelta):
            tokens += event.tokens
        assert not isinstance(event, Finished) or event.error is None, event
    return tokens


def test_pages_leave_for_another_program_and_come_back(
    library: Library, tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_pages()
    if len(machine.gpus()) != 1:
        pytest.skip("several GPUs, of which the other program takes one")
    with load_service(tiny_dense, CONFIG) as service:
        expected = generated(service, monkeypatch, {})
        alone = service.stats.kv
    assert len(expected) == ANSWER and alone is not None
    free, seen = free_vram_of(library.llama._lib, "CUDA0"), {}

    def look() -> None:
        seen["free"], seen["kv"] = free(), service._engine.slots.stats()
        other.leave()

    with started() as other, load_service(tiny_dense, CONFIG) as service:
        assert generated(service, monkeypatch, {TAKEN: other.take, HELD: look}) == expected
        afterwards = service.stats.kv
    meanwhile: KvStats = seen["kv"]
    assert seen["free"] >= LOW
    assert meanwhile.device.n_bytes < alone.device.n_bytes
    assert meanwhile.spill.cold > alone.spill.cold == 0
    assert afterwards.device.n_bytes > meanwhile.device.n_bytes
