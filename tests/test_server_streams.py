"""Streams over time: signs of life, clients that leave, a queue that is full, a server that stops."""

from __future__ import annotations

import asyncio
import json
import threading
from random import Random

import pytest

from pagedrun.errors import EngineError, GrammarError
from pagedrun.step import RunnerLimits
from tests.server_fakes import CHAT, Caller, Fake, events_of, eventually, fake_server, run

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}
ONE = RunnerLimits(max_num_seqs=1, max_seq_len=4096, max_batch_tokens=64)


def gated(fake: Fake) -> threading.Semaphore:
    fake.runner.gate = threading.Semaphore(0)
    return fake.runner.gate


def idle(fake: Fake) -> bool:
    return not fake.runner.requests and fake.serving.gate.inside == 0 and not fake.serving.open_answers


def test_a_stream_says_that_it_lives_while_it_waits() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        caller = Caller(fake.app, PATH, STREAM)
        await caller.until(lambda c: c.body.count(b": keep-alive\n\n") >= 2)
        assert caller.status == 200 and not events_of(caller.body.decode())
        gate.release(100)
        await caller.until(lambda c: c.done)
        assert events_of(caller.body.decode())[-1] == "[DONE]"

    with fake_server(keep_alive_s=0.05) as fake:
        run(scenario(fake))


def test_text_arrives_as_it_is_made() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        caller = Caller(fake.app, PATH, STREAM)
        gate.release(1)  # the prompt is read, and a token is chosen
        await caller.until(lambda c: b'"content":"H"' in c.body)
        assert not caller.done
        gate.release(100)
        await caller.until(lambda c: c.done)

    with fake_server() as fake:
        run(scenario(fake))


def test_whoever_leaves_is_cancelled_within_a_step() -> None:
    async def leaves(fake: Fake, stream: bool, steps: int, prompt: str) -> None:
        gate = gated(fake)
        data = {**CHAT, "stream": stream, "messages": [{"role": "user", "content": prompt}]}
        caller = Caller(fake.app, PATH, data)
        gate.release(steps)
        n = len(fake.runner.plans)
        await eventually(lambda: len(fake.runner.plans) == n + steps and bool(fake.runner.requests))
        caller.leave()
        await caller.task
        gate.release(1)  # the step that had begun
        await eventually(lambda: idle(fake))
        assert len(fake.runner.plans) <= n + steps + 1

    with fake_server("x" * 1000) as fake:
        for stream in (True, False):
            run(leaves(fake, stream, 3, "hi"))  # while it answers
            run(leaves(fake, stream, 1, "y" * 2000))  # while its prompt is read
        gated(fake).release(100)
        assert fake.chat(max_tokens=3).status_code == 200


def test_whoever_leaves_the_queue_is_gone_at_once() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        first = Caller(fake.app, PATH, STREAM)
        await eventually(lambda: len(fake.runner.requests) == 1)
        second = Caller(fake.app, PATH, STREAM)
        await eventually(lambda: fake.serving.gate.waiting == 1)
        second.leave()
        await second.task
        gate.release(100)
        await first.until(lambda c: c.done)
        await eventually(lambda: idle(fake))
        assert len(fake.runner.got) == 1

    with fake_server(limits=ONE) as fake:
        run(scenario(fake))


def test_a_full_queue_answers_429() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        callers = [Caller(fake.app, PATH, STREAM) for _ in range(2)]
        await eventually(lambda: fake.serving.gate.inside == 2)
        async with fake.client() as client:
            refused = await client.post(PATH, json=CHAT)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            gate.release(1000)
            await asyncio.gather(*(caller.task for caller in callers))
            await eventually(lambda: idle(fake))
            assert (await client.post(PATH, json=CHAT)).status_code == 200
            more = await client.post(PATH, json={**CHAT, "n": 3})
            assert more.status_code == 400 and more.json()["error"]["param"] == "n"

    with fake_server(limits=ONE, max_queue=1) as fake:
        run(scenario(fake))


def test_stopping_lets_answers_end_and_takes_no_more() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        caller = Caller(fake.app, PATH, STREAM)
        await eventually(lambda: fake.serving.gate.inside == 1)
        fake.models.stop()
        async with fake.client() as client:
            refused = await client.post(PATH, json=CHAT)
            assert refused.status_code == 503 and "retry-after" in refused.headers
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/health")).status_code == 200
        gate.release(100)
        await caller.until(lambda c: c.done)
        assert events_of(caller.body.decode())[-1] == "[DONE]"

    with fake_server() as fake:
        run(scenario(fake))


def test_answers_that_take_too_long_are_told() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        streamed, whole = Caller(fake.app, PATH, STREAM), Caller(fake.app, PATH, CHAT)
        gate.release(3)
        await streamed.until(lambda c: b"content" in c.body)
        await eventually(lambda: fake.serving.gate.inside == 2)
        fake.models.stop()
        fake.models.cancel_all()
        gate.release(100)
        await asyncio.gather(streamed.task, whole.task)
        last = events_of(streamed.body.decode())[-1]
        assert last["error"]["code"] == "unavailable" and "stopping" in last["error"]["message"]
        assert whole.status == 503
        await eventually(lambda: idle(fake))

    with fake_server("x" * 1000) as fake:
        run(scenario(fake))


def test_what_goes_wrong_at_once_is_no_stream() -> None:
    with fake_server() as fake:
        fake.runner.fail_open = GrammarError("the grammar cannot be used")
        answer = fake.chat(stream=True, grammar="x")
        assert answer.status_code == 400 and "grammar" in answer.json()["error"]["message"]
        assert fake.chat().status_code == 200


def test_what_goes_wrong_later_ends_the_stream_with_an_error() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        caller = Caller(fake.app, PATH, STREAM)
        gate.release(1)
        await caller.until(lambda c: b'"content":"H"' in c.body)
        fake.runner.fail_run = EngineError("the device was lost")
        gate.release(100)
        await caller.until(lambda c: c.done)
        *_, last = events_of(caller.body.decode())
        assert last["error"]["type"] == "server_error" and "device was lost" in last["error"]["message"]

    with fake_server() as fake:
        run(scenario(fake))
        assert fake.chat().status_code == 200
        assert idle(fake)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_died_is_noticed() -> None:
    async def scenario(fake: Fake) -> None:
        gate = gated(fake)
        streamed, whole = Caller(fake.app, PATH, STREAM), Caller(fake.app, PATH, CHAT)
        await eventually(lambda: fake.serving.gate.inside == 2)
        fake.runner.fail_run = SystemExit()  # type: ignore[assignment]
        gate.release(100)
        await asyncio.gather(streamed.task, whole.task)
        assert b"the engine has stopped" in streamed.body and whole.status == 503
        async with fake.client() as client:
            assert (await client.post(PATH, json=CHAT)).status_code == 503
            assert (await client.get("/ready")).status_code == 503

    with fake_server(keep_alive_s=0.05) as fake:
        run(scenario(fake))


def test_many_at_once_get_their_own_answers() -> None:
    async def scenario(fake: Fake) -> None:
        async with fake.client() as client:
            posts = [client.post(PATH, json={**CHAT, "max_tokens": n % 7 + 1}) for n in range(40)]
            for n, answer in enumerate(await asyncio.gather(*posts)):
                assert answer.json()["choices"][0]["message"]["content"] == "Hello!"[: n % 7 + 1]

    with fake_server() as fake:
        run(scenario(fake))
        assert idle(fake)


@pytest.mark.parametrize("seed", range(3))
def test_streams_that_are_left_at_any_moment_harm_no_other(seed: int) -> None:
    async def one(fake: Fake, random: Random, n: int) -> None:
        """Ask, and leave after a while or read to the end, which then is right."""
        stream, length = random.random() < 0.7, random.randrange(1, 60)
        words = "y" * random.choice((1, 200, 900)) + str(n)
        data = {"messages": [{"role": "user", "content": words}], "stream": stream, "max_tokens": length}
        if leaves := random.random() < 0.5:
            data |= {"max_tokens": 3000}
        caller = Caller(fake.app, PATH, data)
        if leaves:
            await asyncio.sleep(random.random() * 0.2)
            caller.leave()
            await caller.task
            return
        await caller.task
        body = caller.body.decode()
        assert caller.status == 200 and caller.done, body
        if not stream:
            assert json.loads(body)["choices"][0]["message"]["content"] == "x" * length
            return
        *chunks, done = events_of(body)
        assert done == "[DONE]"
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "x" * length

    async def scenario(fake: Fake) -> None:
        random, tasks = Random(seed), asyncio.all_tasks()
        await asyncio.gather(*(one(fake, random, n) for n in range(64)))
        await eventually(lambda: idle(fake))
        await eventually(lambda: asyncio.all_tasks() == tasks)

    with fake_server("x" * 3000) as fake:
        run(scenario(fake))
