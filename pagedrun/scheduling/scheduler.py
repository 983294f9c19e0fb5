"""Which tokens are computed next: waiting and running sequences -> StepPlan.

Every running sequence has tokens that are not computed yet, and each step computes some of them: one
for a sequence that is generating, a chunk for one whose prompt is still being read. There are no phases.

    waiting  --admit: a slot, and room-->  running  --finish-->  gone; what it computed rests

A slot is a llama.cpp sequence. What a finished sequence computed rests, and a sequence that begins with the same tokens
continues from it, in whatever slot; one that begins like a running one branches off from that.

Where memory runs short, what rests goes first, the oldest of it; then somebody pauses until others are done, at the
least cost; if its pages have nowhere to go, they are computed again then. Who is alone and still does not fit spills:
some of its pages are read from the host at every step. That comes last, because it slows down every step of everybody
who is awake, and pausing costs each page two copies, once.
"""

from __future__ import annotations

from pagedrun.errors import ContextLengthError
from pagedrun.scheduling.following import Following
from pagedrun.scheduling.line import Line
from pagedrun.scheduling.pausing import PATIENCE, Pausing
from pagedrun.scheduling.sequence import Sequence
from pagedrun.scheduling.stall import Chunks
from pagedrun.slots import Slots
from pagedrun.slots.protocol import Trunk
from pagedrun.step import Chunk, Runner, Slot, StepPlan

EXPECTED = 2  # paused or waiting sequences whose pages may come ahead of their turn
RETRY = 16  # steps after which a sequence that found no room is looked at again, when nothing has happened


class Scheduler:
    """By priority, and among equals first come, first served, over a fixed number of slots.

    Not thread-safe: the engine thread owns it. prefill_chunk: tokens of prompts in a step that computes answers too; 0:
    as many as let it end within `max_stall` seconds.
    """

    def __init__(self, runner: Runner, slots: Slots, *, prefill_chunk: int, max_stall: float = 0.0) -> None:
        self._runner = runner
        self._slots = slots
        self._limits = runner.limits
        n_seqs = runner.limits.max_num_seqs
        self.chunks = Chunks(prefill_chunk, runner.limits.max_batch_tokens, max_stall)
        self.waiting = Line(window=n_seqs + EXPECTED, patience=PATIENCE * n_seqs)
        self.running: dict[Slot, Sequence] = {}
        #: Whom `admit` last raised for.
        self.refused: Sequence | None = None
        #: Sequences that cannot go on: there is no memory for them even with nobody else there.
        self.exhausted: list[Sequence] = []
        self._pausing = Pausing(slots, self.running, self.exhausted, n_seqs)
        self.paused = self._pausing.paused
        # Free slots, least recently used first.
        self._free: dict[Slot, None] = {Slot(i): None for i in range(n_seqs)}
        self._following = Following(slots, self.running, self._pausing, self.chunks, n_seqs)
        self._turned_away = 0  # steps until who found no room is looked at again
        self._moves = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.add(sequence)
        if sequence is self.waiting.front()[0]:
            self._turned_away = 0

    def admit(self) -> Sequence | None:
        """Give the next waiting sequence a slot, or None when nobody waits, no slot is free, or memory is short.

        Who begins like one that is being read waits for it, and others may go first, as many as there are slots. Raises
        RequestError when the runner cannot serve it; it is `refused`, and no longer waiting then.
        """
        if not self.waiting or not self._free or self._turned_away:
            return None
        followers: list[Sequence] = []
        for sequence in self.waiting.front():
            if self._following.waits(sequence):
                followers.append(sequence)
                continue
            slot, trunk = self._look(sequence)
            if self._following.begins(sequence, trunk):
                followers.append(sequence)
                continue
            if not self._has_room(sequence, trunk):
                self._turned_away = RETRY
                return None
            self._start(sequence, slot, trunk, followers)
            return sequence
        return None

    def _look(self, sequence: Sequence) -> tuple[Slot, Trunk | None]:
        """Where it is served best, and which running one it begins like. Raises ContextLengthError."""
        if sequence.n_prompt > self._slots.max_tokens:
            self._refuse(sequence)
            raise ContextLengthError(sequence.n_prompt, self._slots.max_tokens, hint=NO_MEMORY)
        slot = self._slots.choose(self._free, sequence.tokens)
        return slot, self._slots.trunk(sequence.tokens, {slot: s.tokens for slot, s in self.running.items()})

    def _has_room(self, sequence: Sequence, trunk: Trunk | None) -> bool:
        """Whether its prompt fits beside those that are awake, and nobody who is paused has been overtaken enough."""
        if not self.running:
            return True
        coming = {s.slot: s.uncomputed for s in self._pausing.awake() if s.slot is not None}
        if not coming or not self._pausing.may_pass(sequence):
            return False
        more = max(
            min(sequence.left(self._slots.max_tokens) - 1, self._slots.stride), 0
        )  # the last one is not computed
        shared = trunk.there if trunk is not None and trunk.slot in coming else 0
        return self._slots.fits(sequence.n_prompt + more, coming, shared=shared)

    def _start(self, sequence: Sequence, slot: Slot, trunk: Trunk | None, followers: list[Sequence]) -> None:
        """Give it the slot. Raises RequestError."""
        try:
            self._runner.open(slot, sequence.request)
        except Exception:
            self._refuse(sequence)
            raise
        self.waiting.take(sequence, followers)
        self._pausing.passed_by(sequence)
        del self._free[slot]
        # The last prompt token is always computed: its logits choose the first token of the answer.
        if trunk is not None and trunk.there > self._slots.known(sequence.tokens):
            sequence.cached = self._slots.branch(slot, sequence.tokens, trunk)
        else:
            sequence.cached = self._slots.resume(slot, sequence.tokens)
        sequence.computed = sequence.cached
        sequence.slot = slot
        self.running[slot] = sequence
        if not self._slots.awake(slot):
            self.paused.add(slot)

    def _refuse(self, sequence: Sequence) -> None:
        self.refused = sequence
        self._leave_line(sequence)

    def _leave_line(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self._following.forget(sequence)
        self._turned_away = 0

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run.

        Generating sequences come first, one token each. Prompts share what is left of the step's tokens, in order;
        while someone is generating they get a chunk in all, so that running answers keep flowing.
        """
        self._pausing.wake()
        if self.paused:
            self._slots.expect(self._pausing.in_line()[:EXPECTED])
        elif self.waiting:
            self._slots.foresee([s.tokens for s in self.waiting.front()[:EXPECTED]])
        share = {slot: n for slot, n in self._shares().items() if self._pausing.make_room(slot, n)}
        self._turned_away = max(self._turned_away - 1, 0) if self._moves == self._pausing.moves else 0
        self._moves = self._pausing.moves
        chunks = tuple(
            _chunk(slot, self.running[slot], share[slot])
            for slot in sorted(share)
            if slot not in self.paused  # for the room that an older one needed
        )
        return StepPlan(chunks) if chunks else None

    def _shares(self) -> dict[Slot, int]:
        """How many tokens each sequence may compute in the next step, in order.

        A quarter of what prompts have is for the one that came first, whatever its priority.
        """
        awake = self._pausing.awake()
        reading = [s for s in awake if s.uncomputed > 1]
        room = self._limits.max_batch_tokens - (len(awake) - len(reading))
        if len(reading) < len(awake):
            room = min(room, self.chunks.size)
        shares = {s.slot: 1 for s in awake if s.uncomputed == 1 and s.slot is not None}
        first = min(reading, key=lambda s: s.turn, default=None)
        kept = 0 if first is None or first is reading[0] else min(self._until_stop(first), -(-room // 4))
        for sequence in reading:
            assert sequence.slot is not None  # it is running
            left = max(room, 0) if sequence is first else room - kept
            n = min(self._until_stop(sequence), left)
            if n > 0:
                shares[sequence.slot] = n
                room -= n
            if sequence is first:
                kept = 0
        return {s.slot: shares[s.slot] for s in awake if s.slot in shares}

    def _until_stop(self, sequence: Sequence) -> int:
        """Tokens until the next place to come back to, or to the end."""
        assert sequence.slot is not None  # it is running
        stop = self._slots.next_stop(sequence.slot, sequence.computed)
        return sequence.uncomputed if stop is None else min(stop - sequence.computed, sequence.uncomputed)

    def commit(self, plan: StepPlan) -> None:
        """Note that a plan was computed."""
        for chunk in plan.chunks:
            sequence = self.running[chunk.slot]
            sequence.computed += len(chunk.tokens)
            self._slots.computed(chunk.slot, len(chunk.tokens))

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Note how long a step took, from planning it until its tokens were out."""
        self.chunks.took(plan, seconds)

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, waiting or running. `keep` leaves what it computed to others."""
        if sequence.slot is None:
            self._leave_line(sequence)
            return
        slot = sequence.slot
        self.paused.discard(slot)
        self._slots.rest(slot, sequence.tokens[: sequence.computed], keep=keep)
        del self.running[slot]
        sequence.slot = None
        self._runner.close(slot)
        self._free[slot] = None
        self._turned_away = 0


NO_MEMORY = "there is no memory for more; raise gpu_memory, or swap_space where pages may spill, or use --kv-type q8_0"


def _chunk(slot: Slot, sequence: Sequence, count: int) -> Chunk:
    start = sequence.computed
    tokens = tuple(sequence.tokens[start : start + count])
    return Chunk(slot, start, tokens, sample=start + count == len(sequence.tokens))
