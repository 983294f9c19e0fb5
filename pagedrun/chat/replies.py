"""Replies as they arrive: text of the model in, deltas of reasoning, content and tool calls out."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from pagedrun.chat.types import Message, ReplyDelta, ReplyDoor, ToolCall, ToolCallDelta
from pagedrun.errors import TemplateError

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # what Mistral's templates insist on; the others take anything


class ReplyParser:
    """Turns the growing text of one reply into deltas, which are never taken back.

    The whole text is parsed again at each `feed`, because only the template's parser knows what a half-written tag
    may become; what it answers is compared with what was already given out. A reply that the template's parser
    refuses (a tool call that is no JSON, say) is read by `fallback`, so that no text is lost.
    """

    def __init__(self, door: ReplyDoor, fallback: ReplyDoor, *, continued: bool = False) -> None:
        self._door = door
        self._fallback = fallback
        self._text = ""
        self._reasoning = _Emitted()
        self._content = _Emitted()
        self._calls: list[_EmittedCall] = []
        if continued:
            # The parser sees the part of the message that was in the prompt as well: it is not ours to give out.
            before = self._parse(partial=True)
            self._reasoning = _Emitted(before["reasoning"])
            self._content = _Emitted(before["content"])

    def feed(self, text: str) -> ReplyDelta:
        """Take more text; returns what became certain. Thinking never appears in the content."""
        if not text:
            return ReplyDelta()
        self._text += text
        return self._advance(self._parse(partial=True), final=False)

    def finish(self) -> Message:
        """The end of the text. The message begins with all that `feed` gave out, and has what was held back."""
        try:
            self._advance(self._door.parse(self._text, partial=False), final=True)
        except TemplateError:  # cut off in the middle of a tool call, or not what the template expects
            self._advance(self._parse(partial=True), final=True)
            if not self._calls:
                self._advance(self._fallback.parse(self._text, partial=False), final=True)
        calls = tuple(call.finished() for call in self._calls)
        return Message("assistant", self._content.added, self._reasoning.added, calls)

    def _parse(self, *, partial: bool) -> Mapping[str, Any]:
        try:
            return self._door.parse(self._text, partial=partial)
        except TemplateError:
            return {"content": "", "reasoning": "", "tool_calls": []}

    def _advance(self, parsed: Mapping[str, Any], *, final: bool) -> ReplyDelta:
        reasoning, content = parsed["reasoning"], parsed["content"]
        if reasoning:  # the line ends around a thinking tag belong to the tag
            reasoning, content = reasoning.lstrip("\n"), content.lstrip("\n")
        return ReplyDelta(
            self._reasoning.advance(reasoning),
            self._content.advance(content),
            self._advance_calls(parsed["tool_calls"], final=final),
        )

    def _advance_calls(self, parsed: Sequence[Mapping[str, str]], *, final: bool) -> tuple[ToolCallDelta, ...]:
        deltas: list[ToolCallDelta] = []
        for index, call in enumerate(parsed):
            known = index < len(self._calls)
            # A name may still grow until its arguments begin.
            complete = final or bool(call["arguments"]) or index + 1 < len(parsed)
            if not known and (not complete or index != len(self._calls)):
                break
            if not known:
                self._calls.append(_EmittedCall(call["id"] or _new_id(), call["name"]))
            emitted = self._calls[index]
            arguments = emitted.arguments.advance(call["arguments"])
            if not known:
                deltas.append(ToolCallDelta(index, arguments, emitted.id, emitted.name))
            elif arguments:
                deltas.append(ToolCallDelta(index, arguments))
        return tuple(deltas)


class _Emitted:
    """Text that only grows: what was given out, after a `before` that never is."""

    def __init__(self, before: str = "") -> None:
        self._text = before
        self._skip = len(before)

    @property
    def added(self) -> str:
        return self._text[self._skip :]

    def advance(self, text: str) -> str:
        """What `text` has beyond what was given out; nothing while it disagrees with that."""
        if not text.startswith(self._text):
            return ""
        more = text[len(self._text) :]
        self._text = text
        return more


class _EmittedCall:
    """A tool call that was announced: its id and name stand, its arguments grow."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.arguments = _Emitted()

    def finished(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.arguments.added)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
