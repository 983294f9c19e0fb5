"""The engine on a real model: the same answers as llama.cpp, many at once, and clear errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pagedrun.config import EngineConfig
from pagedrun.errors import ContextLengthError, GrammarError, ModelFileError, NotEnoughMemoryError, UsageError
from pagedrun.load import load_service
from pagedrun.native.runner import token_logprob
from pagedrun.request import Finished, FinishReason, GenerationRequest, Grammar, TextDelta, TokenLogprob
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service, Stream

pytestmark = pytest.mark.real

VECTORS = json.loads((Path(__file__).parent / "data" / "completions.json").read_text())
GREEDY = SamplingParams(temperature=0.0)


def ask(service: Service, text: str, **more: object) -> GenerationRequest:
    tokens = service.vocab.tokenize(text, add_special=True, parse_special=True)
    return GenerationRequest(prompt=tuple(tokens), **{"sampling": GREEDY, **more})  # type: ignore[arg-type]


def read(stream: Stream) -> tuple[str, list[int], Finished]:
    text, tokens, end = "", [], None
    for event in stream:
        if isinstance(event, TextDelta):
            text += event.text
            tokens += event.tokens
        else:
            end = event
    assert end is not None
    return text, tokens, end


@pytest.mark.parametrize("vector", VECTORS, ids=[v["prompt"][:20] for v in VECTORS])
def test_greedy_tokens_are_those_of_llama_cpps_own_program(service: Service, vector: dict[str, object]) -> None:
    request = ask(service, str(vector["prompt"]), max_tokens=8)
    assert list(request.prompt) == vector["prompt_tokens"]
    # An end-of-generation token has no text, so it may be missing from the deltas: compare what is certain.
    _, tokens, _ = read(service.submit(request))
    certain = [t for t in vector["tokens"] if not service.vocab.is_eog(t)]  # type: ignore[attr-defined]
    assert tokens[: len(certain)] == certain


def test_the_vectors_are_worth_something() -> None:
    assert len(VECTORS) == 20
    assert sum(len(v["tokens"]) for v in VECTORS) >= 80


def test_many_at_once_answer_like_one_at_a_time(service: Service) -> None:
    """Batching changes the arithmetic's order, so log probabilities are compared, not bits."""
    prompts = [str(v["prompt"]) for v in VECTORS[:8]]

    def first(stream: Stream) -> TokenLogprob:
        return next(e for e in stream if isinstance(e, TextDelta)).logprobs[0]

    alone = [first(service.submit(ask(service, p, max_tokens=4, logprobs=1))) for p in prompts]
    together = [first(s) for s in [service.submit(ask(service, p, max_tokens=4, logprobs=1)) for p in prompts]]
    for a, b in zip(alone, together, strict=True):
        assert math.isclose(a.top[0][1], b.top[0][1], abs_tol=0.05)


def test_same_seed_same_answer_another_seed_another(service: Service) -> None:
    def answer(seed: int) -> str:
        sampling = SamplingParams(temperature=1.2, seed=seed)
        return read(service.submit(ask(service, "Once upon a time", sampling=sampling, max_tokens=24)))[0]

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(4)}) > 1


def test_a_follow_up_computes_only_what_is_new_and_answers_the_same(service: Service, smollm2: Path) -> None:
    history = "The history of Rome begins with a village on a hill. " * 20
    first = ask(service, history, max_tokens=8)
    text, _, _ = read(service.submit(first))
    follow_up = ask(service, history + text + " And then", max_tokens=8)
    _, _, end = read(service.submit(follow_up))
    assert end.usage.cached_tokens >= len(first.prompt)
    from_cache = logprobs(service, follow_up)[0]
    with load_service(smollm2, EngineConfig(max_seq_len=1024, gpu_layers=0)) as other:
        fresh = logprobs(other, follow_up)[0]
    assert [t for t, _ in from_cache.top] == [t for t, _ in fresh.top]
    assert math.isclose(from_cache.logprob, fresh.logprob, abs_tol=0.05)


def logprobs(service: Service, request: GenerationRequest) -> list[TokenLogprob]:
    from dataclasses import replace

    events = list(service.submit(replace(request, logprobs=2)))
    return [p for e in events if isinstance(e, TextDelta) for p in e.logprobs]


def test_cancel_in_the_middle_of_a_long_prompt(service: Service) -> None:
    steps = service.stats.steps
    stream = service.submit(ask(service, "word " * 1900, max_tokens=4))
    stream.cancel()
    _, _, end = read(stream)
    assert end.reason is FinishReason.CANCELLED
    assert service.stats.steps - steps < 4  # the whole prompt is four steps of 512


def test_the_end_of_the_context_is_a_reason(service: Service) -> None:
    request = ask(service, "word " * 2000, sampling=SamplingParams(temperature=0.0, ignore_eos=True))
    _, _, end = read(service.submit(request))
    assert end.reason is FinishReason.CONTEXT
    assert end.usage.prompt_tokens + end.usage.completion_tokens == service.limits.max_seq_len


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(service: Service) -> None:
    with pytest.raises(ContextLengthError, match=r"3,00\d tokens and the context holds 2,048"):
        service.submit(ask(service, "word " * 3000))


def test_a_bad_grammar_fails_alone(service: Service) -> None:
    good = service.submit(ask(service, "The capital of France is", max_tokens=2))
    bad = service.submit(ask(service, "x", grammar=Grammar(text="root ::= ((")))
    assert isinstance(read(bad)[2].error, GrammarError)
    assert read(good)[2].reason is FinishReason.LENGTH


def test_log_probabilities_are_normalised_and_sorted(service: Service) -> None:
    (first, *_) = logprobs(service, ask(service, "The capital of France is", max_tokens=1))
    assert first.token == first.top[0][0]
    assert first.logprob == first.top[0][1] >= first.top[1][1]
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    one = token_logprob(logits, 2, 3)
    assert math.isclose(sum(math.exp(p) for _, p in one.top), 1.0)
    assert [t for t, _ in one.top] == [1, 2, 0]


def test_tokens_and_text_round_trip(service: Service) -> None:
    for text in ("Hello, world!", "日本語 and 😀", "  spaces\t\n", "<|im_start|>user"):
        tokens = service.vocab.tokenize(text, add_special=False, parse_special=True)
        assert b"".join(service.vocab.piece(t, special=True) for t in tokens).decode() == text


def damaged(source: Path, target: Path, *, keep: int | None = None, swap: tuple[bytes, bytes] = (b"", b"")) -> Path:
    data = source.read_bytes()[:keep]
    target.write_bytes(data.replace(*swap, 1) if swap[0] else data)
    return target


def test_a_truncated_file_says_so(library: object, smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="truncated"):
        load_service(damaged(smollm2, tmp_path / "cut.gguf", keep=50_000_000), EngineConfig())
    with pytest.raises(ModelFileError, match="truncated"):
        load_service(damaged(smollm2, tmp_path / "stub.gguf", keep=1_000_000), EngineConfig())


def test_an_unknown_architecture_is_named(library: object, smollm2: Path, tmp_path: Path) -> None:
    name = b"general.architecture" + b"\x08\0\0\0" + b"\x05\0\0\0\0\0\0\0"
    path = damaged(smollm2, tmp_path / "new.gguf", swap=(name + b"llama", name + b"lamma"))
    with pytest.raises(ModelFileError, match="'lamma' is not known"):
        load_service(path, EngineConfig())


def test_a_context_that_cannot_fit_is_refused_before_it_is_made(
    library: object, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotEnoughMemoryError, match="the context needs"):
        load_service(smollm2, EngineConfig(max_seq_len=8192, max_num_seqs=256, paging="off"))


def test_a_context_longer_than_trained_for_is_refused(library: object, smollm2: Path) -> None:
    with pytest.raises(UsageError, match="8,192"):
        load_service(smollm2, EngineConfig(max_seq_len=10_000))
