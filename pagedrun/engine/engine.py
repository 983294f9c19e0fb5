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
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pagedrun.engine.answer import Answer
from pagedrun.engine.commands import Call, Cancel, Command, Inbox, Submit
from pagedrun.engine.ending import refuse_the_rest, save_the_rest
from pagedrun.engine.stats import EngineStats
from pagedrun.errors import EngineError, PagedrunError
from pagedrun.request import FinishReason, RequestId
from pagedrun.scheduling import Scheduler
from pagedrun.slots import PlainSlots, Slots
from pagedrun.step import Runner, StepPlan, StepResult

if TYPE_CHECKING:
    from pagedrun.durable import Keeper
    from pagedrun.kv import SpillStats

log = logging.getLogger(__name__)


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
    inbox: Inbox = field(default_factory=queue.SimpleQueue)
    stats: EngineStats = field(default_factory=EngineStats)
    _scheduler: Scheduler = field(init=False)
    _slots: Slots = field(init=False)
    _answers: dict[RequestId, Answer] = field(init=False, default_factory=dict)
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
            if self.keeper is not None:
                save_the_rest(self.keeper, self.inbox, self._save_until)
            refuse_the_rest(self.inbox)
            self.runner.shutdown()

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
        self._account(plan, result, began)

    def measure(self) -> None:
        """Count the pages as they are now. On the engine's thread."""
        self.stats.kv = self._slots.stats()

    # what others ask for

    def _take_commands(self) -> bool:
        """Carry out what other threads asked for; waits when there is nothing else to do. False after `Shutdown`."""
        while self._running:
            try:
                command = self.inbox.get(block=self._scheduler.idle)
            except queue.Empty:
                break
            self._carry_out(command)
        return self._running

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._begin(command)
        elif isinstance(command, Call):
            command.do()
        elif isinstance(command, Cancel):
            if command.id in self._answers:
                self._finish(self._answers[command.id], FinishReason.CANCELLED)
        else:
            for answer in list(self._answers.values()):
                self._finish(answer, FinishReason.CANCELLED)
            self._running = False
            self._save_until = min(self._save_until, time.monotonic() + command.saving_s)

    def _begin(self, asked: Submit) -> None:
        """Line a sequence up, if need be when its conversation is restored from disk."""
        sequence, prompt = asked.sequence, asked.sequence.request.prompt
        self._answers[sequence.id] = Answer.to(asked, self.runner.vocab, time.perf_counter())
        add = functools.partial(self._scheduler.add, sequence)
        if self.keeper is None or not self.keeper.awaits(sequence.id, prompt, add, lambda: self._coming(prompt)):
            add()

    def _coming(self, prompt: tuple[int, ...]) -> int:
        """How many tokens of a prompt those that run have, or are going to have."""
        trunk = self._slots.trunk(list(prompt), {slot: s.tokens for slot, s in self._scheduler.running.items()})
        return 0 if trunk is None else trunk.n

    # a step

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
        """Give every answer of the step its token, and end those that have their last one, or that failed."""
        sequences = [self._scheduler.running[chunk.slot] for chunk in plan.chunks]
        self._scheduler.commit(plan)
        for chunk, sequence in zip(plan.chunks, sequences, strict=True):
            answer = self._answers[sequence.id]
            if error := result.failed.get(chunk.slot):
                self._finish(answer, FinishReason.ERROR, error=error)
            elif sampled := result.sampled.get(chunk.slot):
                self.stats.max_gap_s = max(self.stats.max_gap_s, answer.chosen(time.perf_counter()))
                if reason := answer.add(sampled, self.max_tokens):
                    self._finish(answer, reason)

    def _account(self, plan: StepPlan, result: StepResult, began: float) -> None:
        self._scheduler.took(plan, time.perf_counter() - began)
        self.stats.prefill_chunk = self._scheduler.chunks.size
        if self.keeper is not None:
            self.keeper.speeds.computed(plan.n_tokens, result.decode_s)
        self.stats.stepped(plan, result, time.perf_counter() - began)

    # the end of an answer

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

    def _finish(self, answer: Answer, reason: FinishReason, *, error: PagedrunError | None = None) -> None:
        """End an answer that waits or runs; what it computed rests, unless it failed."""
        spilled = self._slots.spilled()  # what rests has no cold pages
        if self.keeper is None or not self.keeper.forget(answer.sequence.id):
            self._scheduler.finish(answer.sequence, keep=error is None)
        self._end(answer, reason, error=error, spilled=spilled)

    def _end(
        self,
        answer: Answer,
        reason: FinishReason,
        *,
        error: PagedrunError | None = None,
        spilled: SpillStats | None = None,
    ) -> None:
        """Say how an answer ended that nobody works on any more. spilled: while it ran."""
        del self._answers[answer.sequence.id]
        if error is None:
            answer.flush()
        kv = self._slots.stats()
        self.stats.kv = replace(kv, spill=spilled) if kv and spilled else kv
        answer.end(reason, time.perf_counter(), error)


def _no_page(refusal: str) -> EngineError:
    limited = os.strerror(errno.EFBIG) in refusal
    hint = "pages are files in memory: raise ulimit -f" if limited else "free some memory, or lower gpu_memory"
    return EngineError(f"the system gives no memory for a page: {refusal}", hint=hint)


def start(engine: Engine) -> threading.Thread:
    """Run an engine on a thread of its own. It is a daemon: an exiting program does not wait for an answer."""
    thread = threading.Thread(target=engine.run_forever, name="pagedrun-engine", daemon=True)
    thread.start()
    return thread
