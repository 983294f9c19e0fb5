"""/v1/chat/completions over the fake runner: what fields do, and the shapes of what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedrun.chat import Message, ToolCall
from tests.server_fakes import TOOL, fake_server


def test_a_whole_answer_has_openais_shape() -> None:
    with fake_server() as fake:
        answer = fake.chat().json()
        assert answer["object"] == "chat.completion" and answer["model"] == "fake"
        assert answer["id"].startswith("chatcmpl-") and isinstance(answer["created"], int)
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 7, 15)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert {"prompt_ms", "predicted_ms", "cache_n", "queued_ms"} <= answer["timings"].keys()
        assert fake.chat().json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 7


def test_a_stream_is_the_same_in_chunks() -> None:
    with fake_server() as fake:
        *chunks, done = fake.events()
        assert done == "[DONE]"
        assert {c["object"] for c in chunks} == {"chat.completion.chunk"} and len({c["id"] for c in chunks}) == 1
        assert all("usage" not in c for c in chunks)
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(d.get("content", "") for d in deltas) == "Hello!"
        reasons = [c["choices"][0]["finish_reason"] for c in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["stop"]
        assert deltas[-1] == {} and chunks[-1]["timings"]["predicted_n"] == 7


def test_a_stream_ends_with_usage_when_it_is_asked_for() -> None:
    with fake_server() as fake:
        *chunks, last, _ = fake.events(stream_options={"include_usage": True})
        assert last["choices"] == [] and last["usage"]["total_tokens"] == 15
        assert all(c["usage"] is None for c in chunks)


def test_thinking_is_apart_from_content() -> None:
    with fake_server("<think>hmm < 3</think>Hi <b>") as fake:
        choice = fake.chat().json()["choices"][0]
        assert choice["message"] == {
            "role": "assistant", "content": "Hi <b>", "refusal": None, "reasoning_content": "hmm < 3",
        }  # fmt: skip
        *chunks, _ = fake.events()
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hmm < 3"
        assert "".join(d.get("content", "") for d in deltas) == "Hi <b>"
        assert fake.chat().json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 22


def test_tool_calls_as_a_whole_and_in_deltas() -> None:
    with fake_server('I look.<call>look {"at": "sky"}</call><call>look {}</call>') as fake:
        choice = fake.chat(tools=[TOOL]).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I look."
        first, second = choice["message"]["tool_calls"]
        assert first["type"] == "function" and first["id"] != second["id"]
        assert first["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
        *chunks, _ = fake.events(tools=[TOOL])
        deltas = [d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", ())]
        heads = [d for d in deltas if "id" in d]
        assert [(d["index"], d["type"], d["function"]["name"]) for d in heads] == [
            (0, "function", "look"),
            (1, "function", "look"),
        ]
        arguments = ["".join(d["function"]["arguments"] for d in deltas if d["index"] == i) for i in (0, 1)]
        assert [json.loads(a) for a in arguments] == [{"at": "sky"}, {}]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_message_that_only_calls_has_no_content() -> None:
    with fake_server("<call>look {}</call>") as fake:
        assert fake.chat(tools=[TOOL]).json()["choices"][0]["message"]["content"] is None


def test_several_choices_have_seeds_of_their_own() -> None:
    with fake_server() as fake:
        answer = fake.chat(n=3, seed=7).json()
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
        assert sorted(r.sampling.seed for r in fake.runner.got) == [7, 8, 9]
        assert answer["usage"]["prompt_tokens"] == 8 and answer["usage"]["completion_tokens"] == 21
        assert "timings" not in answer and all("timings" in c for c in answer["choices"])
        *chunks, _ = fake.events(n=2)
        texts = ["".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == i)
                 for i in (0, 1)]  # fmt: skip
        assert texts == ["Hello!", "Hello!"]


def test_stop_strings_and_lengths() -> None:
    with fake_server("Hello there") as fake:
        assert fake.chat(stop="the").json()["choices"][0]["message"]["content"] == "Hello "
        assert fake.chat(stop=["xx", "lo"]).json()["choices"][0]["message"]["content"] == "Hel"
        cut = fake.chat(max_tokens=3).json()["choices"][0]
        assert cut["finish_reason"] == "length" and cut["message"]["content"] == "Hel"
        assert fake.chat(max_completion_tokens=5).json()["usage"]["completion_tokens"] == 5
        assert fake.request.stop == ("<stop>",)


def test_logprobs_are_of_the_content_only() -> None:
    with fake_server("<think>no</think>yes") as fake:
        choice = fake.chat(logprobs=True, top_logprobs=2).json()["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert "".join(t["token"] for t in tokens) == "yes"
        assert tokens[0] == {"token": "y", "logprob": -0.5, "bytes": [121], "top_logprobs": []}
        assert fake.request.logprobs == 2
        *chunks, _ = fake.events(logprobs=True)
        found = [t["token"] for c in chunks for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert "".join(found) == "yes"


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"temperature": 0}, "temperature", 0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": -1}, "top_k", 0),
        ({"repetition_penalty": 1.1}, "repeat_penalty", 1.1),
        ({"presence_penalty": 1}, "presence_penalty", 1),
        ({"logit_bias": {"5": -100, "6": 1.5}}, "logit_bias", ((5, float("-inf")), (6, 1.5))),
        ({"seed": -1}, "seed", 2**32 - 2),
        ({"seed": 2**62}, "seed", 2**62 % (2**32 - 1)),
    ],
)
def test_sampling_arrives(given: dict[str, Any], name: str, value: Any) -> None:
    with fake_server() as fake:
        assert fake.chat(**given).status_code == 200
        assert getattr(fake.request.sampling, name) == value


def test_a_seed_is_drawn_for_each_request() -> None:
    with fake_server() as fake:
        fake.chat()
        fake.chat()
        first, second = (r.sampling.seed for r in fake.runner.got)
        assert first != second


def test_messages_of_all_roles() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}, "index": 0}
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "well", "refusal": None},
        {"role": "tool", "tool_call_id": "a", "content": "blue"},
    ]
    with fake_server() as fake:
        assert fake.chat(messages=messages).status_code == 200
        assert fake.messages == (
            Message("system", "Be kind."),
            Message("user", "a\nb", name="Ann"),
            Message("assistant", reasoning="well", tool_calls=(ToolCall("a", "look", '{"x":1}'),)),
            Message("tool", "blue", tool_call_id="a"),
        )


def test_what_is_harmless_is_accepted() -> None:
    extra = {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": None,
             "parallel_tool_calls": True, "modalities": ["text"], "logit_bias": None, "tools": None}  # fmt: skip
    with fake_server() as fake:
        assert fake.chat(**extra).status_code == 200


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ["look", "hear"]),
        ("none", "none", ["look", "hear"]),
        ("required", "required", ["look", "hear"]),
        ({"type": "function", "function": {"name": "hear"}}, "required", ["hear"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
            },
            "auto",
            ["look"],
        ),
    ],
)
def test_tool_choice(choice: Any, mode: str, names: list[str]) -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "hear", "description": "Listen.", "strict": True}}]
    with fake_server() as fake:
        assert fake.chat(tools=tools, tool_choice=choice).status_code == 200
        assert fake.options.tool_choice == mode
        assert [tool["function"]["name"] for tool in fake.options.tools] == names
        assert fake.options.parallel_tool_calls is ("function" not in (choice or {}))  # a named one is called once


def test_response_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with fake_server("{}") as fake:
        fake.chat(response_format={"type": "text"})
        assert fake.options.json_schema is None
        fake.chat(response_format={"type": "json_object"})
        assert json.loads(fake.options.json_schema or "") == {"type": "object"}
        form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}
        fake.chat(response_format=form)
        assert json.loads(fake.options.json_schema or "") == schema
        fake.chat(grammar='root ::= "a"')
        assert fake.request.grammar.text == 'root ::= "a"'


def test_a_schema_and_tools() -> None:
    form = {"type": "json_object"}
    with fake_server("<call>look {}</call>") as fake:
        assert fake.chat(response_format=form, tools=[TOOL], tool_choice="required").status_code == 200
        assert fake.options.json_schema is None and fake.options.tools
        assert fake.chat(response_format=form, tools=[TOOL], tool_choice="none").status_code == 200
        assert fake.options.json_schema is not None
        assert fake.chat(response_format=form, tools=[TOOL]).json()["error"]["param"] == "tools"


def test_how_much_is_thought() -> None:
    with fake_server() as fake:
        fake.chat(reasoning_effort="none")
        assert fake.options.think is False
        fake.chat(reasoning_effort="low")
        assert fake.options.think is True and fake.options.reasoning_budget == 1024
        fake.chat(reasoning_effort="high", thinking_budget_tokens=5)
        assert fake.options.reasoning_budget == 5
        fake.chat(chat_template_kwargs={"enable_thinking": False, "tone": "dry"})
        assert fake.options.think is False and fake.options.template_kwargs == {"tone": "dry"}
        fake.templates.source = "{{ reasoning_effort }}"
        fake.chat(reasoning_effort="medium")
        assert fake.options.template_kwargs == {"reasoning_effort": "medium"}
        fake.chat(enable_thinking=False)
        assert fake.options.think is False and fake.options.template_kwargs == {}
        error = fake.chat(enable_thinking=False, chat_template_kwargs={"enable_thinking": True}).json()["error"]
        assert error["param"] == "enable_thinking" and "differ" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"enable_thinking": True}, "enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"thinking_budget_tokens": 1}, "thinking_budget_tokens"),
    ],
)
def test_a_model_that_cannot_think_refuses_to_by_name(fields: dict[str, Any], param: str) -> None:
    with fake_server() as fake:
        fake.templates.supports_thinking = False
        error = fake.chat(**fields).json()["error"]
        assert error["param"] == param and error["code"] == "unsupported_parameter"
        assert f"'{param}' is not supported: the model 'fake' does not think" in error["message"]
        assert "Leave the field out" in error["message"] and not fake.runner.got
        fake.templates.source = "{% if x %}</think>{% endif %}"
        assert fake.chat(**fields).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"reasoning_effort": None},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"thinking_budget_tokens": 0},
    ],
)
def test_what_does_not_think_anyway_may_be_told_not_to(fields: dict[str, Any]) -> None:
    with fake_server() as fake:
        fake.templates.supports_thinking = False
        assert fake.chat(**fields).status_code == 200


def test_priority_reaches_the_scheduler() -> None:
    with fake_server() as fake:
        fake.chat(priority=-3)
        assert fake.request.priority == -3
        fake.post("/v1/completions", {"prompt": "x", "priority": 2, "n": 2})
        assert [request.priority for request in fake.runner.got[-2:]] == [2, 2]
        fake.post("/v1/responses", {"input": "x", "priority": 1})
        assert fake.request.priority == 1
        fake.chat()
        assert fake.request.priority == 0
        assert fake.chat(priority=1.5).json()["error"]["param"] == "priority"
        assert fake.chat(priority=2**31).json()["error"]["param"] == "priority"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_variables_that_the_server_sets_are_refused_by_name(name: str) -> None:
    with fake_server() as fake:
        answer = fake.chat(chat_template_kwargs={"mine": 1, name: []})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"chat_template_kwargs.{name}"
        assert fake.chat(chat_template_kwargs={"mine": 1}).status_code == 200


def test_the_last_message_can_be_continued() -> None:
    with fake_server() as fake:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]
        fake.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
        assert fake.options.continue_final_message and fake.options.add_generation_prompt


def test_a_servers_own_system_prompt_and_thinking() -> None:
    with fake_server(system="Be brief.", think=False, sampling_for=lambda think: {"top_k": 3}) as fake:
        fake.chat(top_p=0.3)
        assert fake.messages[0] == Message("system", "Be brief.") and fake.options.think is False
        assert fake.request.sampling.top_k == 3 and fake.request.sampling.top_p == 0.3
        fake.chat(messages=[{"role": "system", "content": "No."}, {"role": "user", "content": "hi"}], top_k=9)
        assert [m.content for m in fake.messages] == ["No.", "hi"] and fake.request.sampling.top_k == 9


def test_a_model_that_is_not_served() -> None:
    with fake_server(names=("fake", "gpt-4o")) as fake:
        assert fake.chat(model="gpt-4o").json()["model"] == "fake"
        answer = fake.chat(model="gpt-5")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
        assert fake.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).status_code == 200
