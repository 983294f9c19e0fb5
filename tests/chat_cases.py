"""Conversations for many model families: what llama.cpp is asked when expectations are recorded
(scripts/record_chat_vectors.py), and what pagedrun is asked when it is compared with them (test_chat_families.py).

A case holds the request as llama.cpp's C++ sees it (`request`), and apart from that what pagedrun is asked
(`think`); nothing of pagedrun is involved in the recording.
"""

from __future__ import annotations

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 40}}, "required": ["n"]}'

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "How is the weather in Oslo?"}
TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi, what is it?"},
    {"role": "user", "content": "Nothing much"},
]
CALLED = [
    ASK,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "a1B2c3D4e",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a1B2c3D4e", "name": "get_weather", "content": "Rain"},
]
PARTIAL = {"role": "assistant", "content": "The weather is"}
FIXED_DATE = {"date_string": "26 Jul 2024", "datetime": "Jul 26 2024"}

_JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
_XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)


def family(template: str, *, bos: str = "<s>", eos: str = "</s>", **more: Any) -> dict[str, Any]:
    """thinking: replies that begin with thinking. calls: replies that end in a tool call.

    off and on: further template variables with which llama.cpp is told what `think` False and True mean; absent
    where the family has no such switch. history: whether the template takes tool calls of earlier turns.
    """
    return {"template": template, "bos": bos, "eos": eos, **more}


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2.5": family("Qwen-Qwen2.5-7B-Instruct", calls=[_JSON_CALL, "Let me look.\n" + _JSON_CALL], history=True),
    "qwen3": family(
        "Qwen-Qwen3-0.6B",
        thinking=["<think>\nOslo, a city.\n</think>\n\nIt rains.", "<think>\nnot yet done <b"],
        calls=["<think>\nI need the tool.\n</think>\n\n" + _JSON_CALL],
        off={},
        on={},
        history=True,
    ),
    "qwen3.5": family(
        "Qwen3.5-4B",
        thinking=["Oslo, a city.\n</think>\n\nIt rains."],
        calls=["I need the tool.\n</think>\n\n" + _XML_CALL],
        off={},
        on={},
        history=True,
    ),
    "qwen3-coder": family("Qwen3-Coder", calls=[_XML_CALL, "Let me look.\n" + _XML_CALL], history=True),
    "qwq": family("Qwen-QwQ-32B", thinking=["Oslo, a city.\n</think>\n\nIt rains."], history=True),
    "llama-3.1": family(
        "meta-llama-Llama-3.1-8B-Instruct",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        calls=['{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}'],
        history=True,
    ),
    "llama-3.3": family(
        "meta-llama-Llama-3.3-70B-Instruct",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        calls=['{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}'],
        history=True,
    ),
    "hermes-3": family("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", calls=[_JSON_CALL], history=True),
    "mistral-nemo": family(
        "mistralai-Mistral-Nemo-Instruct-2407",
        calls=['[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "123456789"}]'],
        history=True,
    ),
    "mistral-small-3.2": family(
        "Mistral-Small-3.2-24B-Instruct-2506",
        calls=['[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Oslo", "days": 2}'],
        history=True,
    ),
    "ministral-3": family(
        "mistralai-Ministral-3-14B-Reasoning-2512",
        thinking=["[THINK]Oslo, a city.[/THINK]It rains."],
        calls=['[THINK]I need the tool.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'],
        history=True,
    ),
    "gemma-2": family("google-gemma-2-2b-it", bos="<bos>", eos="<eos>"),
    "gemma-4": family(
        "google-gemma-4-31B-it",
        bos="<bos>",
        eos="<eos>",
        thinking=["<|channel>thought\nOslo, a city.<channel|>It rains."],
        calls=['<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>'],
        off={},
        on={},
        history=True,
    ),
    "gpt-oss": family(
        "openai-gpt-oss-120b",
        bos="<|startoftext|>",
        eos="<|return|>",
        thinking=["<|channel|>analysis<|message|>Oslo.<|end|><|start|>assistant<|channel|>final<|message|>It rains."],
        calls=[
            "<|channel|>analysis<|message|>Use it.<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}'
        ],
        history=True,
    ),
    "deepseek-r1-distill": family(
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        thinking=["Oslo, a city.\n</think>\n\nIt rains."],
        calls=[
            "I need it.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
            '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ],
        history=True,
    ),
    "deepseek-v3.1": family(
        "deepseek-ai-DeepSeek-V3.1",
        thinking=["Oslo, a city.</think>It rains."],
        calls=[
            "I need it.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ],
        off={"thinking": False},
        on={"thinking": True},
        history=True,
    ),
    "glm-4.6": family(
        "GLM-4.6",
        thinking=["\n<think>Oslo, a city.</think>\nIt rains."],
        calls=[
            "\n<think>Use it.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
        ],
        off={},
        on={},
        history=True,
    ),
    "granite-3.3": family(
        "ibm-granite-granite-3.3-2B-Instruct",
        thinking=["<think>Oslo, a city.</think><response>It rains.</response>"],
        off={"thinking": False},
        on={"thinking": True},
    ),
    "granite-4.0": family("ibm-granite-granite-4.0", calls=[_JSON_CALL], history=True),
    "smollm3": family(
        "HuggingFaceTB-SmolLM3-3B", thinking=["<think>\nOslo, a city.\n</think>\nIt rains."], off={}, on={}
    ),
    "seed-oss": family(
        "ByteDance-Seed-OSS",
        bos="<seed:bos>",
        eos="<seed:eos>",
        thinking=["<seed:think>Oslo, a city.</seed:think>It rains."],
        calls=[
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>"
        ],
        off={"thinking_budget": 0},
        on={},
        history=True,
    ),
    "minimax-m3": family(
        "MiniMax-M3",
        thinking=["<mm:think>Oslo, a city.</mm:think>It rains."],
        off={"thinking_mode": "disabled"},
        on={"thinking_mode": "enabled"},
    ),
    "kimi-k2": family(
        "Kimi-K2-Instruct",
        calls=[
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
            '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
        ],
        history=True,
    ),
    "kimi-k3": family("Kimi-K3", off={"thinking": False}, on={"thinking": True}),
    "hunyuan-3": family("tencent-Hy3", off={"reasoning_effort": "no_think"}, on={"reasoning_effort": "high"}),
    "cohere2-moe": family("Cohere2MoE", off={"reasoning": False}, on={"reasoning": True}),
    "nemotron-3": family(
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        thinking=["Oslo, a city.\n</think>\nIt rains."],
        calls=["I need it.\n</think>\n" + _XML_CALL],
        off={},
        on={},
        history=True,
    ),
    "lfm2": family(
        "LFM2-8B-A1B",
        thinking=["<think>Oslo, a city.</think>It rains."],
        calls=['<|tool_call_start|>[get_weather(city="Oslo", days=2)]<|tool_call_end|>'],
        history=True,
    ),
    "phi-3.5": family("microsoft-Phi-3.5-mini-instruct", eos="<|end|>"),
}

# (name, schema); each must become the grammar that llama.cpp makes of it, or be refused as it refuses it
SCHEMAS: tuple[tuple[str, str], ...] = (
    ("integer bounds", '{"type": "integer", "minimum": 3, "maximum": 17}'),
    ("exclusive bounds", '{"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 105}'),
    ("one-sided bound", '{"type": "integer", "minimum": 100}'),
    ("root $ref", '{"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "properties": {"x": {"type": "number"}}}}}'),
    ("recursive $ref", '{"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}'),
    ("unanchored pattern", '{"type": "string", "pattern": "[a-z]+[0-9]{2,3}"}'),
    ("anchored pattern", '{"type": "string", "pattern": "^(red|green)-[0-9]$"}'),
    ("enum", '{"enum": ["red", "green", 5, null, {"a": [1]}]}'),
    ("const", '{"const": "only this"}'),
    ("nested", '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties": '
     '{"b": {"type": "string", "minLength": 1, "maxLength": 4}}, "required": ["b"]}, "minItems": 1, "maxItems": 3}}, '
     '"required": ["a"], "additionalProperties": false}'),
    ("allOf", '{"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '
     '{"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}'),
    ("anyOf", '{"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}, {"enum": ["x", "y"]}]}'),
    ("type list", '{"type": ["string", "null"]}'),
    ("format", '{"type": "string", "format": "date"}'),
    ("any object", "{}"),
    ("tuple", '{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}'),
    ("unknown type", '{"type": "wat"}'),
    ("dangling $ref", '{"$ref": "#/$defs/nowhere"}'),
    ("not an object", "[]"),
)  # fmt: skip


def cases() -> list[dict[str, Any]]:
    """Every case: `{name, template, bos, eos, think, request, replies}`."""
    return [case for name, facts in FAMILIES.items() for case in _family_cases(name, facts)]


def _family_cases(name: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    thinking, calls = facts.get("thinking", []), facts.get("calls", [])
    base: dict[str, Any] = {"template_kwargs": FIXED_DATE}
    found = [
        ("plain", None, base | {"messages": [SYSTEM, ASK]}, ["It rains.", "{[ <not a tag> ]}", *thinking]),
        ("turns", None, base | {"messages": TURNS}, ["Hello again."]),
        ("no generation prompt", None, base | {"messages": TURNS[:2], "add_generation_prompt": False}, []),
        ("schema", None, base | {"messages": [ASK], "json_schema": SCHEMA}, ['{"n": 7}']),
        ("continued", None, base | {"messages": [ASK, PARTIAL], "continue_final_message": True}, [" grim."]),
    ]
    for think, key in ((False, "off"), (True, "on")):
        if key in facts:
            kwargs = FIXED_DATE | facts[key]
            request = {"messages": [ASK], "enable_thinking": think, "template_kwargs": kwargs}
            found.append((f"think {key}", think, request, ["It rains."]))
    if calls:
        request = base | {"messages": [SYSTEM, ASK], "tools": [WEATHER]}
        found.append(("tools", None, request, ["It rains.", *calls]))
        found.append(("tool required", None, request | {"tool_choice": "required"}, calls))
        found.append(("no tool", None, request | {"tool_choice": "none"}, ["It rains."]))
    if facts.get("history"):
        request = base | {"messages": CALLED, "tools": [WEATHER]}
        found.append(("tool answered", None, request, ["It rains."]))
    common = {key: facts[key] for key in ("template", "bos", "eos")}
    return [
        {"name": f"{name}: {title}", **common, "think": think, "request": request, "replies": replies}
        for title, think, request, replies in found
    ]
