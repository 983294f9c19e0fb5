"""/v1/responses over the fake runner."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedrun.chat import Message, ToolCall
from pagedrun.server import responses_store
from tests.server_fakes import Fake, fake_server

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SAYS = '<think>hm</think>I look.<call>look {"at": "sky"}</call>'


def ask(fake: Fake, **fields: Any) -> Any:
    answer = fake.post("/v1/responses", {"model": "fake", "input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(fake: Fake, **fields: Any) -> list[dict[str, Any]]:
    text = fake.post("/v1/responses", {"input": "hi", "stream": True, **fields}).text
    events = [part.split("\n") for part in text.split("\n\n") if part.startswith("event: ")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [head.removeprefix("event: ") for head, _ in events] == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_response() -> None:
    with fake_server() as fake:
        answer = ask(fake, instructions="Be kind.", metadata={"a": "b"}, max_output_tokens=50)
        assert answer["object"] == "response" and answer["status"] == "completed" and answer["error"] is None
        (item,) = answer["output"]
        assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
        assert item["content"] == [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}]
        assert answer["usage"]["output_tokens"] == 7 and answer["metadata"] == {"a": "b"}
        assert fake.messages == (Message("system", "Be kind."), Message("user", "hi"))
        cut = ask(fake, max_output_tokens=2)
        assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
        assert cut["output"][0]["status"] == "incomplete"


def test_only_the_last_item_is_incomplete() -> None:
    with fake_server(SAYS) as fake:
        for n, says in ((25, ["incomplete"]), (45, ["completed", "incomplete"]), (90, ["completed", "completed"])):
            whole = ask(fake, tools=[TOOL], max_output_tokens=n)
            streamed = stream(fake, tools=[TOOL], max_output_tokens=n)
            done = [e["item"] for e in streamed if e["type"] == "response.output_item.done"]
            for items in (whole["output"], done, streamed[-1]["response"]["output"]):
                assert [item["status"] for item in items if "status" in item] == says


def test_items_as_a_whole_and_as_events() -> None:
    with fake_server(SAYS) as fake:
        whole = ask(fake, tools=[TOOL])["output"]
        assert [item["type"] for item in whole] == ["reasoning", "message", "function_call"]
        assert whole[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert whole[2]["name"] == "look" and json.loads(whole[2]["arguments"]) == {"at": "sky"}
        events = stream(fake, tools=[TOOL])
        kinds = [event["type"] for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert (
            [i["id"] for i in added] == [i["id"] for i in done] == [i["id"] for i in events[-1]["response"]["output"]]
        )
        for kind, text in (("reasoning_text", "hm"), ("output_text", "I look."), ("function_call_arguments", None)):
            delta = "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")
            (end,) = (e for e in events if e["type"] == f"response.{kind}.done")
            assert delta == end.get("text", end.get("arguments")) and text in (delta, None)
        assert [{**i, "id": 0, "call_id": 0} for i in done] == [{**i, "id": 0, "call_id": 0} for i in whole]


def test_going_on_from_an_earlier_one() -> None:
    with fake_server(SAYS) as fake:
        first = ask(fake, tools=[TOOL], instructions="First.")
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
        ask(fake, input=[result], previous_response_id=first["id"], tools=[TOOL])
        assert fake.messages == (
            Message("user", "hi"),
            Message("assistant", "I look.", "hm", (ToolCall(call["call_id"], "look", '{"at": "sky"}'),)),
            Message("tool", "blue", tool_call_id=call["call_id"]),
        )
        path = f"/v1/responses/{first['id']}"
        assert fake.call("GET", path).json() == first
        assert fake.call("DELETE", path).json()["deleted"] is True
        assert fake.call("GET", path).status_code == 404
        gone = fake.post("/v1/responses", {"input": "x", "previous_response_id": first["id"]})
        assert gone.status_code == 400 and gone.json()["error"]["param"] == "previous_response_id"
        assert fake.call("GET", f"/v1/responses/{ask(fake, store=False)['id']}").status_code == 404


def test_a_whole_conversation_as_items() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "well"}]},
        {"type": "message", "role": "assistant", "status": "completed", "id": "m",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "blue"}]},
    ]  # fmt: skip
    with fake_server() as fake:
        ask(fake, input=items)
        assert fake.messages == (
            Message("system", "Be kind."),
            Message("user", "a\nb"),
            Message("assistant", "I look.", "well", (ToolCall("c", "look", "{}"),)),
            Message("tool", "blue", tool_call_id="c"),
        )


def test_forms_effort_and_logprobs() -> None:
    with fake_server() as fake:
        ask(fake, text={"format": {"type": "json_schema", "name": "s", "schema": {"type": "array"}}})
        assert json.loads(fake.options.json_schema or "") == {"type": "array"}
        ask(fake, reasoning={"effort": "none"})
        assert fake.options.think is False
        fake.templates.supports_thinking = False
        told = fake.post("/v1/responses", {"input": "x", "reasoning": {"effort": "low"}}).json()["error"]
        assert told["param"] == "reasoning.effort"
        fake.templates.supports_thinking = True
        answer = ask(fake, include=["message.output_text.logprobs"], top_logprobs=2)
        tokens = answer["output"][0]["content"][0]["logprobs"]
        assert "".join(t["token"] for t in tokens) == "Hello!" and fake.request.logprobs == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "["}]}, "input[0].arguments"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "hear"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_refusals(fields: dict[str, Any], param: str) -> None:
    with fake_server() as fake:
        answer = fake.post("/v1/responses", {"input": "hi", **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "_MOST", 2)
    with fake_server() as fake:
        ids = [ask(fake)["id"] for _ in range(3)]
        assert [fake.call("GET", f"/v1/responses/{i}").status_code for i in ids] == [404, 200, 200]
