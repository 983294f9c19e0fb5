"""Which tokens are computed next: waiting and running sequences -> StepPlan.

Every running sequence has tokens that are not computed yet, and each step computes some of them: one
for a sequence that is generating, a chunk for one whose prompt is still being read. There are no phases.

    waiting  --admit: a free slot-->  running  --finish-->  gone; its tokens stay cached in the slot

A slot is a llama.cpp sequence with its own stretch of KV cache. What a finished sequence computed stays
there, and the next sequence that begins with the same tokens continues from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pagedrun.request import GenerationRequest, RequestId
from pagedrun.step import Chunk, Runner, Slot, StepPlan


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being worked on.

    tokens: prompt and what was generated so far. computed: how many of them are in the KV cache.
    cached: how many of the prompt were there when it was admitted.
    """

    id: RequestId
    request: GenerationRequest
    tokens: list[int] = field(init=False)
    computed: int = 0
    cached: int = 0
    slot: Slot | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens."""
        return len(self.request.prompt)

    @property
    def n_generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.n_prompt

    @property
    def uncomputed(self) -> int:
        """How many tokens the next steps have to compute."""
        return len(self.tokens) - self.computed


class Scheduler:
    """First come, first served over a fixed number of slots. Not thread-safe: the engine thread owns it."""

    def __init__(self, runner: Runner, *, prefill_chunk: int) -> None:
        self._runner = runner
        self._limits = runner.limits
        self._prefill_chunk = min(prefill_chunk, runner.limits.max_batch_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Slot, Sequence] = {}
        # Free slots, least recently used first, with the tokens whose KV they still hold.
        self._free: dict[Slot, list[int]] = {Slot(i): [] for i in range(runner.limits.max_num_seqs)}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def admit(self) -> Sequence | None:
        """Give the next waiting sequence a slot, or None when nobody waits or no slot is free.

        Raises RequestError when the runner cannot serve it; it is no longer waiting then.
        """
        if not self.waiting or not self._free:
            return None
        sequence = self.waiting.popleft()
        slot, common = self._best_slot(sequence.tokens)
        self._runner.open(slot, sequence.request)
        del self._free[slot]
        # The last prompt token is always computed: its logits choose the first token of the answer.
        sequence.computed = sequence.cached = self._runner.trim(slot, min(common, sequence.n_prompt - 1))
        sequence.slot = slot
        self.running[slot] = sequence
        return sequence

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing is running.

        Generating sequences come first, one token each. Prompts share what is left of the step's tokens, oldest
        first; while someone is generating they get `prefill_chunk` tokens in all, so that running answers keep
        flowing.
        """
        budget = self._limits.max_batch_tokens
        generating = [s for s in self.running.values() if s.uncomputed == 1]
        share = {s.id: 1 for s in generating}
        room = min(budget - len(generating), self._prefill_chunk if generating else budget)
        for sequence in sorted(self.running.values(), key=lambda s: s.id):
            if sequence.id not in share and room > 0:
                share[sequence.id] = min(sequence.uncomputed, room)
                room -= share[sequence.id]
        chunks = tuple(
            _chunk(slot, sequence, share[sequence.id])
            for slot, sequence in sorted(self.running.items())
            if sequence.id in share
        )
        return StepPlan(chunks) if chunks else None

    def commit(self, plan: StepPlan) -> None:
        """Note that a plan was computed."""
        for chunk in plan.chunks:
            self.running[chunk.slot].computed += len(chunk.tokens)

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, waiting or running. `keep` leaves its KV in the slot for a follow-up."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        slot = sequence.slot
        del self.running[slot]
        sequence.slot = None
        self._runner.close(slot)
        kept = sequence.tokens[: sequence.computed] if keep else []
        if not keep:
            self._runner.trim(slot, 0)
        self._free[slot] = kept

    def _best_slot(self, prompt: list[int]) -> tuple[Slot, int]:
        """The free slot whose cached tokens share the longest beginning with the prompt; oldest of equals."""
        best, longest = next(iter(self._free)), 0
        for slot, cached in self._free.items():
            common = _common_prefix(cached, prompt)
            if common > longest:
                best, longest = slot, common
        return best, longest


def _chunk(slot: Slot, sequence: Sequence, count: int) -> Chunk:
    start = sequence.computed
    tokens = tuple(sequence.tokens[start : start + count])
    return Chunk(slot, start, tokens, sample=start + count == len(sequence.tokens))


def _common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the common beginning. Doubling slices: list comparison runs at C speed."""
    limit = min(len(a), len(b))
    low, size = 0, 64
    while low < limit:
        high = min(low + size, limit)
        if a[low:high] == b[low:high]:
            low, size = high, size * 2
        elif size > 1 and high - low > 1:
            size = (high - low) // 2
        else:
            break
    return low
