"""On a CUDA GPU: layers really go there, answers stay right, and the memory is given back. Run by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.load_embedding import load_embedding
from pagedrun.request import GenerationRequest, TextDelta, TokenLogprob
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from tests.bert_models import CLS, NumpyBert, write_bert
from tests.llama_models import NumpyLlama, write_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.usefixtures("cuda_runtime"),
]

PROMPT = tuple(range(1000, 1200))
MIB = 1 << 20


def used() -> int:
    gpu = machine.gpus()[0]
    return gpu.vram - gpu.vram_free


def answer(service: Service, prompt: tuple[int, ...] = PROMPT) -> list[TokenLogprob]:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(prompt=prompt, sampling=sampling, max_tokens=8, logprobs=2)
    return [p for e in service.submit(request) if isinstance(e, TextDelta) for p in e.logprobs]


def test_the_gpu_answers_like_the_cpu(tiny_hybrid: Path) -> None:
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=1024, gpu_layers=0)) as service:
        assert not service.model.on_gpu
        cpu = answer(service)
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=1024)) as service:
        assert service.model.device == machine.gpus()[0].name
        gpu = answer(service)
        assert (service.stats.kv is None) == ("PAGEDRUN_NO_VMM" in os.environ)
    assert gpu[0].logprob == pytest.approx(cpu[0].logprob, abs=0.1)


@pytest.mark.parametrize("batch", [0, 16])
def test_embeddings_on_the_gpu_are_those_of_numpy(tmp_path: Path, batch: int) -> None:
    rng = np.random.default_rng(0)
    inputs = [[CLS, *rng.integers(5, 60, n).tolist()] for n in (3, 100, 15, 40, 1, 99)]
    bert, llama = write_bert(tmp_path / "bert.gguf"), write_llama(tmp_path / "llama.gguf", "last")
    for path, model in ((bert, NumpyBert()), (llama, NumpyLlama())):
        left = []
        for _ in range(3):
            with load_embedding(path, EngineConfig(max_batch_tokens=batch)) as service:
                assert service.model.device == machine.gpus()[0].name
                found = service.embed(inputs)
                np.testing.assert_allclose(found, [model.embedding(tokens) for tokens in inputs], atol=5e-3)
            left.append(used())
        assert left[-1] - left[0] < 32 * MIB  # what CUDA keeps for itself came with the first


def test_weights_and_context_are_in_vram_and_are_given_back(tiny_hybrid: Path) -> None:
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=256)):
        pass  # the CUDA context itself stays with the process
    before = used()
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=8192)) as service:
        answer(service)
        assert used() - before > tiny_hybrid.stat().st_size / 2
    assert used() - before < 32 * MIB


def test_several_at_once_and_a_follow_up(tiny_hybrid: Path) -> None:
    with load_service(tiny_hybrid, EngineConfig(max_seq_len=1024, max_num_seqs=4)) as service:
        alone = answer(service)
        streams = [
            service.submit(
                GenerationRequest(
                    prompt=PROMPT, sampling=SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=8, logprobs=2
                )
            )
            for _ in range(4)
        ]
        for stream in streams:
            first = next(p for e in stream if isinstance(e, TextDelta) for p in e.logprobs)
            assert first.logprob == pytest.approx(alone[0].logprob, abs=0.1)
