"""Requests that begin alike, at the same moment, with real models: what they have in common is computed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.request import Finished, GenerationRequest, TextDelta, TokenLogprob
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service, Stream
from tests.paged_models import tokens_of

pytestmark = pytest.mark.real

COMMON = 600
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def ask(service: Service, prompt: list[int], n: int = 4, priority: int = 0) -> Stream:
    return service.submit(
        GenerationRequest(prompt=tuple(prompt), sampling=GREEDY, max_tokens=n, logprobs=20, priority=priority)
    )


def answered(stream: Stream) -> tuple[list[TokenLogprob], Finished]:
    chosen: list[TokenLogprob] = []
    for event in stream:
        if isinstance(event, TextDelta):
            chosen += event.logprobs
        else:
            assert event.error is None, event.error
            return chosen, event
    raise AssertionError("no end")


def opened(path: Path) -> Service:
    config = EngineConfig(
        gpu_layers=0, debug_kv=True, max_batch_tokens=128, max_num_seqs=4, max_seq_len=2048, page_size=64, threads=1,
        snapshot_interval=256,
    )  # fmt: skip
    return load_service(path, config)


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_a_system_prompt_is_read_once_and_gives_the_same_logits(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    prompts = [tokens_of(1, COMMON) + tokens_of(10 + i, 30 + i) for i in range(4)]
    with opened(path) as service:
        streams = [ask(service, prompt) for prompt in prompts]
        together = [answered(stream) for stream in streams]
        assert [end.usage.cached_tokens for _, end in together] == [0, *[COMMON] * 3]
        computed = service.stats.tokens_computed
        assert computed == COMMON + sum(len(p) - COMMON + 3 for p in prompts)
        kv = service.stats.kv
        assert kv is not None and kv.shared_pages >= COMMON // 64 - 1
    for prompt, (chosen, _) in zip(prompts, together, strict=True):
        with opened(path) as service:
            alone, _ = answered(ask(service, prompt, 1))
        known = dict([(alone[0].token, alone[0].logprob), *alone[0].top])
        assert chosen[0].logprob == pytest.approx(known[chosen[0].token], abs=0.3)  # by the shape of batches


def test_priorities_and_gaps_through_the_service(smollm2: Path) -> None:
    config = EngineConfig(gpu_layers=0, max_batch_tokens=128, max_num_seqs=1, max_seq_len=512, threads=1)
    with load_service(smollm2, config) as service:
        first = ask(service, tokens_of(1, 300), 20)
        waiting = [ask(service, tokens_of(2 + i, 40), 3, priority) for i, priority in enumerate((1, 0, -1))]
        timings = [answered(stream)[1].timings for stream in (first, *waiting)]
        queued = [t.queued_s for t in timings[1:]]
        assert queued == sorted(queued, reverse=True)
        assert all(0 < t.gap_s <= t.max_gap_s <= service.stats.max_gap_s for t in timings)
