"""The packages that people use, beyond test_server_real: asynchronous, tools in streams, their own parsing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from tests.live_server import Live, live_server

if TYPE_CHECKING:
    import openai

    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

MODEL = "smollm2"
ASK: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SECRET = "my-secret"


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def live(library: Library, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("server")
    args = ("--max-seq-len", "2048", "-t", "1", "--served-model-name", MODEL)
    with live_server(folder, str(smollm2), *args, CUDA_VISIBLE_DEVICES="") as live:
        yield live


def run_async(live: Live, work: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    import openai

    async def all_of_it() -> None:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
            await work(client)

    asyncio.run(all_of_it())


def test_tools_in_a_stream(live: Live) -> None:
    import openai

    async def work(client: openai.AsyncOpenAI) -> None:
        tool = openai.pydantic_function_tool(Weather, name="get_weather")
        ask: Any = {"model": MODEL, "messages": ASK, "tools": [tool], "tool_choice": "required", "max_tokens": 200}
        arguments, kinds = "", []
        async with client.chat.completions.stream(**ask, temperature=0, parallel_tool_calls=False) as stream:
            async for event in stream:
                kinds.append(event.type)
                if event.type == "tool_calls.function.arguments.delta":
                    arguments += event.arguments_delta
                    assert event.name == "get_weather"
            final = (await stream.get_final_completion()).choices[0]
        (call,) = final.message.tool_calls or ()
        assert kinds.count("tool_calls.function.arguments.delta") > 3
        assert "tool_calls.function.arguments.done" in kinds
        assert call.function.arguments == arguments and isinstance(call.function.parsed_arguments, Weather)
        assert final.finish_reason == "tool_calls" and call.id
        function = {"name": call.function.name, "arguments": call.function.arguments}
        asked = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        answered = [*ASK, asked, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
        answer = await client.chat.completions.create(**{**ask, "messages": answered, "tool_choice": "none"})
        assert answer.choices[0].message.content

    run_async(live, work)


def test_structured_answers(live: Live) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        ask: Any = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 100}
        parsed = await client.chat.completions.parse(**ask, response_format=Weather)
        assert isinstance(parsed.choices[0].message.parsed, Weather)
        async with client.chat.completions.stream(**ask, response_format=Weather) as stream:
            found = [event.parsed async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
        assert len(found) > 3 and isinstance(final.choices[0].message.parsed, Weather)
        response = await client.responses.parse(model=MODEL, input="Weather?", text_format=Weather, temperature=0)
        assert isinstance(response.output_parsed, Weather)
        plain = await client.chat.completions.create(**ask, response_format={"type": "json_object"})
        if plain.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(plain.choices[0].message.content or ""), dict)

    run_async(live, work)


def test_responses_with_tools_in_a_stream(live: Live) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
        ask: Any = {"model": MODEL, "tools": [tool], "tool_choice": "required", "temperature": 0}
        ask["parallel_tool_calls"] = False
        arguments = ""
        async with client.responses.stream(**ask, input="Weather in Rome?", max_output_tokens=200) as stream:
            async for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    arguments += event.delta
            final = await stream.get_final_response()
        call = final.output[-1]
        assert call.type == "function_call" and call.arguments == arguments
        assert json.loads(arguments)["city"] in ("Paris", "Rome") and 1 <= json.loads(arguments)["days"] <= 9
        done: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
        more = await client.responses.create(
            **{**ask, "tool_choice": "none"}, input=[done], previous_response_id=final.id, max_output_tokens=20
        )
        assert more.output_text

    run_async(live, work)


def test_the_anthropic_package_with_tools_in_a_stream(live: Live) -> None:
    import anthropic

    tool: Any = {"name": "get_weather", "description": "The weather", "input_schema": PARAMETERS}
    ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 200, "tools": [tool], "extra_body": {"temperature": 0}}

    choice: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}

    async def work() -> None:
        async with anthropic.AsyncAnthropic(base_url=live.url, api_key="any", max_retries=0) as client:
            parts: list[str] = []
            async with client.messages.stream(**ask, tool_choice=choice) as stream:
                async for event in stream:
                    if event.type == "input_json":
                        parts.append(event.partial_json)
                final = await stream.get_final_message()
            (use,) = final.content
            assert use.type == "tool_use" and final.stop_reason == "tool_use" and len(parts) > 3
            assert json.loads("".join(parts)) == use.input and use.input["city"] in ("Paris", "Rome")
            result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}
            turns = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
            async with client.messages.stream(**{**ask, "messages": turns, "max_tokens": 20},
                                              tool_choice={"type": "none"}) as stream:  # fmt: skip
                assert "".join([text async for text in stream.text_stream])

    asyncio.run(work())


@pytest.mark.parametrize(
    "more",
    [
        {"grammar": f'root ::= "{SECRET}'},
        {"grammar": f"root ::= {SECRET}"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": f"#/{SECRET}"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": SECRET}}}},
        {"stop": [SECRET], "max_tokens": 3},
        {"max_tokens": 10**9, "messages": [{"role": "user", "content": SECRET * 3000}]},
        {"chat_template_kwargs": {SECRET: SECRET}, "max_tokens": 3},
    ],
)
def test_what_llama_cpp_refuses_is_not_in_the_log_either(live: Live, more: dict[str, Any]) -> None:
    ask = {"messages": [{"role": "user", "content": SECRET}], **more}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=ask, timeout=120)
    assert answer.status_code in (200, 400), answer.text
    assert SECRET not in live.log and "Traceback" not in live.log
