"""A runner without a model, for everything that is policy: it checks each plan as strictly as llama.cpp would."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pagedrun.errors import EngineError, PagedrunError
from pagedrun.request import GenerationRequest, TokenLogprob
from pagedrun.step import Chunk, RunnerLimits, Sampled, Slot, StepPlan, StepResult

EOG = 256
TAG = 257  # a special token whose text is "<tag>"
N_VOCAB = 258


class FakeVocab:
    """One token per byte, an end token and a special one."""

    n_tokens = N_VOCAB

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token >= EOG:
            return {EOG: b"<end>", TAG: b"<tag>"}[token] if special else b""
        return bytes([token])

    def is_eog(self, token: int) -> bool:
        return token == EOG

    def is_control(self, token: int) -> bool:
        return token >= EOG

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if parse_special and text == "<tag>":
            return [TAG]
        return list(text.encode())


class FakeRunner:
    """Keeps the tokens of each slot as its "KV cache" and answers by a function of them.

    `answer` gets all tokens of the slot and returns the next one; by default the prompt is echoed, then EOG.
    """

    def __init__(
        self,
        limits: RunnerLimits | None = None,
        answer: Callable[[list[int], int], int] | None = None,
        *,
        can_rewind: bool = True,
    ) -> None:
        self.limits = limits or RunnerLimits(max_num_seqs=4, max_seq_len=256, max_batch_tokens=64)
        self.vocab = FakeVocab()
        self.kv: dict[Slot, list[int]] = {Slot(i): [] for i in range(self.limits.max_num_seqs)}
        self.requests: dict[Slot, GenerationRequest] = {}
        self.plans: list[StepPlan] = []
        self.fail_open: PagedrunError | None = None
        self.fail_run: Exception | None = None
        self.fail_sample: dict[Slot, PagedrunError] = {}
        self.gate: threading.Semaphore | None = None  # when set, each step waits for one release
        self.closed = False
        self._answer = answer or echo
        self.can_rewind = can_rewind

    def open(self, slot: Slot, request: GenerationRequest) -> None:
        assert slot not in self.requests
        if self.fail_open is not None:
            error, self.fail_open = self.fail_open, None
            raise error
        self.requests[slot] = request

    def close(self, slot: Slot) -> None:
        del self.requests[slot]

    def trim(self, slot: Slot, length: int) -> int:
        present = len(self.kv[slot])
        kept = present if length >= present else (length if self.can_rewind else 0)
        del self.kv[slot][kept:]
        return kept

    def snapshot(self, slot: Slot) -> bytes:
        return bytes(len(self.kv[slot])) if not self.can_rewind else b""

    def restore(self, slot: Slot, snapshot: bytes, length: int) -> bool:
        raise NotImplementedError("a fake without pages has no snapshots to restore")

    def run(self, plan: StepPlan) -> StepResult:
        if self.gate is not None:
            self.gate.acquire()
        if self.fail_run is not None:
            error, self.fail_run = self.fail_run, None
            raise error
        self._check(plan)
        self.plans.append(plan)
        sampled, failed = {}, {}
        for chunk in plan.chunks:
            tokens = self.compute(chunk)
            if not chunk.sample:
                continue
            if chunk.slot in self.fail_sample:
                failed[chunk.slot] = self.fail_sample.pop(chunk.slot)
                continue
            request = self.requests[chunk.slot]
            token = self._answer(tokens, len(request.prompt))
            logprob = None if request.logprobs is None else TokenLogprob(token, -0.5)
            sampled[chunk.slot] = Sampled(token, logprob)
        return StepResult(sampled, failed)

    def compute(self, chunk: Chunk) -> list[int]:
        """Write a chunk to the slot; all that it holds then, as the model would see it."""
        self.kv[chunk.slot] += chunk.tokens
        return self.kv[chunk.slot]

    def shutdown(self) -> None:
        self.closed = True

    def _check(self, plan: StepPlan) -> None:
        slots = [chunk.slot for chunk in plan.chunks]
        assert slots == sorted(set(slots)), "slots must be ascending and unique"
        assert 0 < plan.n_tokens <= self.limits.max_batch_tokens
        for chunk in plan.chunks:
            assert chunk.tokens, "an empty chunk"
            assert chunk.slot in self.requests, "a chunk for a slot that is not open"
            assert chunk.start == len(self.kv[chunk.slot]), "positions must continue what is in the slot"
            assert chunk.start + len(chunk.tokens) <= self.limits.max_seq_len, "beyond the context"


def echo(tokens: list[int], n_prompt: int) -> int:
    """The prompt again, then the end."""
    done = len(tokens) - n_prompt
    return tokens[done] if done < n_prompt else EOG


def broken(message: str = "broken") -> EngineError:
    return EngineError(message)
