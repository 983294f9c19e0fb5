"""The service for embeddings over a fake reader: what is read together, whose turn it is, and what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import numpy as np
import pytest

from pagedrun.embedding import EmbeddingService, normalized
from pagedrun.errors import ContextLengthError, EngineError, ParameterError, RequestError
from pagedrun.step import RunnerLimits
from tests.embedding_fakes import FakeReader, raw, vector


def text(n_tokens: int, token: int = 1) -> tuple[int, ...]:
    return (token,) * n_tokens


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader(RunnerLimits(max_num_seqs=8, max_seq_len=32, max_batch_tokens=64))


@pytest.fixture
def held(reader: FakeReader) -> Iterator[tuple[EmbeddingService, FakeReader, Callable[[], None]]]:
    """Its first batch is being read, and ends with the call of the function; the others follow."""
    reader.gate = threading.Semaphore(0)
    with EmbeddingService(reader) as service:
        first = service.submit([text(1)])
        while not reader.batches:
            pass

        def go() -> None:
            assert reader.gate is not None
            reader.gate.release(1000)
            first.result(10)

        yield service, reader, go
        reader.gate.release(1000)


def test_each_input_has_its_vector_of_length_one(reader: FakeReader) -> None:
    with EmbeddingService(reader) as service:
        inputs = [text(n, token) for n in (1, 5, 30) for token in (1, 7, 200)]
        found = service.embed(inputs)
        np.testing.assert_allclose(found, [vector(tokens) for tokens in inputs], rtol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    assert reader.closed
    assert service.stats.steps == 2 and service.stats.tokens_computed == sum(map(len, inputs))


def test_scores_are_left_as_they_are() -> None:
    with EmbeddingService(FakeReader(pooling="rank")) as service:
        assert not service.normalizes
        np.testing.assert_allclose(service.embed([text(3)]), [raw(text(3))])


def test_zeros_stay_zeros() -> None:
    np.testing.assert_array_equal(normalized(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_what_is_read_together_keeps_the_limits(reader: FakeReader) -> None:
    with EmbeddingService(reader) as service:
        service.embed([text(30), text(30), text(30), *[text(1)] * 20])
    assert [len(batch) for batch in reader.batches] == [2, 8, 8, 5]
    assert all(sum(map(len, batch)) <= 64 for batch in reader.batches)


def test_a_text_longer_than_a_batch_is_read_alone() -> None:
    reader = FakeReader(RunnerLimits(max_num_seqs=8, max_seq_len=100, max_batch_tokens=16))
    with EmbeddingService(reader) as service:
        service.embed([text(4), text(90), text(4)])
    assert [len(batch) for batch in reader.batches] == [1, 1, 1]


def test_requests_are_read_together_and_take_turns(
    held: tuple[EmbeddingService, FakeReader, Callable[[], None]],
) -> None:
    service, reader, go = held
    large = service.submit([text(20, 2)] * 50)
    small = service.submit([text(20, 3)])
    go()
    np.testing.assert_allclose(small.result(10), [vector(text(20, 3))], rtol=1e-6)
    assert text(20, 3) in reader.batches[1] and text(20, 2) in reader.batches[1]
    assert large.result(10).shape == (50, 4)


def test_what_is_cancelled_is_not_read(held: tuple[EmbeddingService, FakeReader, Callable[[], None]]) -> None:
    service, reader, go = held
    cancelled = service.submit([text(20, 2)] * 50)
    other = service.submit([text(20, 3)])
    assert cancelled.cancel()
    go()
    other.result(10)
    assert reader.batches[1:] == [[text(20, 3)]]
    with pytest.raises(CancelledError):
        cancelled.result(10)


def test_a_request_that_is_cancelled_while_it_is_read_harms_nobody(
    held: tuple[EmbeddingService, FakeReader, Callable[[], None]],
) -> None:
    service, reader, go = held
    go()
    reader.gate = threading.Semaphore(0)
    running = service.submit([text(3, 9)])
    while len(reader.batches) < 2:
        pass
    assert running.cancel()
    reader.gate.release(1000)
    assert service.embed([text(2)]).shape == (1, 4)


@pytest.mark.parametrize(("token", "says"), [(13, "decoding was aborted"), (14, "no number")])
def test_what_cannot_be_computed_fails_alone(reader: FakeReader, token: int, says: str) -> None:
    with EmbeddingService(reader) as service:
        with pytest.raises(EngineError, match=says):
            service.embed([text(60 // 2), text(30, token), *[text(30)] * 9])
        assert service.alive and service.embed([text(1)]).shape == (1, 4)


def test_a_reader_that_breaks_ends_the_service(reader: FakeReader, caplog: pytest.LogCaptureFixture) -> None:
    reader.read = lambda inputs: 1 / 0  # type: ignore[assignment, method-assign, misc, return-value]
    with EmbeddingService(reader) as service:
        with pytest.raises(EngineError, match="the engine has stopped"):
            service.embed([text(1)])
        service._thread.join(10)
        assert not service.alive and reader.closed and "ZeroDivisionError" in caplog.text
        with pytest.raises(EngineError, match="the engine has stopped"):
            service.submit([text(1)])


def test_closing_answers_those_who_wait(reader: FakeReader) -> None:
    reader.gate = threading.Semaphore(0)
    service = EmbeddingService(reader)
    running = service.submit([text(1)])
    while not reader.batches:
        pass
    waiting = service.submit([text(2)])
    closing = threading.Thread(target=service.close)
    closing.start()
    while service.alive:
        pass
    reader.gate.release(1000)
    closing.join(10)
    assert running.result(10).shape == (1, 4) and reader.closed
    with pytest.raises(EngineError, match="the engine has stopped"):
        waiting.result(10)


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ([], RequestError, "there is no input"),
        ([()], RequestError, "an input is empty"),
        ([text(1), text(33)], ContextLengthError, "33 tokens and the context holds 32"),
        ([(0, 258)], ParameterError, "outside 0 to 257"),
        ([(-1,)], ParameterError, "outside 0 to 257"),
    ],
)
def test_inputs_that_cannot_be_read(
    reader: FakeReader, inputs: list[tuple[int, ...]], error: type[Exception], says: str
) -> None:
    with EmbeddingService(reader) as service:
        with pytest.raises(error, match=says):
            service.submit(inputs)
        assert not reader.batches
