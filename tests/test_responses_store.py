"""Responses that outlive the server, over the fake runner."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pagedrun.chat import Message, ToolCall
from pagedrun.server import responses_store
from pagedrun.server.errors import ApiError
from pagedrun.server.responses_store import Responses
from tests.server_fakes import Fake, fake_server

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SAYS = '<think>hm</think>I look.<call>look {"at": "sky"}</call>'
ID = "resp_" + "0" * 32


def ask(fake: Fake, **fields: Any) -> Any:
    answer = fake.post("/v1/responses", {"model": "fake", "input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def written(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*"))


def response(number: int) -> dict[str, Any]:
    return {"id": f"resp_{number:032x}"}


def test_a_later_server_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "responses"
    with fake_server(SAYS, responses=folder, keys=("k3y",)) as fake:
        fake.headers = {"x-api-key": "k3y"}
        first = ask(fake, tools=[TOOL], instructions="First.")
    assert written(folder) == [first["id"]]
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and "k3y" not in file.read_text()
    with fake_server(SAYS, responses=folder) as fake:
        path = f"/v1/responses/{first['id']}"
        assert fake.call("GET", path).json() == first
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
        ask(fake, input=[result], previous_response_id=first["id"], tools=[TOOL])
        assert fake.messages == (
            Message("user", "hi"),
            Message("assistant", "I look.", "hm", (ToolCall(call["call_id"], "look", '{"at": "sky"}'),)),
            Message("tool", "blue", tool_call_id=call["call_id"]),
        )
        assert fake.call("DELETE", path).json()["deleted"] is True
        assert not file.exists() and fake.call("GET", path).status_code == 404
        assert fake.call("DELETE", path).status_code == 404


def test_what_is_not_to_be_stored_is_not(tmp_path: Path) -> None:
    with fake_server(responses=tmp_path) as fake:
        ask(fake, store=False)
    assert not written(tmp_path)


def test_the_input_as_items(tmp_path: Path) -> None:
    with fake_server(SAYS, responses=tmp_path) as fake:
        first = ask(fake, tools=[TOOL])
        call = first["output"][-1]["call_id"]
        result = {"type": "function_call_output", "call_id": call, "output": "blue"}
        second = ask(fake, input=[result], previous_response_id=first["id"], tools=[TOOL])
        path = f"/v1/responses/{second['id']}/input_items"
        found = fake.call("GET", path, params={"order": "asc"}).json()
        kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
        assert [item["type"] for item in found["data"]] == kinds and not found["has_more"]
        assert found["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
        assert found["data"][3]["call_id"] == call and found["data"][4]["output"] == "blue"
        again = fake.call("GET", path, params={"limit": "2"}).json()
        assert [again["first_id"], again["last_id"]] == [found["data"][i]["id"] for i in (4, 3)] and again["has_more"]
        rest = fake.call("GET", path, params={"after": again["last_id"], "limit": "100"}).json()
        assert [item["id"] for item in rest["data"]] == [found["data"][i]["id"] for i in (2, 1, 0)]
        assert rest["has_more"] is False
        for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "x"}, {"what": "x"}):
            refused = fake.call("GET", path, params=wrong)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == next(iter(wrong))
        assert fake.call("GET", f"/v1/responses/{ID}/input_items").status_code == 404


@pytest.mark.parametrize(
    "data",
    [
        "", "{", "[]", "null", '{"version": 2}', "\x80", "[" * 100_000,
        json.dumps({"version": 1, "response": {"id": "resp_other"}, "messages": []}),
        json.dumps({"version": 1, "response": {"id": ID}, "messages": [{"what": "x"}]}),
        json.dumps({"version": 1, "response": {"id": ID}, "messages": [{"role": "user", "content": 7}]}),
        json.dumps({"version": 1, "response": {"id": ID}, "messages": ["x"]}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored(data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"{ID}.json").write_bytes(data.encode("latin-1"))
    with fake_server(responses=tmp_path) as fake, caplog.at_level(logging.WARNING):
        gone = fake.post("/v1/responses", {"input": "x", "previous_response_id": ID})
        assert gone.status_code == 400 and gone.json()["error"]["code"] == "previous_response_not_found"
        assert f"{ID}.json is not used" in caplog.text
        assert fake.chat().status_code == 200


@pytest.mark.parametrize("name", ["../secret", "resp_..", "resp_" + "g" * 32, "", "x" * 300])
def test_a_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    with pytest.raises(ApiError):
        Responses(tmp_path / "responses").get(name)


def test_the_oldest_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "_MOST", 2)
    old = tmp_path / ".resp_1.abc.new"
    old.write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    for number in range(4):
        store = Responses(tmp_path)
        store.add(response(number), (Message("user", "x"),))
        store.close()
        file = tmp_path / f"{response(number)['id']}.json"
        os.utime(file, ns=(number, number))
    assert written(tmp_path) == [response(n)["id"] for n in (2, 3)]
    monkeypatch.setattr(responses_store, "_MOST_BYTES", 10)
    store = Responses(tmp_path)
    store.add(response(9), (Message("user", "x" * 100),))
    store.close()
    assert written(tmp_path) == [response(9)["id"]]  # one that is too large stays alone


def test_without_a_disk_they_are_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with fake_server(responses=tmp_path / "file" / "below") as fake, caplog.at_level(logging.WARNING):
        first = ask(fake)
        assert ask(fake, previous_response_id=first["id"])["previous_response_id"] == first["id"]
        assert fake.call("DELETE", f"/v1/responses/{first['id']}").status_code == 200
        assert fake.call("GET", f"/v1/responses/{first['id']}").status_code == 404
    assert caplog.text.count("in memory only") == 1
