"""Tools for templates that know none: a beginning that writes them into the messages, before the template's own text.

Tools and calls are written as Hermes models write them. llama.cpp looks at what a template makes of tools and calls to
learn how to read them back, and so it makes the grammar and the parser for this form as for any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_INTRODUCTION = (
    "# Tools\\n\\nYou may call one or more functions to help with the user query. "
    "Function signatures are within <tools></tools> tags:\\n<tools>"
)
_FORM = (
    "\\n</tools>\\n\\nFor each function call, return a JSON object with its name and arguments within "
    "<tool_call></tool_call> tags:\\n<tool_call>\\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'
)

_TOOLS = """
{%- set told = namespace(tools='') -%}
{%- if tools -%}
  {%- set told.tools = 'INTRODUCTION' -%}
  {%- for tool in tools -%}{%- set told.tools = told.tools + '\\n' + (tool | tojson) -%}{%- endfor -%}
  {%- set told.tools = told.tools + 'FORM' -%}
{%- endif -%}
"""

_MESSAGES = """
{%- set plain = namespace(messages=[], after_tool=false) -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' and message.tool_calls -%}
    {%- set said = namespace(text=message.content or '') -%}
    {%- for call in message.tool_calls -%}
      {%- set given = call.function.arguments -%}
      {%- set given = given if given is string else (given | tojson) -%}
      {%- set said.text = said.text + ('\\n' if said.text else '') + '<tool_call>\\n{"name": "' + call.function.name
        + '", "arguments": ' + given + '}\\n</tool_call>' -%}
    {%- endfor -%}
    {%- set plain.messages = plain.messages + [{'role': 'assistant', 'content': said.text}] -%}
  {%- elif message.role == 'tool' -%}
    {%- set answer = '<tool_response>\\n' + message.content + '\\n</tool_response>' -%}
    {%- if plain.after_tool -%}
      {%- set last = plain.messages[-1].content -%}
      {%- set plain.messages = plain.messages[:-1] + [{'role': 'user', 'content': last + '\\n' + answer}] -%}
    {%- else -%}
      {%- set plain.messages = plain.messages + [{'role': 'user', 'content': answer}] -%}
    {%- endif -%}
  {%- else -%}
    {%- set plain.messages = plain.messages + [message] -%}
  {%- endif -%}
  {%- set plain.after_tool = message.role == 'tool' -%}
{%- endfor -%}
{%- set messages = plain.messages -%}
"""

_INTO_FIRST = """
{%- if tools and messages and messages[0].role == 'FIRST' -%}
  {%- set messages = [{'role': 'FIRST', 'content': JOINED}] + messages[1:] -%}
{%- elif tools -%}
  {%- set messages = [{'role': 'FIRST', 'content': told.tools}] + messages -%}
{%- endif -%}
"""


def with_tools(source: str, *, system_role: bool) -> str:
    """The template, with tools. system_role: whether it has one; else the first message of the user has the tools."""
    first, joined = "user", "told.tools + '\\n\\n' + messages[0].content"
    if system_role:
        first, joined = "system", "messages[0].content + '\\n\\n' + told.tools"
    tools = _TOOLS.replace("INTRODUCTION", _INTRODUCTION).replace("FORM", _FORM)
    into = _INTO_FIRST.replace("FIRST", first).replace("JOINED", joined)
    return (tools + _MESSAGES + into).strip() + source


def without_preamble(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `apply` answered, with a grammar that begins with a call where there has to be one.

    llama.cpp's lets text come first, and a model that has not learned to call never ends it.
    """
    if inputs.get("tool_choice") != "required":
        return params
    grammar = re.sub(r"^(root ::= .*?)until-\d+\? (?=tool-call)", r"\1", params["grammar"], flags=re.MULTILINE)
    return {**params, "grammar": grammar}
