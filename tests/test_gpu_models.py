"""Several models on one CUDA GPU: in one budget, and their memory comes back. Run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.plan import rules
from pagedrun.request import GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from pagedrun.sharing import SharedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("cuda_runtime"),
]

MIB = 1 << 20
LIMIT = 4096 * MIB


def used() -> int:
    gpu = machine.gpus()[0]
    return gpu.vram - gpu.vram_free


def answer(service: Service) -> tuple[int, ...]:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(prompt=tuple(range(1000, 1200)), sampling=sampling, max_tokens=8)
    return tuple(token for e in service.submit(request) if isinstance(e, TextDelta) for token in e.tokens)


def test_two_models_in_one_budget(tiny_dense: Path, tiny_hybrid: Path) -> None:
    memory = SharedMemory(EngineConfig(max_seq_len=2048, max_num_seqs=2, gpu_memory=LIMIT), 2)
    before = used()
    share = memory.share([])
    assert share is not None
    with load_service(tiny_dense, share) as one:
        said, plan = answer(one), one.plan
        assert memory.fits(tiny_hybrid, [one.holds])
        share = memory.share([one.holds])
        assert share is not None and share.warm and share.config.gpu_memory == LIMIT - one.holds.vram
        with load_service(tiny_hybrid, share) as two:
            assert one.model.on_gpu and two.model.on_gpu
            assert answer(two) and answer(one) == said
            assert one.holds.vram + two.holds.vram + rules.CUDA_CONTEXT <= LIMIT
            assert used() - before <= LIMIT
            full = used()
        assert used() < full - 16 * MIB
    assert used() - before < 800 * MIB  # CUDA itself stays
    share = memory.share([])
    assert share is not None and plan is not None
    with load_service(tiny_dense, share) as again:
        assert answer(again) == said
        assert again.plan is not None and again.plan.settings == plan.settings, "placed as the first time"


def test_what_the_first_may_still_take_is_not_the_seconds(tiny_dense: Path, tiny_hybrid: Path) -> None:
    memory = SharedMemory(EngineConfig(max_seq_len=2048, max_num_seqs=2, gpu_memory=1024 * MIB), 2)
    share = memory.share([])
    assert share is not None
    with load_service(tiny_dense, share) as one:
        left = 1024 * MIB - one.holds.vram
        share = memory.share([one.holds])
        assert (share is None) == (left <= 0)
        assert share is None or share.config.gpu_memory == left
