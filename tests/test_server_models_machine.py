"""Any order of requests, ends, departures, loads that fail and time that passes: memory is never exceeded, nothing is
freed in use, and every request ends with its model or an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedrun.engine import EngineStats
from pagedrun.errors import ModelFileError
from pagedrun.server.errors import ApiError
from pagedrun.server.gate import Gate
from pagedrun.server.models import Models
from tests.model_fakes import HOW, Clock

SIZES = {"small": 1, "medium": 2, "large": 3, "whole": 4}
CAPACITY = 4
KEEP_S = 1000.0
NAMES = strategies.sampled_from(sorted(SIZES))


class Stub:
    """A loaded model without an engine."""

    def __init__(self, name: str) -> None:
        self.name, self.users, self.closed = name, 0, False
        self.settings = replace(HOW, names=(name,))
        self.gate = Gate(4, 64)
        self.open_answers: set[Any] = set()
        self.metrics: Any = None
        self.service = SimpleNamespace(stats=EngineStats(), alive=True)

    @property
    def busy(self) -> bool:
        return self.users > 0 or self.gate.inside > 0

    def stop(self) -> None:
        self.gate.stopping = True

    def close(self) -> None:
        assert not self.busy and not self.closed, "it is freed while it is in use, or twice"
        self.closed = True


class Source:
    def __init__(self, name: str, there: list[Stub]) -> None:
        self.settings = replace(HOW, names=(name,))
        self.about: dict[str, Any] = {}
        self.fails = False
        self._there = there
        self._size = SIZES[name]

    def fits(self, beside: Sequence[Any]) -> bool:
        assert {one.name for one in beside} == {one.name for one in self._there if not one.closed}
        return self._size + sum(SIZES[one.name] for one in beside) <= CAPACITY

    def load(self, beside: Sequence[Any], given_up: Callable[[], bool]) -> Any:
        assert self.fits(beside)
        if self.fails:
            self.fails = False
            raise ModelFileError("it is damaged")
        self._there.append(Stub(self.settings.names[0]))
        return self._there[-1]


class Request:
    def __init__(self, machine: Machine, name: str) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self.serving: Any = None
        self.error: Exception | None = None
        self.task = machine.loop.create_task(self._run(machine.models))

    async def _run(self, models: Models) -> None:
        with models.request():
            try:
                self.serving = await models.serving(self.name)
            except ApiError as e:
                self.error = e
                return
            await self.ended.wait()

    @property
    def has_it(self) -> bool:
        return self.serving is not None and not self.task.done()


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.there: list[Stub] = []
        self.sources = {name: Source(name, self.there) for name in SIZES}
        self.clock = Clock()
        self.models = Models(HOW, [], list(self.sources.values()), keep_s=KEEP_S, clock=self.clock)
        self.work: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self.models.mover._run = self._later  # type: ignore[method-assign, assignment]
        self.requests: list[Request] = []

    async def _later(self, work: Callable[[], Any]) -> Any:
        """Work of the thread, which is done when the machine says so."""
        future = self.loop.create_future()
        self.work.append((future, work))
        return await future

    def _settle(self, n_turns: int = 30) -> None:
        for _ in range(n_turns):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    @property
    def _open(self) -> list[Request]:
        return [request for request in self.requests if not request.task.done()]

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        self.requests.append(Request(self, name))
        self._settle()

    @precondition(lambda self: any(r.has_it for r in self.requests))
    @rule(data=strategies.data())
    def end(self, data: strategies.DataObject) -> None:
        data.draw(strategies.sampled_from([r for r in self.requests if r.has_it])).ended.set()
        self._settle()

    @precondition(lambda self: self._open)
    @rule(data=strategies.data())
    def leave(self, data: strategies.DataObject) -> None:
        data.draw(strategies.sampled_from(self._open)).task.cancel()
        self._settle()

    @precondition(lambda self: self._open)
    @rule(data=strategies.data(), n_turns=strategies.integers(0, 8))
    def leave_at_the_last_moment(self, data: strategies.DataObject, n_turns: int) -> None:
        """The thread is done, and the client leaves before the loop has done all that follows from it."""
        self._do_work()
        self._settle(n_turns)
        if not self._open:
            return
        data.draw(strategies.sampled_from(self._open)).task.cancel()
        self._settle()

    @precondition(lambda self: self.work)
    @rule()
    def the_thread_is_done(self) -> None:
        self._do_work()
        self._settle()

    def _do_work(self) -> None:
        if not self.work:
            return
        future, work = self.work.pop(0)
        if future.cancelled():
            return
        try:
            future.set_result(work())
        except AssertionError:
            raise
        except Exception as e:
            future.set_exception(e)

    @rule(name=NAMES)
    def the_next_load_fails(self, name: str) -> None:
        self.sources[name].fails = True

    @rule(some=strategies.sampled_from([1.0, KEEP_S / 2, KEEP_S]))
    def time_passes(self, some: float) -> None:
        self.clock.now += some
        self.loop.create_task(self.models.mover.unload_unused())
        self._settle()

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        served = next(one for one in self.models.all if one.name == name)
        self.loop.create_task(self.models.mover.unload(served, "asked"))
        self._settle()

    @invariant()
    def memory_is_not_exceeded(self) -> None:
        here = [one for one in self.there if not one.closed]
        assert sum(SIZES[one.name] for one in here) <= CAPACITY
        assert len({one.name for one in here}) == len(here)

    @invariant()
    def one_thing_at_a_time(self) -> None:
        assert len(self.work) <= 1

    @invariant()
    def who_has_a_model_keeps_it(self) -> None:
        for request in self.requests:
            if request.has_it:
                assert not request.serving.closed and request.serving.name == request.name
        for one in self.there:
            assert one.users == sum(r.has_it and r.serving is one for r in self.requests)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        """Where nothing is under way and a request waits, somebody in use is in its way."""
        waiting = [r for r in self._open if not r.has_it]
        if waiting and not self.work:
            assert any(one.busy for one in self.there if not one.closed)

    def teardown(self) -> None:
        for _ in range(50 * (len(self.requests) + 1)):
            if not self._open and not self.work:
                break
            for request in self.requests:
                if request.has_it:
                    request.ended.set()
            self._do_work()
            self._settle()
        assert not self._open, "a request was lost"
        for request in self.requests:
            assert request.task.cancelled() or request.error is not None or request.serving is not None
        assert all(one.users == 0 for one in self.there)
        assert not any(one.waiting for one in self.models.all if one.n_waiting)
        assert {one.state for one in self.models.all} <= {"loaded", "unloaded"}
        if self.models.mover._timer is not None:
            self.models.mover._timer.cancel()
        self.loop.close()
        self.models.close()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
