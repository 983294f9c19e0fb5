"""The whole engine, paged: the same answers as without pages, with few frames as with many, and a hard budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagedrun.config import EngineConfig
from pagedrun.errors import ContextLengthError, NotEnoughMemoryError
from pagedrun.load import load_service
from pagedrun.request import FinishReason, GenerationRequest, TextDelta, Usage
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from tests.paged_models import tokens_of

pytestmark = pytest.mark.real

MIB = 1 << 20


def answer(service: Service, prompt: list[int], n: int = 12) -> tuple[list[int], Usage, FinishReason]:
    request = GenerationRequest(
        prompt=tuple(prompt),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=n,
        logprobs=0,
    )
    tokens: list[int] = []
    for event in service.submit(request):
        if isinstance(event, TextDelta):
            tokens += [p.token for p in event.logprobs]
        else:
            assert event.error is None, event.error
            return tokens, event.usage, event.reason
    raise AssertionError("no end")


def counted(found: tuple[list[int], Usage, FinishReason]) -> tuple[list[int], int]:
    """An answer's tokens, and how many of its prompt were cached."""
    return found[0], found[1].cached_tokens


def opened(path: Path, **settings: Any) -> Service:
    return load_service(path, EngineConfig(gpu_layers=0, debug_kv=True, max_batch_tokens=128, **settings))


def conversations(service: Service, n: int, turns: int = 3, first: int = 0) -> list[tuple[list[int], int]]:
    """`n` conversations by turns, one request after the other: (tokens, cached) of each."""
    histories, answers = [tokens_of(i, 150 + 10 * i) for i in range(first, first + n)], []
    for turn in range(turns):
        for i, history in enumerate(histories):
            tokens, usage, _ = answer(service, history)
            answers.append((tokens, usage.cached_tokens))
            histories[i] = history + tokens + tokens_of(100 + turn, 20)
    return answers


def test_paging_changes_no_answer(smollm2: Path) -> None:
    """Follow-ups, a prompt that shares only its beginning, and an edit, in an order in which nothing is cut that is
    needed later: what was cached is the same then, and so are the steps.
    """
    results = []
    for paging in ("off", "on"):
        with opened(smollm2, paging=paging, max_num_seqs=4, max_seq_len=1024) as service:
            first = tokens_of(1, 300)
            prompts = [first, first + tokens_of(4, 100), first[:200] + tokens_of(2, 50), tokens_of(3, 30)]
            results.append([*conversations(service, 4), *(counted(answer(service, p)) for p in prompts)])
            assert (service.stats.kv is not None) == (paging == "on")
    assert results[0] == results[1]
    assert [cached for _, cached in results[0][-4:]] == [160, 300, 200, 29]


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_six_conversations_in_two_slots_recompute_only_what_is_new(model: str, request: pytest.FixtureRequest) -> None:
    """And answer what each does alone; then a branch off the first one, which leaves it as it was."""
    path: Path = request.getfixturevalue(model)
    settings = {"max_num_seqs": 2, "max_seq_len": 1024, "page_size": 32, "snapshot_interval": 64}
    with opened(path, **settings) as service:
        alone = [conversations(service, 1, first=i) for i in range(6)]
    with opened(path, **settings) as service:
        together = conversations(service, 6)
        assert together == [alone[i][turn] for turn in range(3) for i in range(6)]
        kv = service.stats.kv
        assert kv is not None and kv.resting == 6 and kv.index_bytes > 0
        for i in range(6):
            lengths = [150 + 10 * i + turn * (12 + 20) for turn in range(2)]
            assert [cached for _, cached in alone[i]] == [0] + [n + 11 for n in lengths]
        start = tokens_of(0, 150)
        trunk = start + together[0][0] + tokens_of(100, 20)
        branched = answer(service, start + together[0][0] + tokens_of(200, 20))
        back = 0 if model == "smollm2" else 1  # the state is that of the answer's end, whose last token is not computed
        assert branched[1].cached_tokens == 150 + 12 - back
        again = answer(service, trunk + together[6][0] + tokens_of(300, 5))
        assert again[1].cached_tokens == 150 + 12 + 20 + 12 - back


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_few_frames_change_no_answer(model: str, request: pytest.FixtureRequest) -> None:
    """12 requests of 4 conversations, where the device holds one and a half of them: none is computed again."""
    path: Path = request.getfixturevalue(model)
    with opened(path, max_num_seqs=4, max_seq_len=1024, page_size=32, snapshot_interval=64) as service:
        plenty = conversations(service, 4)
        kv = service.stats.kv
        assert kv is not None and not kv.evictions
        frame_bytes = kv.device.n_bytes // kv.device.created
    few = kv.buffer_bytes + frame_bytes * round(1.5 * kv.device.used / 4)
    with opened(path, max_num_seqs=4, max_seq_len=1024, page_size=32, snapshot_interval=64, gpu_memory=few) as service:
        assert conversations(service, 4) == plenty
        kv = service.stats.kv
        assert kv is not None and kv.evictions and kv.host.used
        assert kv.device.n_bytes + kv.buffer_bytes <= few
    assert [cached for _, cached in plenty[:4]] == [0, 0, 0, 0]
    assert all(cached > 150 for _, cached in plenty[4:])


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_one_that_does_not_fit_the_device_is_read_from_the_host(model: str, request: pytest.FixtureRequest) -> None:
    """A conversation of twice the device's frames: half of it is cold at every step, and no answer changes."""
    path: Path = request.getfixturevalue(model)
    settings = {"max_seq_len": 2048, "page_size": 32}
    prompts = [tokens_of(1, 900), tokens_of(1, 700) + tokens_of(2, 300)]  # the second goes back into cold pages
    with opened(path, **settings) as service:
        plenty = [answer(service, prompts[0], 40)]
        kv = service.stats.kv
        assert kv is not None and not kv.spill.cold
        plenty.append(answer(service, prompts[1], 40))
        frame_bytes = kv.device.n_bytes // kv.device.created
    few = kv.buffer_bytes + frame_bytes * (kv.device.used // 2)
    with opened(path, gpu_memory=few, **settings) as service:
        assert [answer(service, p, 40) for p in prompts] == plenty
        kv = service.stats.kv
        assert kv is not None and kv.spill.cold >= 8
        assert kv.device.n_bytes + kv.buffer_bytes <= few
    with opened(path, gpu_memory=few, spill="off", **settings) as service, pytest.raises(ContextLengthError):
        answer(service, prompts[0])


def test_more_at_once_than_there_is_memory_for(tiny_hybrid: Path) -> None:
    """Twelve in four slots, over frames for two: some pause, some wait, and all end as they should."""
    settings = {"max_num_seqs": 4, "max_seq_len": 1024, "page_size": 32}
    with opened(tiny_hybrid, **settings) as service:
        answer(service, tokens_of(0, 300), 40)
        kv = service.stats.kv
        assert kv is not None
    few = kv.buffer_bytes + 2 * kv.device.n_bytes
    with opened(tiny_hybrid, gpu_memory=few, **settings) as service:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        requests = [
            GenerationRequest(prompt=tuple(tokens_of(i, 300)), sampling=sampling, max_tokens=40) for i in range(12)
        ]
        ends = [list(stream)[-1] for stream in [service.submit(r) for r in requests]]
        assert {e.reason for e in ends} == {FinishReason.LENGTH}  # type: ignore[union-attr]
        kv = service.stats.kv
        assert kv is not None and kv.evictions
        assert kv.device.n_bytes + kv.buffer_bytes <= few


def test_a_window_of_262144_tokens_in_64_mib(tiny_dense: Path) -> None:
    """It opens and answers; only what really needs more is refused, with the number that fits."""
    with opened(tiny_dense, max_seq_len=262_144, gpu_memory=64 * MIB, page_size=64) as service:
        fits = service.limits.max_seq_len
        assert 2048 <= fits < 64 * MIB // 16_384
        tokens, _, reason = answer(service, tokens_of(1, fits - 20), n=100)
        assert (len(tokens), reason) == (20, FinishReason.CONTEXT)
        with pytest.raises(ContextLengthError, match=f"{fits:,}") as e:
            service.submit(GenerationRequest(prompt=tuple(tokens_of(2, fits))))
        assert "an answer needs room too" in e.value.hint and "gpu_memory" in e.value.hint
        kv = service.stats.kv
        assert kv is not None
        assert kv.device.n_bytes + kv.buffer_bytes <= 64 * MIB


def test_a_budget_below_the_buffers_is_refused(tiny_dense: Path) -> None:
    with pytest.raises(NotEnoughMemoryError, match="no room for a page"):
        opened(tiny_dense, max_seq_len=4096, gpu_memory=MIB)


def test_a_page_is_never_larger_than_a_conversation(smollm2: Path) -> None:
    """However many tokens are asked for: 10^11 of them made no page at all."""
    for page_size in (600, 10**11):
        with opened(smollm2, max_seq_len=400, page_size=page_size) as service:
            answer(service, tokens_of(1, 40), 4)
            kv = service.stats.kv
            assert kv is not None
            assert (kv.tokens_per_page, kv.device.created) == (512, 1)  # llama.cpp rounds a window up to 256


def test_a_page_that_does_not_fit_is_named_with_its_size(smollm2: Path) -> None:
    with pytest.raises(NotEnoughMemoryError) as e:
        opened(smollm2, max_seq_len=8192, page_size=5000, gpu_memory=64 * MIB)
    assert e.value.message.startswith("page_size is 5,000, and one page of 5,00")
    assert "takes 110 MiB" in e.value.message and "lower page_size" in e.value.hint


def test_without_pages_the_cache_keeps_to_gpu_memory(smollm2: Path, tiny_hybrid: Path) -> None:
    with opened(smollm2, paging="off", gpu_memory=32 * MIB) as service:
        assert service.limits.max_seq_len == 1280  # of 22.5 KiB each
    with opened(smollm2, paging="off", gpu_memory=32 * MIB, max_num_seqs=2, kv_type_k="q8_0") as service:
        assert service.limits.max_seq_len == 768  # of 17.2 KiB
    with opened(smollm2, paging="off", gpu_memory=32 * MIB, max_seq_len=1280) as service:
        assert len(answer(service, tokens_of(1, 40), 4)[0]) == 4
    with pytest.raises(NotEnoughMemoryError, match=r"1,281 tokens takes 33\.8 MiB") as e:
        opened(smollm2, paging="off", gpu_memory=32 * MIB, max_seq_len=1281)
    assert "to 1280 or less, raise gpu_memory" in e.value.hint
    with pytest.raises(NotEnoughMemoryError, match=r"256 tokens takes .* fit the 1\.0 MiB"):
        opened(smollm2, paging="off", gpu_memory=MIB)
    with opened(tiny_hybrid, paging="off", gpu_memory=64 * MIB, max_seq_len=512) as service:
        assert service.limits.max_seq_len == 512
