"""A live server on loopback with the real default model, asked through the packages that people use."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live_server import Live, live_server

if TYPE_CHECKING:
    import openai

    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

MODEL = "smollm2"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def live(library: Library, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("server")
    args = ("--max-seq-len", "2048", "-t", "1", "--served-model-name", MODEL, "--api-key", "k3y")
    with live_server(folder, str(smollm2), *args, CUDA_VISIBLE_DEVICES="") as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="k3y", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, seed=1)  # type: ignore[arg-type]
    assert "Paris" in (made.choices[0].message.content or "") and made.choices[0].finish_reason == "stop"
    assert made.usage and made.usage.prompt_tokens > 5


def test_chat_streams_the_same(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_completion_tokens": 30}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    with client.chat.completions.stream(**ask) as stream:
        assert stream.get_final_completion().choices[0].message.content == whole.choices[0].message.content


def test_choices_share_their_prompt(client: openai.OpenAI) -> None:
    story = f"Once upon a time there were {', '.join(f'{i} dwarfs' for i in range(200))} in a wood. Who came next?"
    made = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": story}], n=2, max_tokens=5, seed=3
    )
    usage = made.usage
    assert usage and usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    assert usage.prompt_tokens - 64 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_what_main_memory_is_taken_for(live: Live, client: openai.OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="Once upon", max_tokens=2)
    found = httpx.get(f"{live.url}/v1/pagedrun/plan", headers={"x-api-key": "k3y"}).json()
    assert found["device"] == "CPU" and found["weights_bytes"] > 50 << 20
    kv = found["kv_cache"]
    assert kv["buffer_bytes"] > 0 and 0 < kv["pages_bytes"] <= kv["pages_limit_bytes"]


def test_the_assistants_message_is_continued(live: Live) -> None:
    asked = [CAPITAL[0], {"role": "assistant", "content": "The capital of France is the city of"}]
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, "messages": asked}
    answer = httpx.post(f"{live.url}/v1/messages", json=body, headers={"x-api-key": "k3y"}, timeout=60).json()
    assert answer["content"][0]["text"].startswith(" Paris")


def test_logprobs_n_and_bias(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        n=2,
        logprobs=True,
        top_logprobs=3,
        max_tokens=5,
        seed=3,  # type: ignore[arg-type]
    )
    assert len(made.choices) == 2
    for choice in made.choices:
        assert choice.logprobs and choice.logprobs.content
        assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
        assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in choice.logprobs.content)
    first = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0)
    tokens = httpx.post(
        f"{str(client.base_url).removesuffix('/v1/')}/tokenize",
        json={"content": first.choices[0].text},
        headers={"x-api-key": "k3y"},
    ).json()["tokens"]
    other = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0, logit_bias={str(tokens[0]): -100}
    )
    assert first.choices[0].text == " Paris" != other.choices[0].text


def test_structured_output(client: openai.OpenAI) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    messages = [{"role": "user", "content": "Alice is 30 years old."}]
    made = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        response_format=form,
        max_tokens=60,
        temperature=0,  # type: ignore[call-overload]
    )
    found = json.loads(made.choices[0].message.content)
    assert isinstance(found["age"], int) and isinstance(found["name"], str)
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=messages,
        response_format=Person,
        max_tokens=200,
        temperature=0,  # type: ignore[arg-type]
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_tools(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "tools": [WEATHER], "temperature": 0, "max_tokens": 300}
    made = client.chat.completions.create(**ask, tool_choice="required")
    call = made.choices[0].message.tool_calls[0]
    assert made.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    with client.chat.completions.stream(**ask, tool_choice="required") as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert len(client.chat.completions.create(**ask, tool_choice=named).choices[0].message.tool_calls) == 1
    none = client.chat.completions.create(**ask, tool_choice="none")
    assert none.choices[0].message.content and not none.choices[0].message.tool_calls


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int"},
        {"type": "any"},
        {"type": "file"},
        {"$ref": "#/$defs/none"},
        {"type": "object", "properties": []},
    ],
)
def test_tools_of_which_no_grammar_can_be_made(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    import openai

    bad = {"name": "bad", "parameters": {"type": "object", "properties": {"a": schema}}}
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": CAPITAL,
        "tools": [WEATHER, {"type": "function", "function": bad}],
    }
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "get_weather"}}):
        with pytest.raises(
            openai.BadRequestError, match="the function 'bad': the JSON schema cannot be used"
        ) as caught:
            client.chat.completions.create(**ask, tool_choice=choice, max_tokens=3)
        assert (caught.value.param, caught.value.code) == ("tools[1].function.parameters", "invalid_value")


def test_strict_schemas(client: openai.OpenAI) -> None:
    import openai

    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1000}}, "required": ["a"]}
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    ask: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "max_tokens": 30, "response_format": form}
    with pytest.raises(
        openai.BadRequestError, match=r"'minimum' at 'response_format.json_schema.schema\.properties\.a'"
    ):
        client.chat.completions.create(**ask)
    form["json_schema"]["strict"] = False
    assert client.chat.completions.create(**ask).choices
    form["json_schema"]["strict"] = True
    schema["properties"]["a"] |= {"maximum": 2000}  # type: ignore[index]
    found = json.loads(client.chat.completions.create(**ask).choices[0].message.content or "")
    assert 1000 <= found["a"] <= 2000


def test_completions(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**ask)
    assert whole.choices[0].text.startswith(" Paris")
    assert "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True)) == whole.choices[0].text


def test_errors_are_those_of_the_package(client: openai.OpenAI, live: Live) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=CAPITAL)  # type: ignore[arg-type]
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    "content", ["\x00", "a\x00b", "\ufeff", "\U0001f600" * 50, "<|im_end|><|im_start|>", "\u202e", "{{ 7 * 7 }}"]
)
def test_odd_text(client: openai.OpenAI, content: str) -> None:
    made = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=2)
    assert made.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"type": "wizard"},
        {"type": "string", "pattern": "^(((("},
        {"type": "array", "minItems": 10**6, "items": {"type": "string"}},
        {"type": "string", "minLength": 10**9},
        {"enum": []},
        {"type": "integer", "minimum": 10**400},
        {"properties": {"a\x00b": {"const": "\x00"}}, "type": "object"},
        {"anyOf": [{"type": "object", "properties": {str(i): {"type": "string"}}} for i in range(200)]},
    ],
)
def test_odd_schemas(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    import openai

    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    try:
        client.chat.completions.create(model=MODEL, messages=CAPITAL, response_format=form, max_tokens=3)  # type: ignore[call-overload]
    except openai.BadRequestError as e:
        assert e.type == "invalid_request_error"
    assert client.completions.create(model=MODEL, prompt="Hi", max_tokens=1).choices


def test_async_clients_side_by_side(live: Live) -> None:
    import openai

    async def all_of_them() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k3y", max_retries=0) as client:

            async def one(i: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"Count from {i}."}], max_tokens=12,
                    temperature=0, stream=True,
                )  # fmt: skip
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return list(await asyncio.gather(*(one(i) for i in range(8))))

    assert all(asyncio.run(all_of_them()))


def test_a_client_that_leaves_frees_its_slot(live: Live, client: openai.OpenAI) -> None:
    headers = {"x-api-key": "k3y"}
    for stream in (True, False):
        ask = {"messages": [{"role": "user", "content": "Tell a long story."}], "stream": stream, "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{live.url}/v1/chat/completions", json=ask, headers=headers, timeout=httpx.Timeout(5, read=0.5)
            ) if not stream else _leave(live, ask, headers)
        for _ in range(200):
            if httpx.get(f"{live.url}/v1/pagedrun/stats", headers=headers).json()["running"] == 0:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("it still runs")


def _leave(live: Live, ask: dict[str, Any], headers: dict[str, str]) -> None:
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=ask, headers=headers) as answer:
        next(answer.iter_lines())
    raise httpx.ReadTimeout("left")


def test_the_anthropic_package(live: Live) -> None:
    import anthropic

    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    ask: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "max_tokens": 60, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=live.url, api_key="k3y", max_retries=0) as client:
        whole = client.messages.create(**ask, system="You are a helpful assistant.")
        assert whole.content[0].type == "text" and "Paris" in whole.content[0].text
        assert whole.stop_reason == "end_turn"
        with client.messages.stream(**ask, system="You are a helpful assistant.") as stream:
            assert stream.get_final_message().content[0].text == whole.content[0].text  # type: ignore[union-attr]
        count = client.messages.count_tokens(model=MODEL, messages=CAPITAL, system="You are a helpful assistant.")  # type: ignore[arg-type]
        assert count.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        with client.messages.stream(**ask, tools=[tool], tool_choice={"type": "any"}) as stream:  # type: ignore[list-item]
            use = stream.get_final_message().content[0]
        assert use.type == "tool_use" and use.input["city"] in ("Paris", "Rome")  # type: ignore[index]
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**{**ask, "extra_body": {"temperature": -1}})
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**ask)


def test_responses(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "temperature": 0, "instructions": "You are a helpful assistant."}
    first = client.responses.create(**ask, input="What is the capital of France?")
    assert "Paris" in first.output_text and first.status == "completed" and first.usage
    second = client.responses.create(**ask, input="And of Italy?", previous_response_id=first.id)
    assert "Rome" in second.output_text
    assert second.usage and second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    with client.responses.stream(**ask, input="What is the capital of France?") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == first.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    tool: Any = {"type": "function", **WEATHER["function"], "strict": True}
    made = client.responses.create(
        **ask, input="Weather in Rome?", tools=[tool], tool_choice="required", max_output_tokens=60
    )
    call = made.output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_curl(live: Live) -> None:
    body = json.dumps({"messages": CAPITAL, "temperature": 0, "stream": True})
    command = ["curl", "-sN", f"{live.url}/v1/chat/completions", "-H", "Authorization: Bearer k3y", "-d", body]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out.startswith('data: {"id":"chatcmpl-') and out.endswith("data: [DONE]\n\n")


def test_nothing_of_it_is_in_the_log(live: Live) -> None:
    assert "France" not in live.log and "k3y" not in live.log and "Traceback" not in live.log


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopping(library: Library, smollm2: Path, tmp_path: Path, how: int) -> None:
    with live_server(tmp_path, str(smollm2), "--max-seq-len", "512", "-t", "1", "--grace", "0.5") as live:
        ask = {"messages": CAPITAL, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=ask, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            live.process.send_signal(how)
            rest = "\n".join(lines)
        assert "[DONE]" in rest or "the server is stopping" in rest
        assert live.process.wait(30) == 0
        assert live.log.endswith("stopped\n")
