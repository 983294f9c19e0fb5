"""The engine: plan, run, commit, on one thread that owns the model's context.

Other threads talk to it through `Engine.inbox` only; answers leave through each request's sink, a callable
that takes `Event`s and must not block. A request that fails gets its error as `Finished`; the engine and
the other requests go on.
"""

from __future__ import annotations

import errno
import functools
import logging
import math
import os
import queue
import statistics
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pagedrun.errors import EngineError, PagedrunError
from pagedrun.request import Event, Finished, FinishReason, RequestId, Timings, Usage
from pagedrun.scheduling import Scheduler, Sequence
from pagedrun.slots import PlainSlots, Slots
from pagedrun.step import Runner, Sampled, StepPlan, StepResult, Vocab
from pagedrun.text import TextAssembler

if TYPE_CHECKING:
    from pagedrun.durable import Keeper
    from pagedrun.kv import KvStats, SpillStats

log = logging.getLogger(__name__)

Sink = Callable[[Event], None]

_LOOK_S = 3600.0  # a wait that has no end is made of such
_UNDER_WAY_S = 5.0  # for a write that was given up, to be gone


@dataclass(frozen=True, slots=True)
class Submit:
    """Start working on a sequence."""

    sequence: Sequence
    sink: Sink


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working on a request; unknown ids are ignored (it may just have finished)."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel everything and leave the loop. Conversations are saved for so many seconds; a later one may give less."""

    saving_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Call:
    """Do something between two steps. It must not fail."""

    work: Callable[[], None]


Command = Submit | Cancel | Shutdown | Call


@dataclass(slots=True)
class EngineStats:
    """Totals since the start, in steps, tokens and seconds. Overhead is step time outside native code.

    max_gap_s: the longest that any answer waited for its next token. prefill_chunk: tokens of prompts that the next
    step may read beside answers. kv: the pages of the KV cache when a request last ended, or somebody had them counted,
    and of its own those that were cold then; None when it has no pages.
    """

    steps: int = 0
    tokens_computed: int = 0
    tokens_sampled: int = 0
    step_s: float = 0.0
    native_s: float = 0.0
    max_gap_s: float = 0.0
    prefill_chunk: int = 0
    kv: KvStats | None = None

    @property
    def overhead_s(self) -> float:
        """Seconds spent outside llama_decode and the samplers."""
        return self.step_s - self.native_s


@dataclass(slots=True)
class _Answer:
    """An answer in the making: where its text goes and when things happened (seconds, monotonic clock).

    shown: special tokens that appear as text, because whoever parses the answer needs them. gaps: seconds between its
    tokens.
    """

    sequence: Sequence
    sink: Sink
    text: TextAssembler
    shown: frozenset[int]
    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("d"))

    def chosen(self, now: float) -> float:
        """A token was; answers how long the answer waited for it."""
        gap = now - self.last_token if self.first_token else 0.0
        if self.first_token:
            self.gaps.append(gap)
        else:
            self.first_token = now
        self.last_token = now
        return gap

    def timings(self, now: float) -> Timings:
        admitted = self.admitted or now
        first = self.first_token or now
        gaps = (statistics.median(self.gaps), max(self.gaps)) if self.gaps else ()
        return Timings(admitted - self.submitted, first - admitted, now - first, *gaps)


@dataclass(slots=True)
class Engine:
    """Runs requests over a `Runner`. `run_forever` is the engine thread; `step` is one turn of it.

    slots: KV memory; None: the runner's own, without pages. prefill_chunk, max_stall: see Scheduler. keeper: of
    conversations that outlive the process.
    """

    runner: Runner
    slots: Slots | None = None
    keeper: Keeper | None = None
    prefill_chunk: int = 256
    max_stall: float = 0.0
    inbox: queue.SimpleQueue[Command] = field(default_factory=queue.SimpleQueue)
    stats: EngineStats = field(default_factory=EngineStats)
    _scheduler: Scheduler = field(init=False)
    _slots: Slots = field(init=False)
    _answers: dict[RequestId, _Answer] = field(init=False, default_factory=dict)
    _running: bool = field(init=False, default=True)
    _save_until: float = field(init=False, default=math.inf)
    _refusal: str = field(init=False, default="")  # of memory, when an answer last ended without

    def __post_init__(self) -> None:
        self._slots = self.slots or PlainSlots(self.runner)
        self._scheduler = Scheduler(
            self.runner, self._slots, prefill_chunk=self.prefill_chunk, max_stall=self.max_stall
        )

    @property
    def max_tokens(self) -> int:
        """How long a conversation can be: prompt and answer together."""
        return self._slots.max_tokens

    def run_forever(self) -> None:
        """Serve until `Shutdown`, then free the model. Whatever goes wrong in a step ends that step's requests only."""
        try:
            while self._take_commands():
                try:
                    self.step()
                except Exception as e:
                    log.exception("engine step failed")
                    self._fail_running(EngineError(f"the engine failed: {e}", hint="this is a bug; -v shows more"))
        finally:
            self._keep_the_rest()
            self._refuse_the_rest()
            self.runner.shutdown()

    def measure(self) -> None:
        """Count the pages as they are now. On the engine's thread."""
        self.stats.kv = self._slots.stats()

    def step(self) -> None:
        """Plan, run, commit."""
        began = time.perf_counter()
        self._admit()
        plan = self._scheduler.plan()
        self._end_exhausted()
        if plan is None:
            return
        try:
            self._slots.ready()
            result = self.runner.run(plan)
        except EngineError as e:
            self._fail_running(e, plan)
            return
        self._commit(plan, result)
        self._scheduler.took(plan, time.perf_counter() - began)
        self.stats.prefill_chunk = self._scheduler.chunks.size
        self.stats.steps += 1
        self.stats.tokens_computed += plan.n_tokens
        self.stats.tokens_sampled += len(result.sampled)
        self.stats.native_s += result.decode_s + result.sample_s
        if self.keeper is not None:
            self.keeper.speeds.computed(plan.n_tokens, result.decode_s)
        self.stats.step_s += time.perf_counter() - began

    def _take_commands(self) -> bool:
        """Carry out what other threads asked for; waits when there is nothing else to do."""
        while self._running:
            try:
                command = self.inbox.get(block=self._scheduler.idle)
            except queue.Empty:
                break
            self._carry_out(command)
        return self._running

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Submit):
            sequence = command.sequence
            text = TextAssembler(sequence.request.stop)
            shown = _single_tokens(self.runner.vocab, sequence.request.preserved_tokens)
            self._answers[sequence.id] = _Answer(sequence, command.sink, text, shown, time.perf_counter())
            add, prompt = functools.partial(self._scheduler.add, sequence), sequence.request.prompt
            if self.keeper is None or not self.keeper.awaits(sequence.id, prompt, add, lambda: self._coming(prompt)):
                add()
        elif isinstance(command, Call):
            self._call(command)
        elif isinstance(command, Cancel):
            if command.id in self._answers:
                self._finish(self._answers[command.id], FinishReason.CANCELLED)
        else:
            for answer in list(self._answers.values()):
                self._finish(answer, FinishReason.CANCELLED)
            self._running = False
            self._save_until = min(self._save_until, time.monotonic() + command.saving_s)

    def _coming(self, prompt: tuple[int, ...]) -> int:
        """How many tokens of a prompt those that run have, or are going to have."""
        trunk = self._slots.trunk(list(prompt), {slot: s.tokens for slot, s in self._scheduler.running.items()})
        return 0 if trunk is None else trunk.n

    @staticmethod
    def _call(command: Call) -> None:
        try:
            command.work()
        except Exception:
            log.exception("what was to be done between two steps failed")

    def _keep_the_rest(self) -> None:
        """Save what is to outlive the process, in the time that there is."""
        if self.keeper is None:
            return
        self.keeper.close()
        refused = []
        gave_up = 0.0
        while self.keeper.busy or not self.inbox.empty():  # what was asked for before the end is done
            now = time.monotonic()
            if now >= self._save_until and not gave_up:
                self.keeper.give_up()
                gave_up = now
                continue
            until = self._save_until if not gave_up else gave_up + _UNDER_WAY_S
            if now >= until and self.inbox.empty():
                log.warning("a conversation is not saved: the disk does not answer")
                break
            try:
                command = self.inbox.get(timeout=min(max(until - now, 0.0), _LOOK_S))
            except queue.Empty:
                continue
            if isinstance(command, Call):
                self._call(command)
            elif isinstance(command, Shutdown):
                self._save_until = min(self._save_until, time.monotonic() + command.saving_s)
            else:
                refused.append(command)
        for command in refused:
            self.inbox.put(command)

    def _refuse_the_rest(self) -> None:
        while not self.inbox.empty():
            command = self.inbox.get()
            if isinstance(command, Submit):
                usage = Usage(command.sequence.n_prompt, 0)
                command.sink(Finished(FinishReason.CANCELLED, usage, Timings(0.0, 0.0, 0.0)))

    def _admit(self) -> None:
        while True:
            try:
                sequence = self._scheduler.admit()
            except PagedrunError as e:
                assert self._scheduler.refused is not None  # it is what is raised for
                self._end(self._answers[self._scheduler.refused.id], FinishReason.ERROR, error=e)
                continue
            if sequence is None:
                return
            self._answers[sequence.id].admitted = time.perf_counter()

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        sequences = [self._scheduler.running[chunk.slot] for chunk in plan.chunks]
        self._scheduler.commit(plan)
        for chunk, sequence in zip(plan.chunks, sequences, strict=True):
            answer = self._answers[sequence.id]
            if error := result.failed.get(chunk.slot):
                self._finish(answer, FinishReason.ERROR, error=error)
            elif sampled := result.sampled.get(chunk.slot):
                self._append(answer, sampled)

    def _append(self, answer: _Answer, sampled: Sampled) -> None:
        """Add one sampled token to an answer and end it if that was the last."""
        self.stats.max_gap_s = max(self.stats.max_gap_s, answer.chosen(time.perf_counter()))
        sequence, request = answer.sequence, answer.sequence.request
        vocab = self.runner.vocab
        sequence.tokens.append(sampled.token)
        if vocab.is_eog(sampled.token):
            self._finish(answer, FinishReason.STOP)
            return
        piece = vocab.piece(sampled.token, special=sampled.token in answer.shown)
        delta = answer.text.push(sampled.token, piece, sampled.logprob)
        if delta is not None:
            answer.sink(delta)
        if answer.text.stopped is not None:
            self._finish(answer, FinishReason.STOP)
        elif request.max_tokens is not None and sequence.n_generated >= request.max_tokens:
            self._finish(answer, FinishReason.LENGTH)
        elif len(sequence.tokens) >= self.max_tokens:  # one more could be chosen, but nothing could follow it
            self._finish(answer, FinishReason.CONTEXT)

    def _finish(self, answer: _Answer, reason: FinishReason, *, error: PagedrunError | None = None) -> None:
        spilled = self._slots.spilled()  # what rests has no cold pages
        if self.keeper is None or not self.keeper.forget(answer.sequence.id):
            self._scheduler.finish(answer.sequence, keep=error is None)
        self._end(answer, reason, error=error, spilled=spilled)

    def _end(
        self,
        answer: _Answer,
        reason: FinishReason,
        *,
        error: PagedrunError | None = None,
        spilled: SpillStats | None = None,
    ) -> None:
        sequence = answer.sequence
        del self._answers[sequence.id]
        if error is None and (rest := answer.text.finish()) is not None:
            answer.sink(rest)
        kv = self._slots.stats()
        self.stats.kv = replace(kv, spill=spilled) if kv and spilled else kv
        usage = Usage(sequence.n_prompt, sequence.n_generated, sequence.cached)
        answer.sink(Finished(reason, usage, answer.timings(time.perf_counter()), error, answer.text.stopped))

    def _end_exhausted(self) -> None:
        """End what has no memory to go on, as if its context were full; what has said nothing yet, with the reason."""
        while self._scheduler.exhausted:
            answer = self._answers[self._scheduler.exhausted.pop().id]
            refusal = self._slots.refusal()
            if refusal and not answer.sequence.n_generated:
                self._finish(answer, FinishReason.ERROR, error=_no_page(refusal))
                continue
            if refusal and refusal != self._refusal:
                log.warning("an answer ends early, as no page can be had: %s", refusal)
            self._refusal = refusal
            self._finish(answer, FinishReason.CONTEXT)

    def _fail_running(self, error: PagedrunError, plan: StepPlan | None = None) -> None:
        """End the sequences of a failed step (all running ones without a plan) and drop what they computed."""
        slots = [chunk.slot for chunk in plan.chunks] if plan else list(self._scheduler.running)
        for slot in slots:
            self._finish(self._answers[self._scheduler.running[slot].id], FinishReason.ERROR, error=error)


def _no_page(refusal: str) -> EngineError:
    limited = os.strerror(errno.EFBIG) in refusal
    hint = "pages are files in memory: raise ulimit -f" if limited else "free some memory, or lower gpu_memory"
    return EngineError(f"the system gives no memory for a page: {refusal}", hint=hint)


def _single_tokens(vocab: Vocab, texts: tuple[str, ...]) -> frozenset[int]:
    """The ids of those texts that are one token of the vocabulary."""
    ids = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(i[0] for i in ids if len(i) == 1)


def start(engine: Engine) -> threading.Thread:
    """Run an engine on a thread of its own. It is a daemon: an exiting program does not wait for an answer."""
    thread = threading.Thread(target=engine.run_forever, name="pagedrun-engine", daemon=True)
    thread.start()
    return thread
