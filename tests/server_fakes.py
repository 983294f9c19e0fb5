"""A server over the real engine and the fake runner, and clients for it that need no socket.

The fake template writes `role:content` lines. A reply may think in <think> tags, and call tools in
<call>NAME ARGUMENTS</call>; the real `ReplyParser` takes it apart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from pagedrun.chat import ChatOptions, Message, RenderedChat, ReplyParser
from pagedrun.engine import Engine
from pagedrun.errors import GrammarError, TemplateError
from pagedrun.request import Grammar
from pagedrun.server.app import make_app
from pagedrun.server.models import Models
from pagedrun.server.serving import ServeSettings, Serving
from pagedrun.service import Service
from pagedrun.step import RunnerLimits
from tests.cli_fakes import model_info
from tests.fakes import EOG, FakeRunner

T = TypeVar("T")

LIMITS = RunnerLimits(max_num_seqs=4, max_seq_len=4096, max_batch_tokens=256)
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Door:
    """Parses what the module says; the last of a text that may become a tag is held back."""

    def parse(self, text: str, *, partial: bool) -> Mapping[str, Any]:
        reasoning, content, calls = "", text, []
        if partial and "<think>".startswith(text):
            content = ""
        elif text.startswith("<think>"):
            reasoning, closed, content = text.removeprefix("<think>").partition("</think>")
            if partial and not closed:
                reasoning = _certain(reasoning, "</think>")
        content, *parts = content.split("<call>")
        if partial and not parts:
            content = _certain(content, "<call>")
        for part in parts:
            inside, closed, _ = part.partition("</call>")
            name, space, arguments = inside.partition(" ")
            arguments = _certain(arguments, "</call>") if partial and not closed else arguments
            if space:
                calls.append({"id": "", "name": name, "arguments": arguments})
            elif not partial:
                raise TemplateError("a call without arguments")
        return {"content": content, "reasoning": reasoning, "tool_calls": calls}


def _certain(text: str, tag: str) -> str:
    held = max(n for n in range(len(tag)) if text.endswith(tag[:n]))
    return text[: len(text) - held]


class Templates:
    """Keeps what it was asked for."""

    source = "{{ messages }}"
    supports_thinking = True

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[Message, ...], ChatOptions]] = []

    def render(self, messages: Sequence[Message], options: ChatOptions) -> RenderedChat:
        self.asked.append((tuple(messages), options))
        if any(m.content == "break the template" for m in messages):
            raise TemplateError("the chat template failed: because")
        text = options.grammar or options.json_schema or ("a call" if options.tool_choice == "required" else None)
        return RenderedChat(
            prompt="".join(f"{m.role}:{m.content}\n" for m in messages),
            grammar=Grammar(text=text) if text else None,
            stop=("<stop>",),
        )

    def reply_parser(self, rendered: RenderedChat) -> ReplyParser:
        return ReplyParser(Door(), Door())

    def schema_to_grammar(self, schema: str) -> str:
        if "impossible" in schema:
            raise GrammarError("the JSON schema cannot be used")
        return f"schema {schema}"


class Talker(FakeRunner):
    """Says `says`, a byte a step, and notes its requests."""

    def __init__(self, says: str, limits: RunnerLimits = LIMITS) -> None:
        super().__init__(limits, self._next)
        self.says = says.encode()
        self.got: list[Any] = []

    def open(self, slot: Any, request: Any) -> None:
        self.got.append(request)
        super().open(slot, request)

    def _next(self, tokens: list[int], n_prompt: int) -> int:
        done = len(tokens) - n_prompt
        return self.says[done] if done < len(self.says) else EOG


class Fake:
    """A server. `call` sends one request; `together` runs what needs several, or no end."""

    def __init__(self, serving: Serving, runner: Talker, templates: Templates) -> None:
        self.serving, self.runner, self.templates = serving, runner, templates
        self.models = Models(serving.settings, [serving])
        self.app = make_app(self.models)
        self.headers: dict[str, str] = {}

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def one() -> httpx.Response:
            async with self.client() as client:
                answer = await client.request(method, path, **more)
            await eventually(lambda: self.serving.gate.inside == 0)  # what was cancelled ends in this loop
            return answer

        return asyncio.run(one())

    def post(self, path: str, data: Any = None, **more: Any) -> httpx.Response:
        return self.call("POST", path, json=data, **more) if data is not None else self.call("POST", path, **more)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {**CHAT, **fields})

    def events(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
        """The events of a stream; the last is "[DONE]"."""
        base = CHAT if "chat" in path else {"model": "fake"}
        answer = self.post(path, {**base, "stream": True, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events_of(answer.text)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=self.headers)

    @property
    def request(self) -> Any:
        """What the runner was last asked for."""
        return self.runner.got[-1]

    @property
    def options(self) -> ChatOptions:
        """What the template was last asked for."""
        return self.templates.asked[-1][1]

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.templates.asked[-1][0]


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@contextmanager
def fake_server(says: str = "Hello!", limits: RunnerLimits = LIMITS, **settings: Any) -> Iterator[Fake]:
    runner, templates = Talker(says, limits), Templates()
    how = replace(ServeSettings(names=("fake",), hosts=("localhost",)), **settings)
    with Service(Engine(runner), model_info(Path("fake.gguf")), templates) as service:  # type: ignore[arg-type]
        fake = Fake(Serving(service, how), runner, templates)
        try:
            yield fake
        finally:
            if runner.gate is not None:
                runner.gate.release(10_000)
            fake.models.close()


class Caller:
    """One request without a client's buffering: what was sent so far can be seen, and the client may leave."""

    def __init__(
        self, app: Any, path: str, data: Any, *, method: str = "POST", headers: Any = (), query: bytes = b""
    ) -> None:
        self.body = b""
        self.status = 0
        self.done = False
        self._leaving = asyncio.Event()
        self._sent_body = False
        self._some = asyncio.Condition()
        self._data = json.dumps(data).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7243),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._leaving.set()

    async def until(self, when: Callable[[Caller], bool]) -> None:
        """Wait until something is true of what was sent."""
        async with self._some:
            await asyncio.wait_for(self._some.wait_for(lambda: when(self)), 10)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent_body:
            self._sent_body = True
            return {"type": "http.request", "body": self._data, "more_body": False}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        async with self._some:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            else:
                self.body += message.get("body", b"")
                self.done = not message.get("more_body", False)
            self._some.notify_all()


async def eventually(true: Callable[[], bool]) -> None:
    """Wait until the engine's thread has made something true."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became true")


def run(work: Awaitable[T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 30)

    return asyncio.run(limited())
