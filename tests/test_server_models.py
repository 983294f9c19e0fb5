"""Several models in one server: loaded on request, unloaded when nobody uses them, and nobody's request is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pagedrun.errors import ModelFileError, NotEnoughMemoryError
from pagedrun.running import OWNER
from pagedrun.server.errors import ApiError
from pagedrun.server.serving import Kind
from tests.model_fakes import PATH, FakeSource, several
from tests.server_fakes import Caller, eventually, run


def trio(capacity: int = 2) -> list[FakeSource]:
    return [FakeSource(name, 1, capacity) for name in ("one", "two", "three")]


def test_a_model_is_loaded_when_it_is_asked_for() -> None:
    with several(*trio()) as server:
        assert server.loaded == ["one"]

        async def work() -> None:
            assert "I am two" in await server.answer("two")
            assert "I am two" in await server.answer("two")
            assert "I am one" in await server.answer(None)

        run(work())
        assert server.loaded == ["one", "two"] and server.sources["two"].loads == 1
        assert server.said == ["loading two", "two is loaded"]


def test_requests_for_a_model_that_is_being_loaded_wait_and_load_it_once() -> None:
    with several(*trio()) as server:
        two = server.sources["two"]
        two.may_go.clear()

        async def work() -> None:
            streams = [server.ask("two", stream=True) for _ in range(3)]
            whole = server.ask("two")
            for stream in streams:
                await stream.until(lambda c: c.body.count(b": keep-alive\n\n") >= 3)
            assert whole.status == 0 and server.state("two") == "loading"
            assert "I am one" in await server.answer("one"), "others go on"
            two.may_go.set()
            for caller in (*streams, whole):
                await caller.until(lambda c: c.done)
            assert all(b"[DONE]" in stream.body for stream in streams)
            assert json.loads(whole.body)["choices"][0]["message"]["content"] == "I am two"

        run(work())
        assert two.began == two.loads == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelFileError("two.gguf is damaged", hint="fetch it again"), 500, "internal_error"),
        (NotEnoughMemoryError("it does not fit", hint="use a smaller one"), 503, "not_enough_memory"),
        (ValueError("surprise"), 500, "internal_error"),
    ],
)
def test_a_load_that_fails_is_said_and_tried_again(error: Exception, status: int, code: str) -> None:
    with several(*trio()) as server:
        two = server.sources["two"]
        two.error = error

        async def work() -> None:
            caller = server.ask("two")
            await caller.until(lambda c: c.done)
            told = json.loads(caller.body)["error"]
            assert caller.status == status and told["code"] == code
            assert told["message"].startswith("two cannot be loaded: ")
            assert getattr(error, "hint", "surprise").lower() in told["message"].lower()
            assert server.state("two") == "unloaded" and server.loaded == ["one"]
            two.error = None
            assert "I am two" in await server.answer("two")

        run(work())


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        (PATH, CHAT, 'data: {"error":{"message":"two cannot be loaded: '),
        ("/v1/messages", {**CHAT, "max_tokens": 5}, 'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/v1/responses", {"input": "hi"}, 'event: error\ndata: {"type":"error","sequence_number":0,"code":"internal'),
    ],
)
def test_a_stream_that_waited_in_vain_is_told_in_its_own_shape(path: str, body: dict[str, object], last: str) -> None:
    with several(*trio()) as server:
        two = server.sources["two"]
        two.may_go.clear()
        two.error = ModelFileError("two.gguf is damaged")

        async def work() -> None:
            caller = Caller(server.app, path, {"model": "two", "stream": True, **body})
            await caller.until(lambda c: b": keep-alive\n\n" in c.body)
            two.may_go.set()
            await caller.until(lambda c: c.done)
            assert caller.status == 200 and last in caller.body.decode()

        run(work())


def test_the_one_used_longest_ago_makes_room() -> None:
    with several(*trio(capacity=2)) as server:

        async def work() -> None:
            for name in ("two", "one", "three"):
                server.clock.now += 1
                assert f"I am {name}" in await server.answer(name)

        run(work())
        assert server.loaded == ["one", "three"]
        assert "two is unloaded: another needs the memory" in server.said


def test_a_model_in_use_is_not_unloaded_and_nobody_is_left_out() -> None:
    with several(*trio(capacity=1)) as server:

        async def work() -> None:
            first = await server.busy("one")
            second = server.ask("two", stream=True)
            await second.until(lambda c: b": keep-alive" in c.body)
            assert server.state("one") == "leaving" and server.state("two") == "waiting"
            third = server.ask("one")  # behind the second
            await eventually(lambda: server.waiting("one") == 1)
            assert server.loaded == ["one"] and server.sources["one"].services[0].alive
            server.release("one")
            for caller in (first, second, third):
                await caller.until(lambda c: c.done)
            assert b"[DONE]" in first.body and b"[DONE]" in second.body and b"I am one" in third.body

        run(work())
        assert server.loaded == ["one"] and server.sources["one"].loads == 2


def test_one_that_was_to_leave_stays_when_another_went() -> None:
    sources = [FakeSource("one", 1, 2), FakeSource("two", 1, 2), FakeSource("three", 1, 2)]
    with several(*sources) as server:

        async def work() -> None:
            assert "two" in await server.answer("two")
            first, second = await server.busy("one"), await server.busy("two")
            third = server.ask("three")
            await eventually(lambda: server.state("one") == "leaving")
            fourth = server.ask("one")
            await eventually(lambda: server.waiting("one") == 1)
            server.release("two")
            await second.until(lambda c: c.done)
            await third.until(lambda c: c.done)
            assert b"I am three" in third.body and server.state("one") == "loaded"
            server.release("one")
            for caller in (first, fourth):
                await caller.until(lambda c: c.done)
            assert b"I am one" in fourth.body

        run(work())
        assert server.sources["one"].loads == 1


def test_a_client_that_leaves_the_line_loads_nothing() -> None:
    with several(*trio(capacity=1)) as server:

        async def work() -> None:
            first = await server.busy("one")
            second = server.ask("two", stream=True)
            await eventually(lambda: server.state("one") == "leaving")
            second.leave()
            await second.task
            await eventually(lambda: server.state("one") == "loaded" and server.state("two") == "unloaded")
            server.release("one")
            await first.until(lambda c: c.done)

        run(work())
        assert server.sources["two"].began == 0


def test_too_many_that_wait_are_told_to_come_back() -> None:
    with several(*trio(), settings={"max_queue": 1}) as server:
        server.sources["two"].may_go.clear()

        async def work() -> None:
            waiting = [server.ask("two") for _ in range(2)]
            await eventually(lambda: server.waiting("two") == 2)
            refused = server.ask("two")
            await refused.until(lambda c: c.done)
            assert refused.status == 429 and b"rate_limit_exceeded" in refused.body
            assert "I am one" in await server.answer("one")
            server.sources["two"].may_go.set()
            for caller in waiting:
                await caller.until(lambda c: c.done)
                assert caller.status == 200

        run(work())


def test_what_nobody_uses_is_unloaded_after_a_while() -> None:
    with several(*trio(), keep_s=60) as server:

        async def work() -> None:
            server.models.start()
            assert "two" in await server.answer("two")
            first = await server.busy("one")
            server.clock.now = 59.9
            await server.models.mover.unload_unused()
            assert server.loaded == ["one", "two"]
            server.clock.now = 60
            await server.models.mover.unload_unused()
            assert server.loaded == ["one"], "it is in use"
            server.release("one")
            await first.until(lambda c: c.done)
            await eventually(lambda: not server.serving("one").busy)
            server.clock.now = 119
            await server.models.mover.unload_unused()
            assert server.loaded == ["one"], "its time runs since the answer's end"
            server.clock.now = 121
            await server.models.mover.unload_unused()
            assert server.loaded == []
            assert "I am one" in await server.answer("one")

        run(work())
        assert server.said[-3:] == ["one is unloaded: nobody used it", "loading one", "one is loaded"]
        assert server.sources["one"].services[0].alive is False


def test_not_at_all_is_when_the_last_answer_has_ended() -> None:
    with several(*trio(), keep_s=0) as server:

        async def work() -> None:
            server.models.start()
            await eventually(lambda: server.loaded == [])
            answers = await asyncio.gather(*(server.answer("two") for _ in range(3)))
            assert all("I am two" in answer for answer in answers)
            await eventually(lambda: server.loaded == [])

        run(work())
        assert server.sources["two"].loads == 1


def test_a_session_goes_on_before_its_model_goes() -> None:
    """Who may have a session goes on at once: asks, is answered, saves it. Nobody else is waited for."""
    secret = "only its user knows"
    request = {"id": "0" * 32, "request": {"prompt": [65]}}

    with several(*trio(), keep_s=0, settings={"secret": secret}) as server:

        async def ask(path: str, body: Any = None, secret: str = secret) -> None:
            how = "GET" if body is None else "POST"
            headers = [(OWNER.encode(), secret.encode())]
            caller = Caller(server.app, f"/v1/pagedrun/{path}", body, method=how, headers=headers)
            await caller.task
            assert caller.status == 200

        async def work() -> None:
            await ask("engine")
            await server.models.mover.unload_unused()
            assert server.loaded == ["one"], "who asks how it is loaded asks it something next"
            await ask("generate", request)
            server.clock.now = 0.5
            assert "I am one" in await server.answer("one"), "another's request, which changes nothing"
            await eventually(lambda: not server.serving("one").busy)
            server.clock.now = 0.9
            await server.models.mover.unload_unused()
            assert server.loaded == ["one"]
            server.clock.now = 1.0
            await server.models.mover.unload_unused()
            assert server.loaded == []
            await ask("generate", request, "somebody else")
            await eventually(lambda: server.loaded == [])

        run(work())


def test_one_that_is_used_while_another_is_loaded_is_not_idle() -> None:
    """Nothing goes while something comes; what was idle when that began may have been used meanwhile."""
    with several(*trio(), keep_s=10) as server:

        async def work() -> None:
            server.sources["two"].may_go.clear()
            other = server.ask("two")
            await eventually(lambda: server.sources["two"].began == 1)
            server.clock.now = 10.0
            going = asyncio.ensure_future(server.models.mover.unload_unused())
            assert "I am one" in await server.answer("one")
            await eventually(lambda: not server.serving("one").busy)
            server.sources["two"].may_go.set()
            await other.until(lambda c: c.done)
            await going
            assert server.loaded == ["one", "two"]

        run(work())


def test_a_look_loads_nothing() -> None:
    with several(*trio()) as server:

        async def work() -> None:
            for path in ("/v1/pagedrun/engine", "/v1/models/two", "/v1/pagedrun/stats"):
                caller = Caller(server.app, path, None, method="HEAD", query=b"model=two")
                await caller.task
                assert caller.status in (200, 404, 405) and server.loaded == ["one"], path

        run(work())


def test_loading_and_unloading_by_hand() -> None:
    with several(*trio()) as server:

        async def move(what: str, model: str) -> tuple[int, Any]:
            caller = server.ask(None, f"/v1/pagedrun/models/{what}")
            await caller.until(lambda c: c.done)
            assert caller.status == 400, "unknown fields are refused"
            caller = Caller(server.app, f"/v1/pagedrun/models/{what}", {"model": model})
            await caller.until(lambda c: c.done)
            return caller.status, json.loads(caller.body)

        async def work() -> None:
            status, found = await move("load", "two")
            assert status == 200 and found["id"] == "two" and found["pagedrun"]["loaded"] is True
            assert found["pagedrun"]["memory"]["ram"] == 500 << 20
            assert (await move("unload", "two"))[1]["pagedrun"]["state"] == "unloaded"
            assert (await move("unload", "two"))[0] == 200, "it is not loaded any more, and that is all"
            first = await server.busy("one")
            status, told = await move("unload", "one")
            assert status == 409 and told["error"]["code"] == "model_in_use"
            assert (await move("load", "four"))[0] == 404
            server.release("one")
            await first.until(lambda c: c.done)

        run(work())
        assert server.loaded == ["one"]


def test_lists_and_views() -> None:
    with several(*trio()) as server:

        async def get(path: str) -> tuple[int, bytes]:
            path, _, query = path.partition("?")
            caller = Caller(server.app, path, {}, method="GET", query=query.encode())
            await caller.until(lambda c: c.done)
            return caller.status, caller.body

        async def work() -> None:
            found = {m["id"]: m for m in json.loads((await get("/v1/models"))[1])["data"]}
            assert list(found) == ["one", "two", "three"]
            assert found["one"]["pagedrun"]["loaded"] and not found["two"]["pagedrun"]["loaded"]
            assert found["one"]["max_model_len"] == 4096 and found["two"]["max_model_len"] is None
            assert found["two"]["meta"] == {"size": 7}
            assert (await get("/v1/models/three"))[0] == 200 and (await get("/v1/models/four"))[0] == 404
            assert json.loads((await get("/v1/pagedrun/properties"))[1])["names"] == ["one"]
            status, told = await get("/v1/pagedrun/properties?model=two")
            assert status == 404 and b"model_not_loaded" in told
            assert "two" in await server.answer("two")
            assert json.loads((await get("/v1/pagedrun/properties?model=two"))[1])["names"] == ["two"]
            await server.models.mover.unload(server.models.all[1], "asked")
            assert server.loaded == ["one"]
            text = (await get("/metrics"))[1].decode()
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert float(lines['pagedrun_generated_tokens_total{model="two"}']) > 0
            assert float(lines['pagedrun_steps_total{model="two"}']) > 0, "totals outlive an engine"
            assert float(lines['pagedrun_loaded{model="two"}']) == 0
            assert float(lines['pagedrun_unloads_total{why="asked"}']) == 1

        run(work())


def test_a_server_that_stops_loads_nothing_more() -> None:
    with several(*trio(capacity=1)) as server:

        async def work() -> None:
            first = await server.busy("one")
            second = server.ask("two")
            await eventually(lambda: server.state("one") == "leaving")
            server.models.stop()
            await second.until(lambda c: c.done)
            assert second.status == 503 and b"the server is stopping" in second.body
            refused = server.ask("three")
            await refused.until(lambda c: c.done)
            assert refused.status == 503
            server.release("one")
            await first.until(lambda c: c.done)
            assert b"[DONE]" in first.body

        run(work())
        assert server.sources["two"].began == 0


def test_what_is_loaded_when_the_server_has_ended_is_freed_too() -> None:
    with several(*trio()) as server:
        two = server.sources["two"]
        two.may_go.clear()

        async def work() -> None:
            asked = server.ask("two")
            await eventually(lambda: two.began == 1)
            server.models.stop()
            await asked.until(lambda c: c.done)
            assert asked.status == 503

        run(work())
        two.may_go.set()
        server.models.close()
        assert two.loads == 1 and not two.services[0].alive


class Shelf:
    """What is installed beside what was named."""

    def __init__(self, *names: str) -> None:
        self.sources = {name: FakeSource(name) for name in names}

    def kinds(self) -> dict[str, Kind]:
        return {name: "embedding" if name == "four" else "text" for name in self.sources}

    def source(self, name: str) -> FakeSource | None:
        return self.sources.get(name)


def test_what_is_installed_may_be_asked_for() -> None:
    shelf = Shelf("four", "one")
    with several(*trio(), installed=shelf) as server:

        async def work() -> None:
            caller = Caller(server.app, "/v1/models", {}, method="GET")
            await caller.until(lambda c: c.done)
            assert [m["id"] for m in json.loads(caller.body)["data"]] == ["one", "two", "three", "four"]
            assert "I am four" in await server.answer("four")
            caller = server.ask("../five.gguf")
            await caller.until(lambda c: c.done)
            assert caller.status == 404 and b"model_not_found" in caller.body

        run(work())
        assert server.loaded == ["one", "four"]
        for service in shelf.sources["four"].services:
            service.close()


def test_a_request_that_holds_a_model_may_not_outlive_it() -> None:
    """`serving` outside of a request: nobody says when it ends, so that it is not held."""
    with several(*trio()) as server:

        async def work() -> None:
            serving = await server.models.serving("one")
            assert serving.users == 0
            with server.models.request():
                assert await server.models.serving("one") is serving and serving.users == 1
                assert not await server.models.mover.unload(server.models.all[0], "asked")
            assert serving.users == 0
            with pytest.raises(ApiError, match="does not exist; this server has 'one', 'two', 'three'"):
                await server.models.serving("four")

        run(work())
