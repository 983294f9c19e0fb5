"""The engine over a fake runner: one turn at a time, and as a service used from other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedrun.engine import Cancel, Engine, Submit
from pagedrun.errors import ContextLengthError, EngineError, GrammarError, ParameterError, RequestError
from pagedrun.model import ModelInfo
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest, RequestId, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.scheduling import Sequence
from pagedrun.service import Service, Stream
from pagedrun.step import RunnerLimits, Slot
from tests.fakes import EOG, TAG, FakeRunner, broken


def ask(text: str, **more: object) -> GenerationRequest:
    return GenerationRequest(prompt=tuple(text.encode()), **more)  # type: ignore[arg-type]


def run(engine: Engine, *requests: GenerationRequest, steps: int = 100) -> list[list[Event]]:
    """Submit, then turn the engine by hand until nothing is left."""
    events: list[list[Event]] = [[] for _ in requests]
    for number, request in enumerate(requests):
        engine._carry_out(Submit(Sequence(RequestId(number), request), events[number].append))
    for _ in range(steps):
        if engine._scheduler.idle:
            break
        engine.step()
    return events


def text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def end(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(e, Finished) for e in events[:-1])
    return events[-1]


def test_an_answer_comes_as_text_and_an_end() -> None:
    (events,) = run(Engine(FakeRunner()), ask("hello"))
    assert text(events) == "hello"
    assert end(events).reason is FinishReason.STOP
    assert (end(events).usage.prompt_tokens, end(events).usage.completion_tokens) == (5, 6)


def test_max_tokens_ends_with_length() -> None:
    (events,) = run(Engine(FakeRunner()), ask("hello", max_tokens=3))
    assert (text(events), end(events).reason) == ("hel", FinishReason.LENGTH)


def test_a_full_context_ends_with_context() -> None:
    runner = FakeRunner(RunnerLimits(1, 10, 64), answer=lambda tokens, n: ord("x"))
    (events,) = run(Engine(runner), ask("hello"))
    assert (text(events), end(events).reason) == ("xxxxx", FinishReason.CONTEXT)


@pytest.mark.parametrize(("wished", "reason"), [(4, "length"), (5, "length"), (6, "context")])
def test_who_gets_what_was_asked_for_was_not_cut_off(wished: int, reason: str) -> None:
    runner = FakeRunner(RunnerLimits(1, 10, 64), answer=lambda tokens, n: ord("x"))
    (events,) = run(Engine(runner), ask("hello", max_tokens=wished))
    assert (len(text(events)), end(events).reason.value) == (min(wished, 5), reason)


def test_a_stop_string_over_several_tokens_is_cut_off() -> None:
    (events,) = run(Engine(FakeRunner()), ask("one STOP two", stop=("STOP",)))
    assert (text(events), end(events).reason, end(events).stop) == ("one ", FinishReason.STOP, "STOP")


def test_held_back_text_comes_at_the_end() -> None:
    (events,) = run(Engine(FakeRunner()), ask("a ST", stop=("STOP",)))
    assert text(events) == "a ST"


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    def tag_then_end(tokens: list[int], n_prompt: int) -> int:
        return [TAG, ord("x"), EOG][len(tokens) - n_prompt]

    hidden, shown = (
        run(Engine(FakeRunner(answer=tag_then_end)), ask("p", preserved_tokens=preserved))[0]
        for preserved in ((), ("<tag>",))
    )
    assert (text(hidden), text(shown)) == ("x", "<tag>x")


def test_many_requests_share_a_batch_and_answer_their_own() -> None:
    runner = FakeRunner()
    answers = run(Engine(runner), *(ask(f"number {i}") for i in range(9)))
    assert [text(a) for a in answers] == [f"number {i}" for i in range(9)]
    assert max(len(plan.chunks) for plan in runner.plans) == 4


def test_cancel_takes_effect_before_the_next_step_even_while_the_prompt_is_read() -> None:
    runner = FakeRunner(RunnerLimits(1, 1000, 8))
    engine = Engine(runner)
    events: list[Event] = []
    engine._carry_out(Submit(Sequence(RequestId(0), ask("x" * 500)), events.append))
    engine.step()
    engine.step()
    engine._carry_out(Cancel(RequestId(0)))
    assert end(events).reason is FinishReason.CANCELLED
    assert len(runner.plans) == 2
    engine.step()
    assert len(runner.plans) == 2


def test_cancelling_someone_who_waits_or_is_gone() -> None:
    engine = Engine(FakeRunner(RunnerLimits(1, 100, 8)))
    logs: list[list[Event]] = [[], []]
    for number in range(2):
        engine._carry_out(Submit(Sequence(RequestId(number), ask("abc")), logs[number].append))
    engine.step()
    engine._carry_out(Cancel(RequestId(1)))
    engine._carry_out(Cancel(RequestId(1)))
    engine._carry_out(Cancel(RequestId(77)))
    assert end(logs[1]).reason is FinishReason.CANCELLED
    while not engine._scheduler.idle:
        engine.step()
    assert text(logs[0]) == "abc"


def test_a_request_that_cannot_be_opened_fails_alone() -> None:
    runner = FakeRunner()
    runner.fail_open = GrammarError("bad grammar")
    bad, good = run(Engine(runner), ask("bad"), ask("good"))
    assert isinstance(end(bad).error, GrammarError)
    assert text(good) == "good"


def test_a_sampler_that_fails_ends_its_request_alone() -> None:
    runner = FakeRunner()
    runner.fail_sample[Slot(0)] = GrammarError("stuck")
    bad, good = run(Engine(runner), ask("bad"), ask("good"))
    assert isinstance(end(bad).error, GrammarError)
    assert text(good) == "good"
    assert runner.kv[Slot(0)] == []


def test_a_failed_step_ends_its_requests_and_the_next_ones_are_served() -> None:
    runner = FakeRunner()
    runner.fail_run = broken("decode failed")
    engine = Engine(runner)
    first, second = run(engine, ask("one"), ask("two"))
    assert {end(first).reason, end(second).reason} == {FinishReason.ERROR}
    (third,) = run(engine, ask("three"))
    assert text(third) == "three"


def test_logprobs_come_with_their_tokens() -> None:
    (events,) = run(Engine(FakeRunner()), ask("hi", logprobs=0))
    logprobs = [p for e in events if isinstance(e, TextDelta) for p in e.logprobs]
    assert [p.token for p in logprobs] == [ord("h"), ord("i")]


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def service(runner: FakeRunner) -> Iterator[Service]:
    model = ModelInfo(
        path=Path("fake.gguf"), name="fake", architecture="fake", quantization="F16", n_params=1, n_vocab=258,
        n_ctx_train=256, size_bytes=1, can_rewind=True, device="CPU", sampling={"top_k": 7},
    )  # fmt: skip
    service = Service(Engine(runner), model, None, sampling_defaults={"temperature": 0.5})  # type: ignore[arg-type]
    yield service
    if runner.gate:
        runner.gate.release(10_000)
    service.close()
    assert runner.closed


def test_a_service_answers_many_threads(service: Service) -> None:
    answers: dict[int, str] = {}

    def client(number: int) -> None:
        answers[number] = text(list(service.submit(ask(f"client {number}"))))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == {n: f"client {n}" for n in range(20)}


def test_sampling_settings_are_filled_from_registry_then_file_then_llama(service: Service, runner: FakeRunner) -> None:
    runner.gate = threading.Semaphore(1)
    stream = service.submit(ask("hi", sampling=SamplingParams(min_p=0.2)))
    next(stream)
    used = runner.requests[Slot(0)].sampling
    assert (used.min_p, used.temperature, used.top_k, used.top_p) == (0.2, 0.5, 7, 0.95)


def test_cancel_from_another_thread(service: Service, runner: FakeRunner) -> None:
    runner.gate = threading.Semaphore(3)
    stream = service.submit(ask("x" * 100))
    next(stream)
    stream.cancel()
    runner.gate.release(1)
    assert end(list(stream)).reason is FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask(""), RequestError),
        (ask("x" * 256), ContextLengthError),
        (ask("x" * 257), ContextLengthError),
        (ask("x", max_tokens=0), ParameterError),
        (ask("x", logprobs=21), ParameterError),
        (GenerationRequest(prompt=(258,)), ParameterError),
        (ask("x", sampling=SamplingParams(logit_bias=((258, 1.0),))), ParameterError),
    ],
)
def test_what_can_be_seen_beforehand_is_refused_at_once(
    service: Service, request_: GenerationRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        service.submit(request_)
    assert text(list(service.submit(ask("still here")))) == "still here"


def test_an_unexpected_exception_does_not_stop_the_engine(
    service: Service, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    runner.fail_run = ZeroDivisionError("oops")
    finished = end(list(service.submit(ask("x"))))
    assert isinstance(finished.error, EngineError)
    assert text(list(service.submit(ask("y")))) == "y"
    assert "oops" in caplog.text


def test_a_closed_service_says_so(runner: FakeRunner, service: Service) -> None:
    stream: Stream = service.submit(ask("a"))
    service.close()
    list(stream)
    with pytest.raises(EngineError):
        service.submit(ask("b"))


def test_how_long_tokens_were_apart_is_measured() -> None:
    engine = Engine(FakeRunner(), prefill_chunk=0, max_stall=0.1)
    ends = []
    for number, n in enumerate((1, 5)):
        request = GenerationRequest(prompt=(1, 2, 3, 4, 5, 6), max_tokens=n)
        engine._carry_out(Submit(Sequence(RequestId(number), request), ends.append))
    while not engine._scheduler.idle:
        engine.step()
    one, five = (e.timings for e in ends if isinstance(e, Finished))
    assert (one.gap_s, one.max_gap_s) == (0, 0)
    assert 0 < five.gap_s <= five.max_gap_s <= five.decode_s
    assert engine.stats.max_gap_s == pytest.approx(five.max_gap_s)
    assert engine.stats.prefill_chunk == 64  # what a step can have is less than nothing known allows
