"""Which tokens are computed next: waiting and running sequences -> StepPlan.

Every running sequence has tokens that are not computed yet, and each step computes some of them: one
for a sequence that is generating, a chunk for one whose prompt is still being read. There are no phases.

    waiting  --admit: a free slot-->  running  --finish-->  gone; what it computed rests

A slot is a llama.cpp sequence. What a finished sequence computed rests, and a sequence that begins with the same tokens
continues from it, in whatever slot. Where memory runs short, what rests goes first, the oldest of it; then the sequence
that came last pauses until others are done; if its pages have nowhere to go, they are computed again then. Who is alone
and still does not fit spills: some of its pages are read from the host at every step. That comes last, because it
slows down every step of everybody who is awake, and pausing costs each page two copies, once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pagedrun.errors import ContextLengthError
from pagedrun.request import GenerationRequest, RequestId
from pagedrun.slots import Slots
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


EXPECTED = 2  # paused sequences whose pages may come ahead of their turn


class Scheduler:
    """First come, first served over a fixed number of slots. Not thread-safe: the engine thread owns it."""

    def __init__(self, runner: Runner, slots: Slots, *, prefill_chunk: int) -> None:
        self._runner = runner
        self._slots = slots
        self._limits = runner.limits
        self._prefill_chunk = min(prefill_chunk, runner.limits.max_batch_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Slot, Sequence] = {}
        self.paused: set[Slot] = set()
        #: Sequences that cannot go on: there is no memory for them even with nobody else there.
        self.exhausted: list[Sequence] = []
        # Free slots, least recently used first.
        self._free: dict[Slot, None] = {Slot(i): None for i in range(runner.limits.max_num_seqs)}

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
        if sequence.n_prompt > self._slots.max_tokens:
            raise ContextLengthError(sequence.n_prompt, self._slots.max_tokens, hint=NO_MEMORY)
        slot = self._slots.choose(self._free, sequence.tokens)
        self._runner.open(slot, sequence.request)
        del self._free[slot]
        # The last prompt token is always computed: its logits choose the first token of the answer.
        sequence.computed = sequence.cached = self._slots.resume(slot, sequence.tokens)
        sequence.slot = slot
        self.running[slot] = sequence
        if not self._slots.awake(slot):
            self.paused.add(slot)
        return sequence

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run.

        Generating sequences come first, one token each. Prompts share what is left of the step's tokens, oldest
        first; while someone is generating they get `prefill_chunk` tokens in all, so that running answers keep
        flowing.
        """
        self._wake()
        if self.paused:
            self._slots.expect(self._in_line()[:EXPECTED])
        share = {slot: n for slot, n in self._shares().items() if self._make_room(slot, n)}
        chunks = tuple(
            _chunk(slot, self.running[slot], share[slot])
            for slot in sorted(share)
            if slot not in self.paused  # for the room that an older one needed
        )
        return StepPlan(chunks) if chunks else None

    def _shares(self) -> dict[Slot, int]:
        """How many tokens each sequence may compute in the next step, oldest first."""
        awake = sorted((s for slot, s in self.running.items() if slot not in self.paused), key=lambda s: s.id)
        generating = [s for s in awake if s.uncomputed == 1]
        room = self._limits.max_batch_tokens - len(generating)
        if generating:
            room = min(room, self._prefill_chunk)
        shares: dict[Slot, int] = {}
        for sequence in awake:
            assert sequence.slot is not None  # it is running
            n = 1 if sequence.uncomputed == 1 else min(sequence.uncomputed, room, self._until_stop(sequence))
            if n > 0:
                shares[sequence.slot] = n
                room -= n if sequence.uncomputed > 1 else 0
        return shares

    def _until_stop(self, sequence: Sequence) -> int:
        """Tokens until the next place to come back to."""
        assert sequence.slot is not None  # it is running
        stop = self._slots.next_stop(sequence.slot, sequence.computed)
        return sequence.uncomputed if stop is None else stop - sequence.computed

    def _make_room(self, slot: Slot, n_tokens: int) -> bool:
        """Room in memory, for which others have to go: what rests, then who came last."""
        sequence = self.running[slot]
        if sequence.computed + n_tokens > self._slots.max_tokens:
            self.exhausted.append(sequence)
            return False
        while slot not in self.paused:
            if self._slots.room(slot, n_tokens):
                return True
            if self._slots.forget_one():
                continue
            awake = [s for s in self.running if s not in self.paused]
            if len(awake) > 1:
                youngest = max(awake, key=lambda s: self.running[s].id)
                self._slots.pause(youngest)
                self.paused.add(youngest)
            elif self._slots.room(slot, n_tokens, spill=True):
                return True
            elif not (self._slots.forget_one(all_of_it=True) or self._forget_paused(slot)):
                self.exhausted.append(sequence)
                return False
        return False

    def _wake(self) -> None:
        """Take up paused sequences again, oldest first, as long as there is room for what they have to compute."""
        for slot in self._in_line():
            alone = len(self.paused) == len(self.running)
            while not self._take_up(slot, whole=not alone):
                if not alone:
                    return
                if self._slots.forget_one():
                    continue
                if self._wake_up(slot, spill=True):
                    break
                if not (self._slots.forget_one(all_of_it=True) or self._forget_paused(slot)):
                    self.exhausted.append(self.running[slot])
                    return
            self.paused.remove(slot)

    def _take_up(self, slot: Slot, *, whole: bool) -> bool:
        """Wake one sequence. `whole`: only if it would not have to stop again for want of room."""
        if not self._wake_up(slot):
            return False
        if whole and not self._slots.room(slot, self.running[slot].uncomputed):
            self._slots.pause(slot)
            return False
        return True

    def _wake_up(self, slot: Slot, *, spill: bool = False) -> bool:
        if not self._slots.wake(slot, spill=spill):
            return False
        sequence = self.running[slot]
        sequence.computed = self._slots.held(slot, sequence.computed)
        return True

    def _in_line(self) -> list[Slot]:
        """Paused ones, the oldest first. Nobody else waits for memory: who has no slot finds none that rests."""
        return sorted(self.paused, key=lambda s: self.running[s].id)

    def _forget_paused(self, but: Slot) -> bool:
        """Where pages of paused sequences have nowhere to go: the one that came last is computed again later.

        False when none has anything.
        """
        full = [slot for slot in self.paused if slot != but and self.running[slot].computed]
        if not full:
            return False
        youngest = max(full, key=lambda s: self.running[s].id)
        self._slots.drop(youngest)
        self.running[youngest].computed = 0
        return True

    def commit(self, plan: StepPlan) -> None:
        """Note that a plan was computed."""
        for chunk in plan.chunks:
            sequence = self.running[chunk.slot]
            sequence.computed += len(chunk.tokens)
            self._slots.computed(chunk.slot, len(chunk.tokens))

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, waiting or running. `keep` leaves what it computed to others."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        slot = sequence.slot
        self.paused.discard(slot)
        self._slots.rest(slot, sequence.tokens[: sequence.computed], keep=keep)
        del self.running[slot]
        sequence.slot = None
        self._runner.close(slot)
        self._free[slot] = None


NO_MEMORY = "there is no memory for more; raise gpu_memory, or swap_space where pages may spill, or use --kv-type q8_0"


def _chunk(slot: Slot, sequence: Sequence, count: int) -> Chunk:
    start = sequence.computed
    tokens = tuple(sequence.tokens[start : start + count])
    return Chunk(slot, start, tokens, sample=start + count == len(sequence.tokens))
