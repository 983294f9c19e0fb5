"""A hybrid model (attention and recurrent layers): its memory cannot go back, and answers stay right all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.request import GenerationRequest, TextDelta, Usage
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service

pytestmark = pytest.mark.real

PROMPT = tuple(range(1000, 1400))


@pytest.fixture(scope="module")
def hybrid(tiny_hybrid: Path) -> Iterator[Service]:
    with load_service(tiny_hybrid, EngineConfig(max_num_seqs=4, max_seq_len=1024, max_batch_tokens=64)) as service:
        yield service


def answer(service: Service, prompt: tuple[int, ...], max_tokens: int = 4) -> tuple[list[int], list[float], Usage]:
    request = GenerationRequest(
        prompt=prompt, sampling=SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=max_tokens, logprobs=0
    )
    tokens, logprobs = [], []
    for event in service.submit(request):
        if isinstance(event, TextDelta):
            tokens += [p.token for p in event.logprobs]
            logprobs += [p.logprob for p in event.logprobs]
        else:
            usage = event.usage
    return tokens, logprobs, usage


def test_it_knows_that_it_cannot_rewind(hybrid: Service) -> None:
    assert hybrid.model.architecture == "qwen35moe"
    assert not hybrid.model.can_rewind


def test_an_edit_goes_back_to_a_snapshot_and_an_appended_turn_computes_only_what_is_new(hybrid: Service) -> None:
    tokens, fresh, usage = answer(hybrid, PROMPT)
    assert usage.cached_tokens == 0
    appended = PROMPT + tuple(tokens[:3]) + (77,)
    _, continued, usage = answer(hybrid, appended)
    assert usage.cached_tokens == len(PROMPT) + 3
    _, edited, usage = answer(hybrid, (*PROMPT[:-1], 5))
    assert usage.cached_tokens == len(PROMPT) - 1  # there is a snapshot right before the last token of a prompt
    _, _, usage = answer(hybrid, (*PROMPT[:100], 5, *PROMPT[101:]))
    assert usage.cached_tokens == 0  # none before that
    _, regenerated, usage = answer(hybrid, PROMPT)
    assert (usage.cached_tokens, regenerated) == (len(PROMPT) - 1, pytest.approx(fresh, abs=0.05))  # edits left it
    while hybrid._engine._slots.forget_one(all_of_it=True):
        pass  # the engine's thread waits for a request
    # Everything again from nothing: the recurrent state was really cleared, so the same numbers come out.
    _, again, usage = answer(hybrid, PROMPT)
    assert (usage.cached_tokens, again) == (0, pytest.approx(fresh, abs=1e-4))
    assert answer(hybrid, (1, 2, 3))[2].cached_tokens == 0
    assert answer(hybrid, appended)[1] == pytest.approx(continued, abs=0.05)
    assert edited != fresh


def test_conversations_side_by_side_do_not_mix(hybrid: Service) -> None:
    """Four at once with this vocabulary are enough for the samplers to run in threads."""
    prompts = [PROMPT, *(tuple(range(start, start + 300)) for start in (2000, 3000, 4000))]
    alone = [answer(hybrid, p)[1] for p in prompts]
    requests = [
        GenerationRequest(prompt=p, sampling=SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=4, logprobs=0)
        for p in prompts
    ]
    streams = [hybrid.submit(r) for r in requests]
    together = [[p.logprob for e in s if isinstance(e, TextDelta) for p in e.logprobs] for s in streams]
    for a, b in zip(alone, together, strict=True):
        assert a[0] == pytest.approx(b[0], abs=0.05)
