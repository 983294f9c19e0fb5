"""Replies that models of many families give, byte by byte through the server: what it is taught, and what it says.

A family's own template and parser stand in a server whose runner says given pieces, each as one token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from pagedrun.chat import ChatTemplates
from pagedrun.step import RunnerLimits
from tests.fakes import EOG, FakeVocab
from tests.server_fakes import Fake, fake_server

LIMITS = RunnerLimits(max_num_seqs=4, max_seq_len=32768, max_batch_tokens=32768)
_FIRST = 1000


class Pieces(FakeVocab):
    """Tokens whose text is what somebody wants it to be."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def learn(self, pieces: Sequence[bytes]) -> list[int]:
        self._pieces += pieces
        return list(range(_FIRST + len(self._pieces) - len(pieces), _FIRST + len(self._pieces)))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._pieces[token - _FIRST] if token >= _FIRST else super().piece(token, special=special)


@dataclass
class Said:
    """An answer, as a client puts it together. calls: (id, name, arguments)."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    reason: str | None = None

    @property
    def told(self) -> tuple[str, str, list[tuple[str, str]], str | None]:
        """All but the ids, which are drawn."""
        return self.content, self.reasoning, [(name, arguments) for _, name, arguments in self.calls], self.reason


class Taught:
    """A server that says what it is taught next."""

    def __init__(self, fake: Fake, vocab: Pieces) -> None:
        self._fake = fake
        self._vocab = vocab
        self.client: httpx.AsyncClient = fake.client()

    def teach(self, pieces: Sequence[bytes]) -> None:
        says = self._vocab.learn(pieces)
        self._fake.runner._answer = lambda tokens, n: says[len(tokens) - n] if len(tokens) - n < len(says) else EOG

    @property
    def grammar(self) -> str:
        """What the answer before was bound to."""
        return str(self._fake.request.grammar.text)

    async def post(self, path: str, data: dict[str, Any]) -> httpx.Response:
        answer = await self.client.post(path, json=data)
        assert answer.status_code == 200, answer.text
        return answer

    async def chat(self, data: dict[str, Any], pieces: Sequence[bytes]) -> Said:
        """/v1/chat/completions, streamed."""
        self.teach(pieces)
        said, begun = Said(), {}
        for event in _data(await self.post("/v1/chat/completions", {**data, "stream": True})):
            (choice,) = event["choices"]
            delta = choice["delta"]
            said.content += delta.get("content") or ""
            said.reasoning += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                index, function = call["index"], call["function"]
                assert (index in begun) != ("id" in call), "id and name come once, and first"
                if index not in begun:
                    assert index == len(said.calls) and call["type"] == "function"
                    begun[index] = call["id"]
                    said.calls.append((call["id"], function["name"], ""))
                known = said.calls[index]
                said.calls[index] = (known[0], known[1], known[2] + function["arguments"])
            assert said.reason is None, "nothing comes after the reason"
            said.reason = choice["finish_reason"]
        return said

    async def whole_chat(self, data: dict[str, Any], pieces: Sequence[bytes]) -> Said:
        self.teach(pieces)
        (choice,) = (await self.post("/v1/chat/completions", data)).json()["choices"]
        message = choice["message"]
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
        return Said(message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"])

    async def messages(self, data: dict[str, Any], pieces: Sequence[bytes]) -> Said:
        """Anthropic's, streamed; its reasons in OpenAI's words."""
        self.teach(pieces)
        said = Said()
        blocks: list[dict[str, Any]] = []
        for event in _data(await self.post("/v1/messages", {**_for_anthropic(data), "stream": True})):
            kind = event["type"]
            if kind == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "json": ""})
            elif kind == "content_block_delta":
                assert event["index"] == len(blocks) - 1
                block, delta = blocks[-1], event["delta"]
                block["json"] += delta.get("partial_json", "")
                for part in ("text", "thinking"):
                    if part in delta:
                        block[part] += delta[part]
            elif kind == "message_delta":
                said.reason = {"tool_use": "tool_calls", "end_turn": "stop"}[event["delta"]["stop_reason"]]
        said.content = "".join(b["text"] for b in blocks if b["type"] == "text")
        said.reasoning = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
        said.calls = [(b["id"], b["name"], b["json"]) for b in blocks if b["type"] == "tool_use"]
        return said

    async def responses(self, data: dict[str, Any], pieces: Sequence[bytes]) -> Said:
        """OpenAI's newer API, streamed."""
        self.teach(pieces)
        said = Said(reason="stop")
        for event in _data(await self.post("/v1/responses", {**_for_responses(data), "stream": True})):
            kind = event["type"]
            if kind == "response.output_text.delta":
                said.content += event["delta"]
            elif kind == "response.reasoning_text.delta":
                said.reasoning += event["delta"]
            elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
                said.calls.append((event["item"]["call_id"], event["item"]["name"], event["item"]["arguments"]))
            elif kind == "response.function_call_arguments.delta":
                call_id, name, arguments = said.calls[-1]
                said.calls[-1] = (call_id, name, arguments + event["delta"])
            elif kind == "response.function_call_arguments.done":
                assert event["arguments"] == said.calls[-1][2]
                said.reason = "tool_calls"
        return said


def _data(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _for_anthropic(data: dict[str, Any]) -> dict[str, Any]:
    functions = [tool["function"] for tool in data.get("tools", ())]
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
    choice = {"required": {"type": "any"}, "none": {"type": "none"}}.get(data.get("tool_choice", ""), {"type": "auto"})
    messages = [m for m in data["messages"] if m["role"] != "system"]
    return {"messages": messages, "max_tokens": 10_000, **({"tools": tools, "tool_choice": choice} if tools else {})}


def _for_responses(data: dict[str, Any]) -> dict[str, Any]:
    found = {"input": [m for m in data["messages"] if m["role"] != "system"], "store": False}
    if "tools" in data:
        found["tools"] = [{"type": "function", **tool["function"]} for tool in data["tools"]]
        found["tool_choice"] = data.get("tool_choice", "auto")
    return found


@contextmanager
def taught_server(templates: ChatTemplates) -> Iterator[Taught]:
    with fake_server("", LIMITS) as fake:
        vocab = Pieces()
        fake.serving.service.templates = templates
        fake.runner.vocab = vocab
        yield Taught(fake, vocab)
