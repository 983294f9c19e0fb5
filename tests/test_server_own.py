"""What `chat` and `complete` ask a server for: tokens in, the engine's events out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun import __version__, wire
from pagedrun.errors import ReloadedError
from pagedrun.request import Finished, FinishReason, GenerationRequest, Grammar, GrammarTrigger, Reasoning, TextDelta
from pagedrun.running import OWNER
from pagedrun.sampling import SamplingParams
from pagedrun.server import kept
from pagedrun.server.errors import ApiError
from pagedrun.server.kept import SaveRequest
from tests.fakes import FakeVocab
from tests.server_fakes import LIMITS, Caller, Fake, eventually, fake_server, run

PATH = "/v1/pagedrun/generate"
REQUEST = GenerationRequest(prompt=tuple(b"hi"), sampling=SamplingParams(temperature=0.0))
ID = "0123456789abcdef" * 2
SECRET = {OWNER: "only its user knows"}


def body(request: GenerationRequest = REQUEST, **more: Any) -> dict[str, Any]:
    return {"id": ID, "request": wire.request_to_json(request), **more}


def events(text: str) -> list[Any]:
    return [wire.event_from_json(json.loads(line)) for line in text.splitlines() if line]


def test_the_engines_own_events_come() -> None:
    request = replace(REQUEST, stop=("lo",), max_tokens=9)
    with fake_server("Hello!") as fake:
        answer = fake.post(PATH, body(request, model="fake"))
        *deltas, ended = events(answer.text)
        expected = list(fake.serving.service.submit(request))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert deltas == expected[:-1] and "".join(d.text for d in deltas) == "Hel"
    assert isinstance(ended, wire.Ended) and isinstance(expected[-1], Finished)
    assert (ended.finished.reason, ended.finished.stop) == (expected[-1].reason, "lo")
    assert ended.finished.usage.completion_tokens == 5 and fake.runner.got[0].max_tokens == 9


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "short"}, "'id'"),
        ({"model": "other"}, "does not exist"),
        ({"nonsense": 1}, "unknown field 'nonsense'"),
        ({"request": {}}, "missing 'request.prompt'"),
        ({"request": {"prompt": []}}, "the prompt is empty"),
        ({"request": {"prompt": [1, 2**40]}}, "outside 0 to"),
        ({"request": {"prompt": [1], "sampling": {"temperature": -1}}}, "temperature must be 0 or more"),
        ({"request": {"prompt": [1], "sampling": {"temperature": "nan"}}}, "temperature must be a number"),
        ({"request": {"prompt": [1], "sampling": {"heat": 1}}}, "request.sampling.heat"),
        ({"request": {"prompt": [1], "stop": ["x"] * 2000}}, "more than 1024"),
        ({"request": {"prompt": [1], "logprobs": 99}}, "logprobs must be from 0 to 20"),
        ({"request": {"prompt": list(range(200)) * 30}}, "maximum context length is 4096"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], says: str) -> None:
    with fake_server() as fake:
        answer = fake.post(PATH, {**body(), **change})
        assert answer.status_code in (400, 404) and says in answer.json()["error"]["message"]
        assert fake.post(PATH, body()).status_code == 200


def test_an_error_of_ours_can_be_raised_again() -> None:
    with fake_server() as fake:
        told = fake.post(PATH, body(replace(REQUEST, prompt=(1,) * 5000))).json()["pagedrun"]
    error = wire.error_from_json(told)
    assert (type(error).__name__, error.prompt_tokens, error.max_seq_len) == ("ContextLengthError", 5000, 4096)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"grammar": Grammar(text="a", lazy=True, triggers=(GrammarTrigger(2, "(a|a)*b"),))}, 400),
        ({"grammar": Grammar(text="a", lazy=True, triggers=(GrammarTrigger(1, "<tag>"),))}, 200),
        ({"grammar": Grammar(text="a", triggers=(GrammarTrigger(0, "", 2**40),))}, 400),
        ({"reasoning": Reasoning(start_tag="<t>", end_tags=("</t>",), budget_tokens=2**40)}, 400),
    ],
)
def test_what_could_stop_a_server_is_for_its_own_user(more: dict[str, Any], status: int) -> None:
    with fake_server(secret=SECRET[OWNER]) as fake:
        asked = body(replace(REQUEST, **more))
        assert fake.post(PATH, asked).status_code == status
        wrong = {OWNER: "x"}
        assert fake.post(PATH, asked, headers=wrong).status_code == status
        owners = 200 if "grammar" in more and more["grammar"].triggers[0].type == 2 else status
        assert fake.post(PATH, asked, headers=SECRET).status_code == owners


def test_sessions_are_for_its_own_user() -> None:
    for secret in ("", SECRET[OWNER]):
        with fake_server(secret=secret) as fake:
            for path, more in (("use", {}), ("save", {"tokens": [1], "note": "{}"})):
                asked = {"name": "one", **more}
                for headers in ({}, {OWNER: ""}, {OWNER: "x"}, {OWNER: "ü".encode()}):
                    answer = fake.post(f"/v1/pagedrun/sessions/{path}", asked, headers=headers)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "owner_only")
                known = fake.post(f"/v1/pagedrun/sessions/{path}", asked, headers=SECRET)
                assert known.status_code == (404 if secret else 403)  # the fake keeps none


def test_what_a_client_compares() -> None:
    with fake_server() as fake:
        found = fake.call("GET", "/v1/pagedrun/engine").json()
        assert fake.call("GET", "/v1/pagedrun/engine?model=other").status_code == 404
    assert (found["wire"], found["version"], found["name"]) == (wire.VERSION, __version__, "fake")
    assert found["limits"]["max_seq_len"] == LIMITS.max_seq_len and found["config"]["max_seq_len"] == 0
    assert found["model"]["path"] == "fake.gguf" and found["identity"] is None


def test_a_client_that_knows_another_model_is_told() -> None:
    with fake_server() as fake:
        known = fake.call("GET", "/v1/pagedrun/engine").json()["loaded"]
        assert fake.post(PATH, body(loaded=known)).status_code == 200
    with fake_server(limits=replace(LIMITS, max_seq_len=100)) as fake:
        answer = fake.post(PATH, body(loaded=known))
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "loaded_otherwise")
        assert isinstance(wire.error_from_json(answer.json()["pagedrun"]), ReloadedError) and not fake.runner.got


def held(fake: Fake) -> Any:
    import threading

    fake.runner.gate = threading.Semaphore(3)
    return fake.runner.gate


def test_one_that_is_cancelled_says_how_far_it_came() -> None:
    async def scenario(fake: Fake) -> None:
        gate = held(fake)
        caller = Caller(fake.app, PATH, body())
        await caller.until(lambda c: b'"text"' in c.body)
        async with fake.client() as client:
            other = await client.post("/v1/pagedrun/cancel", json={"id": "f" * 32})
            assert other.json() == {"found": False}
            assert (await client.post("/v1/pagedrun/cancel", json={"id": ID})).json() == {"found": True}
            gate.release(10_000)
            await caller.until(lambda c: c.done)
            assert (await client.post("/v1/pagedrun/cancel", json={"id": ID})).json() == {"found": False}
        ended = events(caller.body.decode())[-1]
        assert ended.finished.reason is FinishReason.CANCELLED
        assert 1 <= ended.finished.usage.completion_tokens < 1000
        await eventually(lambda: fake.serving.gate.inside == 0)

    with fake_server("x" * 3000) as fake:
        run(scenario(fake))


def test_who_leaves_ends_it() -> None:
    async def scenario(fake: Fake) -> None:
        gate = held(fake)
        caller = Caller(fake.app, PATH, body())
        await caller.until(lambda c: b'"text"' in c.body)
        caller.leave()
        await asyncio.wait_for(caller.task, 10)  # the engine has been told
        gate.release(10_000)
        await eventually(lambda: fake.serving.gate.inside == 0 and not fake.runner.requests)
        assert not fake.serving.open_answers

    with fake_server("x" * 3000) as fake:
        run(scenario(fake))


def test_a_server_that_stops_says_so() -> None:
    async def scenario(fake: Fake) -> None:
        gate = held(fake)
        caller = Caller(fake.app, PATH, body())
        await caller.until(lambda c: b'"text"' in c.body)
        fake.serving.cancel_all()
        gate.release(10_000)
        await caller.until(lambda c: c.done)
        *before, last = (json.loads(line) for line in caller.body.splitlines() if line)
        assert last["error"]["message"] == "the server is stopping" and all("text" in one for one in before)

    with fake_server("x" * 3000) as fake:
        run(scenario(fake))


def test_a_silent_stream_lives() -> None:
    async def scenario(fake: Fake) -> None:
        gate = held(fake)
        caller = Caller(fake.app, PATH, body(replace(REQUEST, prompt=(1,) * 3000)))
        await caller.until(lambda c: c.body.startswith(b"\n\n\n"))
        gate.release(10_000)
        await caller.until(lambda c: c.done)
        assert isinstance(events(caller.body.decode())[0], TextDelta)

    with fake_server("Hello", keep_alive_s=0.02) as fake:
        run(scenario(fake))


def test_a_full_queue() -> None:
    async def scenario(fake: Fake) -> None:
        fake.serving.gate.inside = LIMITS.max_num_seqs
        async with fake.client() as client:
            answer = await client.post(PATH, json=body())
        fake.serving.gate.inside = 0
        assert answer.status_code == 429 and "the queue is full" in answer.json()["error"]["message"]

    with fake_server("Hi", max_queue=0) as fake:
        run(scenario(fake))


def test_a_save_that_fails_is_told() -> None:
    class Keeper:
        def save(self, *_: Any) -> None:
            raise OverflowError

    def call(work: Any) -> None:
        with pytest.raises(OverflowError):
            work()

    async def save(tokens: list[int]) -> Any:
        service = SimpleNamespace(keeper=Keeper(), alive=True, vocab=FakeVocab(), call=call)
        asked = SaveRequest(name="one", tokens=tokens, note="{}")
        return await kept.save(SimpleNamespace(service=service), asked)  # type: ignore[arg-type]

    answer = run(save([1]))
    assert answer.status_code == 500 and b"one was not saved" in answer.body
    with pytest.raises(ApiError) as refused:
        run(save([1, 10**12]))
    assert (refused.value.status, refused.value.param) == (400, "tokens")
