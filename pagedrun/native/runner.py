"""The engine's `Runner` over a real model: one llama.cpp context and one sampler per slot."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from pagedrun.errors import PagedrunError
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.model import NativeModel
from pagedrun.native.sampler import Sampler
from pagedrun.request import GenerationRequest, TokenLogprob
from pagedrun.step import RunnerLimits, Sampled, Slot, StepPlan, StepResult, Vocab


class NativeRunner:
    """See `pagedrun.step.Runner`. Owns the context and the model."""

    def __init__(
        self, model: NativeModel, context: NativeContext, door: Door, limits: RunnerLimits, *, can_rewind: bool
    ) -> None:
        self.limits = limits
        self.vocab: Vocab = model.vocab
        self._model = model
        self._context = context
        self._door = door
        self._can_rewind = can_rewind
        self._samplers: dict[Slot, Sampler] = {}
        self._logprobs: dict[Slot, int] = {}

    def open(self, slot: Slot, request: GenerationRequest) -> None:
        """Make the request's sampler and show it the prompt, which the penalties look back on."""
        sampler = Sampler(self._door, self._model.pointer, request, request.sampling)
        sampler.accept_prompt(request.prompt)
        self._samplers[slot] = sampler
        if request.logprobs is not None:
            self._logprobs[slot] = request.logprobs

    def close(self, slot: Slot) -> None:
        """Drop the slot's sampler."""
        self._samplers.pop(slot).close()
        self._logprobs.pop(slot, None)

    def trim(self, slot: Slot, length: int) -> int:
        """Forget positions from `length` on; returns how many are kept."""
        present = self._context.length(slot)
        if length >= present:
            return present
        if length > 0 and self._can_rewind and self._context.forget(slot, length):
            return length
        self._context.forget(slot)
        return 0

    def run(self, plan: StepPlan) -> StepResult:
        """Compute and sample one step."""
        outputs = self._context.batch.fill(plan)
        began = time.perf_counter()
        self._context.decode()
        decoded = time.perf_counter()
        sampled: dict[Slot, Sampled] = {}
        failed: dict[Slot, PagedrunError] = {}
        for slot, index in outputs.items():
            try:
                token = self._samplers[slot].sample(self._context.pointer, index)
                sampled[slot] = Sampled(token, self._logprob(slot, index, token))
            except PagedrunError as e:
                failed[slot] = e
        return StepResult(sampled, failed, decoded - began, time.perf_counter() - decoded)

    def shutdown(self) -> None:
        """Free samplers, context and model, in that order."""
        for slot in list(self._samplers):
            self.close(slot)
        self._context.close()
        self._model.close()

    def _logprob(self, slot: Slot, index: int, token: int) -> TokenLogprob | None:
        count = self._logprobs.get(slot)
        return None if count is None else token_logprob(self._context.logits(index), token, count)


def token_logprob(logits: npt.NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """The token's log probability and the `count` most likely ones, from raw logits of shape (n_vocab,)."""
    wide = logits.astype(np.float64)
    highest = wide.max()
    logprobs = wide - (highest + np.log(np.exp(wide - highest).sum()))
    top = np.argpartition(logprobs, -count)[-count:] if count else np.empty(0, np.int64)
    top = top[np.lexsort((top, -logprobs[top]))]
    return TokenLogprob(token, float(logprobs[token]), tuple((int(t), float(logprobs[t])) for t in top))
