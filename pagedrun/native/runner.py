"""The engine's `Runner` over a real model: one llama.cpp context and one sampler per slot."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from pagedrun.errors import EngineError, PagedrunError
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.frames import NativeFrames
from pagedrun.native.library import give_back_heap
from pagedrun.native.model import NativeModel
from pagedrun.native.sampler import Sampler
from pagedrun.request import GenerationRequest, TokenLogprob
from pagedrun.step import RunnerLimits, Sampled, Slot, State, StepPlan, StepResult, Vocab

log = logging.getLogger(__name__)

# A sampler that walks the whole vocabulary (a grammar, DRY) takes up to 0.5 ms for 151,936 tokens. Below this many
# candidates in a step handing the samplers to threads costs more than it saves.
_PARALLEL_CANDIDATES = 1 << 19


class NativeRunner:
    """See `pagedrun.step.Runner`. Owns the context and the model."""

    def __init__(
        self,
        model: NativeModel,
        context: NativeContext,
        door: Door,
        limits: RunnerLimits,
        *,
        can_rewind: bool,
        frames: NativeFrames | None = None,
    ) -> None:
        self.limits = limits
        self.can_rewind = can_rewind
        self._frames = frames
        self.vocab: Vocab = model.vocab
        self._model = model
        self._context = context
        self._door = door
        self._samplers: dict[Slot, Sampler] = {}
        self._logprobs: dict[Slot, int] = {}
        self._pool = ThreadPoolExecutor(min(limits.max_num_seqs, os.cpu_count() or 1), "pagedrun-sampler")

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
        if length > 0 and self.can_rewind and self._context.forget(slot, length):
            return length
        self._context.forget(slot)
        return 0

    def snapshot(self, slot: Slot) -> State:
        """The recurrent state, and the cache of sliding windows."""
        return self._context.save(slot)

    def restore(self, slot: Slot, snapshot: State, length: int) -> bool:
        """Put it back; the rows of a paged KV cache are there, and only their positions have to be said."""
        self._context.forget(slot)
        if self._frames is None or not (self.can_rewind or self._context.load(slot, snapshot)):
            self._context.forget(slot)
            return False
        try:
            self._frames.bind(slot, length)
        except EngineError as e:
            log.warning("a conversation is computed again: %s", e)
            self._context.forget(slot)
            return False
        return True

    def run(self, plan: StepPlan) -> StepResult:
        """Compute and sample one step."""
        outputs = self._context.batch.fill(plan)
        began = time.perf_counter()
        self._context.decode()
        decoded = time.perf_counter()
        results = self._sample_all(outputs)
        sampled = {slot: r for slot, r in results.items() if isinstance(r, Sampled)}
        failed = {slot: r for slot, r in results.items() if not isinstance(r, Sampled)}
        return StepResult(sampled, failed, decoded - began, time.perf_counter() - decoded)

    def shutdown(self) -> None:
        """Free samplers, context and model, in that order."""
        self._pool.shutdown()
        for slot in list(self._samplers):
            self.close(slot)
        self._context.close()
        self._model.close()
        give_back_heap()

    def _sample_all(self, outputs: dict[Slot, int]) -> dict[Slot, Sampled | PagedrunError]:
        """A token for each output; side by side when there is enough to do to be worth the threads."""
        if len(outputs) < 2 or len(outputs) * self.vocab.n_tokens < _PARALLEL_CANDIDATES:
            return {slot: self._sample(slot, index) for slot, index in outputs.items()}
        # llama.cpp puts the outputs in order when the first is read, which must not happen in several threads.
        self._context.logits(next(iter(outputs.values())))
        return dict(zip(outputs, self._pool.map(self._sample, outputs.keys(), outputs.values()), strict=True))

    def _sample(self, slot: Slot, index: int) -> Sampled | PagedrunError:
        try:
            token = self._samplers[slot].sample(self._context.pointer, index)
        except PagedrunError as e:
            return e
        return Sampled(token, self._logprob(slot, index, token))

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
