"""Far more conversations at once than there is memory for, and whether each is answered as it would be alone: what
scripts/overload.py does with 200, and the tests with some.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedrun.config import EngineConfig
from pagedrun.errors import PagedrunError
from pagedrun.kv import KvStats
from pagedrun.load import load_service
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel
from pagedrun.native.placement import Placement
from pagedrun.request import Finished, FinishReason, GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from pagedrun.step import Chunk, Slot, StepPlan

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
FLASH_ATTENTION_ON = 1
SMALL = 32  # tokens of a prompt that stock reads at once the second time; the answer comes one by one then


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """n conversations at once, where the device has pages for `fit` of average length and RAM for as many again.

    prompt: tokens, up to a half more or less; every fourth begins with the same half of it. answer: tokens.
    """

    n: int = 200
    fit: int = 20
    slots: int = 32
    prompt: int = 96
    answer: int = 16
    page_size: int = 16
    threads: int = 0
    seed: int = 1
    debug: bool = False

    @property
    def longest(self) -> int:
        """Tokens that a conversation can come to."""
        return self.prompt + self.prompt // 2 + self.answer

    def prompts(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        """Pieces of a text, no two of them the same."""
        rng = random.Random(self.seed)

        def piece(n: int) -> tuple[int, ...]:
            at = rng.randrange(len(text) - n)
            return tuple(text[at : at + n])

        common = piece(self.prompt // 2)
        found: dict[tuple[int, ...], None] = {}
        while len(found) < self.n:
            start = common if len(found) % 4 == 0 else ()
            length = rng.randint(self.prompt - self.prompt // 2, self.prompt + self.prompt // 2)
            found[start + piece(max(length - len(start), 8))] = None
        return list(found)


def english(service: Service) -> list[int]:
    """Some text that every Python has."""
    text = "\n\n".join(topics[name] for name in sorted(topics) if len(topics[name]) > 2000)
    return service.vocab.tokenize(text[:200_000], add_special=False, parse_special=False)


@dataclass
class Run:
    """What came of a crowd. admitted, ended: numbers of requests, in that order. pauses: how often one had to."""

    prompts: list[tuple[int, ...]]
    answers: list[tuple[int, ...]] = field(default_factory=list)
    ends: list[Finished] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    pauses: int = 0
    budget: int = 0
    seconds: float = 0.0
    kv: KvStats | None = None

    @property
    def overtaken(self) -> int:
        """The most later ones that were admitted before an earlier one."""
        return _most_overtaken(self.admitted)

    @property
    def ended_after(self) -> int:
        """The most later ones that had ended when an earlier one did."""
        return _most_overtaken(self.ended)

    @property
    def failed(self) -> list[PagedrunError | FinishReason]:
        """How those ended that did not end as they should."""
        return [e.error or e.reason for e in self.ends if e.error or e.reason is not FinishReason.LENGTH]


def _most_overtaken(order: Sequence[int]) -> int:
    return max((sum(later > i for later in order[:at]) for at, i in enumerate(order)), default=0)


def overload(path: Path, crowd: Crowd) -> Run:
    """Ask for all of it at once, and wait for all answers."""
    settings: dict[str, Any] = {
        "gpu_layers": 0,
        "max_num_seqs": crowd.slots,
        "max_seq_len": -(-crowd.longest // 256) * 256,
        "max_batch_tokens": 128,
        "page_size": crowd.page_size,
        "threads": crowd.threads,
        "snapshot_interval": 64,
        "debug_kv": crowd.debug,
    }
    with load_service(path, EngineConfig(**settings)) as service:
        ask(service, tuple(range(100, 100 + crowd.prompt)), crowd.answer)
        kv = service.stats.kv
        assert kv is not None, "this needs pages"
        prompts = crowd.prompts(english(service))
    pages = crowd.fit * kv.device.n_bytes
    swap = pages + crowd.fit * 2 * kv.snapshot_bytes
    run = Run(prompts, budget=kv.buffer_bytes + pages)
    config = EngineConfig(**settings, gpu_memory=run.budget, swap_space=swap)
    with load_service(path, config) as service, watched(service, run):
        began = time.perf_counter()
        streams = [service.submit(_request(p, crowd.answer)) for p in run.prompts]
        for stream in streams:
            tokens: tuple[int, ...] = ()
            for event in stream:
                if isinstance(event, TextDelta):
                    tokens += event.tokens
                else:
                    run.ends.append(event)
            run.answers.append(tokens)
        run.seconds = time.perf_counter() - began
        run.kv = service.stats.kv
    return run


def ask(service: Service, prompt: tuple[int, ...], n: int) -> None:
    """One answer, which is of no interest."""
    for event in service.submit(_request(prompt, n)):
        if isinstance(event, Finished) and event.error is not None:
            raise event.error


def _request(prompt: tuple[int, ...], n: int) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=n)


@contextmanager
def watched(service: Service, run: Run) -> Iterator[None]:
    """Note who gets a slot, who gives it back, and who pauses. A request is known by its prompt."""
    runner: Any = service._engine.runner
    slots: Any = service._engine._slots
    number = {prompt: i for i, prompt in enumerate(run.prompts)}
    whose: dict[Slot, int] = {}
    opened, closed, pause = runner.open, runner.close, slots.pause

    def open_(slot: Slot, request: GenerationRequest) -> None:
        whose[slot] = number[request.prompt]
        run.admitted.append(whose[slot])
        opened(slot, request)

    def close(slot: Slot) -> None:
        run.ended.append(whose.pop(slot))
        closed(slot)

    def paused(slot: Slot) -> None:
        run.pauses += 1
        pause(slot)

    runner.open, runner.close, slots.pause = open_, close, paused
    yield


@dataclass(frozen=True)
class Verdict:
    """Answers against lone runs of stock llama.cpp, in logits.

    differ: the largest difference of any logit that stock shows between two ways to batch the same tokens. gap: the
    largest by which a chosen token's logit is below the likeliest's. others: tokens chosen that are not the likeliest
    of the lone run. swapped: share of the answers that are found to be wrong if each is taken for its neighbour's.
    """

    tokens: int
    differ: float
    gap: float
    others: int
    swapped: float

    @property
    def good(self) -> bool:
        """Whether every token is within twice that difference."""
        return self.gap <= 2 * self.differ


def judge(
    path: Path,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    threads: int = 0,
    *,
    every: int = 1,
) -> Verdict:
    """Teacher forcing: each answer is given to a context of llama.cpp's own, which has nothing else, in one batch; and
    each `every`-th once more in other batches, which takes longer.
    """
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    differ, gaps, swapped = 0.0, [], []
    with _alone(path, longest, threads) as context:
        others = [*answers[1:], answers[0]]
        for i, (prompt, answer, other) in enumerate(zip(prompts, answers, others, strict=True)):
            tokens = [*prompt, *answer]
            whole = _forced(context, tokens, len(prompt), [len(tokens)])
            if i % every == 0:
                sizes = [SMALL] * (len(prompt) // SMALL) + [max(len(prompt) % SMALL, 1)] + [1] * len(answer)
                differ = max(differ, float(np.abs(whole - _forced(context, tokens, len(prompt), sizes)).max()))
            gaps += _below_the_likeliest(whole, answer).tolist()
            swapped.append(float(_below_the_likeliest(whole, other).max()))
    found_out = float((np.array(swapped) > 2 * differ).mean())
    return Verdict(len(gaps), differ, max(gaps), sum(g > 0 for g in gaps), found_out)


def _below_the_likeliest(logits: npt.NDArray[np.float32], answer: Sequence[int]) -> npt.NDArray[np.float32]:
    """By how much each token's logit is."""
    n = min(len(logits), len(answer))
    below: npt.NDArray[np.float32] = logits[:n].max(axis=1) - logits[np.arange(n), answer[:n]]
    return below


@contextmanager
def _alone(path: Path, longest: int, threads: int) -> Iterator[NativeContext]:
    library = load()
    batch = -(-longest // 256) * 256
    config = EngineConfig(max_seq_len=batch, max_batch_tokens=batch, gpu_layers=0, threads=threads)
    placement = Placement(library.llama, Door(library.common), path, config)
    placement.context_params.flash_attn_type = FLASH_ATTENTION_ON
    placement.context_params.n_outputs_max = batch
    with (
        closing(NativeModel(library, path, placement.model_params)) as model,
        closing(NativeContext(model, placement.context_params)) as context,
    ):
        yield context


def _forced(
    context: NativeContext, tokens: Sequence[int], n_prompt: int, sizes: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Logits from which each token of the answer is chosen, shape (answer, vocabulary), in batches of these sizes."""
    context.forget(Slot(0))
    found, at, end = [], 0, len(tokens) - 1
    for size in sizes:
        n = min(size, end - at)
        if n <= 0:
            break
        context.batch.fill(StepPlan((Chunk(Slot(0), at, tuple(tokens[at : at + n]), sample=True),)))
        context.batch._logits[max(n_prompt - 1 - at, 0) : n] = 1
        context.decode()
        found += [context.logits(i).copy() for i in range(n) if at + i >= n_prompt - 1]
        at += n
    return np.array(found)
