"""The second template engine: sandboxed jinja2, where llama.cpp's own cannot run a template that jinja2 can.

It only renders. Replies are split at <think> tags, tools reach the template but their calls are not parsed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pagedrun.errors import TemplateError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_OPEN, _CLOSE = "<think>", "</think>"


class JinjaTemplate:
    """A template under jinja2; a `TemplateDoor`.

    facts: `{source, bos, eos, add_bos}`. Raises TemplateError, with the line, when jinja2 refuses it as well.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        from jinja2 import TemplateSyntaxError

        self._facts = facts
        try:
            self._template = _environment().from_string(facts["source"])
        except TemplateSyntaxError as e:
            raise _at_line(facts["source"], e.lineno, e.message or "") from e

    def info(self) -> Mapping[str, Any]:
        """Like `TemplateHandle.info`."""
        source = self._facts["source"]
        return {"source": source, "caps": {}, "supports_thinking": _CLOSE in source}

    def apply(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Like `TemplateHandle.apply`, without grammars. Raises TemplateError."""
        continued = inputs.get("continue_final_message", False)
        messages = [_with_argument_objects(message) for message in inputs["messages"]]
        last = messages.pop() if continued else None
        values = {
            "messages": messages,
            "bos_token": self._facts["bos"],
            "eos_token": self._facts["eos"],
            "enable_thinking": inputs.get("enable_thinking", True),
            **({"tools": inputs["tools"]} if inputs.get("tools") else {}),
            **inputs.get("template_kwargs", {}),
        }
        closed = self._render(values | {"add_generation_prompt": False})
        opened = self._render(values | {"add_generation_prompt": True})
        generation_prompt = opened[len(closed) :] if opened.startswith(closed) else ""
        prompt = opened if continued or inputs.get("add_generation_prompt", True) else closed
        if last is not None:
            prompt += last["content"]
        if self._facts["add_bos"] and self._facts["bos"]:
            prompt = prompt.removeprefix(self._facts["bos"])
        thinks = _CLOSE in self._facts["source"]
        return {
            "prompt": prompt,
            "generation_prompt": generation_prompt,
            "supports_thinking": thinks,
            "thinking_start_tag": _OPEN if thinks else "",
            "thinking_end_tags": [_CLOSE] if thinks else [],
        }

    def reply(self, params: Mapping[str, Any]) -> TagReplies:
        """A parser that knows the thinking tags only."""
        return TagReplies(params)

    def _render(self, values: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError as JinjaError

        try:
            return self._template.render(values)
        except (JinjaError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as e:
            raise TemplateError(f"the chat template failed: {e}") from e


class TagReplies:
    """Splits a reply at its thinking tags; a `ReplyDoor`. Holds no state between calls.

    params: `thinking_start_tag`, `thinking_end_tags` and `generation_prompt`, which may have opened the thinking.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._open: str = params.get("thinking_start_tag", "")
        self._closes: list[str] = list(params.get("thinking_end_tags", ()))
        self._thinking = opens_thinking(params)

    def parse(self, text: str, *, partial: bool) -> Mapping[str, Any]:
        """`{content, reasoning, tool_calls}`; what may become a tag is held back while `partial`."""
        reasoning, content = "", text
        thinking = self._thinking
        if not thinking and self._open:
            start = text.lstrip()
            thinking = start.startswith(self._open)
            if thinking:
                content = start[len(self._open) :]
            elif partial and self._open.startswith(start):
                content = ""
        if thinking:
            reasoning, content = self._split(content)
        if partial:
            reasoning = _held_back(reasoning, self._closes) if not content else reasoning
        return {"content": content.lstrip("\n") if thinking else content, "reasoning": reasoning, "tool_calls": []}

    def _split(self, text: str) -> tuple[str, str]:
        found = [(at, tag) for tag in self._closes if (at := text.find(tag)) >= 0]
        if not found:
            return text.lstrip("\n"), ""
        at, tag = min(found)
        return text[:at].strip("\n"), text[at + len(tag) :]


def _with_argument_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Templates written for transformers expect the arguments of a call as an object, not as JSON text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    objects = []
    for call in calls:
        function = dict(call["function"])
        with contextlib.suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
        objects.append({**call, "function": function})
    return {**message, "tool_calls": objects}


def opens_thinking(params: Mapping[str, Any]) -> bool:
    """Whether the prompt ends inside the thinking, so that the answer begins there."""
    tag, tail = params.get("thinking_start_tag", ""), params.get("generation_prompt", "")
    if not tag or tag not in tail:
        return False
    after = tail[tail.rindex(tag) + len(tag) :]
    return not any(close in after for close in params.get("thinking_end_tags", ()))


def _held_back(text: str, tags: list[str]) -> str:
    """`text` without an end that may be the beginning of a tag, or line ends before one."""
    keep = len(text)
    for tag in tags:
        for size in range(min(len(tag) - 1, len(text)), 0, -1):
            if text.endswith(tag[:size]):
                keep = min(keep, len(text) - size)
                break
    return text[:keep].rstrip("\n")


def _at_line(source: str, number: int, message: str) -> TemplateError:
    lines = source.splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return TemplateError(
        f"the chat template is broken at line {number}: {message}\n    {line}",
        hint="another template can be given with --chat-template FILE",
    )


def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import TemplateError as JinjaError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise JinjaError(message)

    def tojson(value: Any, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, indent=indent, **({"ensure_ascii": False} | more))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    return environment
