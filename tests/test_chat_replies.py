"""The reply parser over scripted answers: deltas are never taken back, and add up to the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.chat import ChatTemplates, Message, ReplyDelta, ReplyParser, ToolCall, ToolCallDelta
from pagedrun.chat.jinja import TagReplies
from pagedrun.errors import TemplateError
from tests.chat_doors import PARAMS, FakeDoor

TAGS = {"thinking_start_tag": "<think>", "thinking_end_tags": ["</think>"]}


class Script:
    """Answers the n-th parse with the n-th entry; an exception is raised."""

    def __init__(self, *answers: Mapping[str, Any] | TemplateError) -> None:
        self.answers = list(answers)

    def parse(self, text: str, *, partial: bool) -> Mapping[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, TemplateError):
            raise answer
        return answer


def said(content: str = "", reasoning: str = "", *calls: tuple[str, str, str]) -> dict[str, Any]:
    tool_calls = [{"id": i, "name": n, "arguments": a} for i, n, a in calls]
    return {"content": content, "reasoning": reasoning, "tool_calls": tool_calls}


def parser(*answers: Mapping[str, Any] | TemplateError, continued: bool = False) -> ReplyParser:
    return ReplyParser(Script(*answers), TagReplies({}), continued=continued)


def test_deltas_are_what_is_new() -> None:
    reply = parser(said("", "Hm"), said("", "Hm, yes"), said("A", "Hm, yes"), said("AB", "Hm, yes"))
    assert reply.feed("x") == ReplyDelta("Hm")
    assert reply.feed("x") == ReplyDelta(", yes")
    assert reply.feed("x") == ReplyDelta("", "A")
    assert reply.finish() == Message("assistant", "AB", "Hm, yes")


def test_nothing_is_taken_back() -> None:
    reply = parser(said("Hello <"), said("Hello"), said("Help"), said("Hello <b>"), said("Hello"))
    assert reply.feed("x").content == "Hello <"
    assert not reply.feed("x")
    assert not reply.feed("x")
    assert reply.feed("x").content == "b>"
    assert reply.finish().content == "Hello <b>"


def test_a_call_is_announced_when_its_name_is_complete() -> None:
    reply = parser(
        said("", "", ("", "get", "")),
        said("", "", ("", "get_weather", "")),
        said("", "", ("", "get_weather", '{"a')),
        said("", "", ("", "get_weather", '{"a":1}')),
        said("", "", ("", "get_weather", '{"a":1}'), ("id2", "g", "")),
        said("", "", ("", "get_weather", '{"a":1}'), ("id2", "g", "{}")),
    )
    assert not reply.feed("x")
    assert not reply.feed("x")
    (first,) = reply.feed("x").tool_calls
    assert (first.index, first.name, first.arguments) == (0, "get_weather", '{"a')
    assert len(first.id) == 9
    assert reply.feed("x").tool_calls == (ToolCallDelta(0, '":1}'),)
    assert not reply.feed("x")
    message = reply.finish()
    assert message.tool_calls == (ToolCall(first.id, "get_weather", '{"a":1}'), ToolCall("id2", "g", "{}"))


def test_a_call_without_arguments_is_announced_before_the_next_one() -> None:
    reply = parser(said("", "", ("1", "f", ""), ("2", "g", "")), said("", "", ("1", "f", ""), ("2", "g", "")))
    assert reply.feed("x").tool_calls == (ToolCallDelta(0, "", "1", "f"),)
    assert [c.name for c in reply.finish().tool_calls] == ["f", "g"]


def test_line_ends_around_thinking_belong_to_the_tag() -> None:
    reply = parser(said("", "\n"), said("", "\nHm\n"), said("\n\nYes", "\nHm\n"), said("\n\nYes\n", "\nHm\n"))
    assert not reply.feed("x")
    assert reply.feed("x").reasoning == "Hm\n"
    assert reply.feed("x").content == "Yes"
    assert reply.finish() == Message("assistant", "Yes\n", "Hm\n")


def test_line_ends_without_thinking_are_the_models() -> None:
    assert parser(said("\n\nYes")).finish().content == "\n\nYes"


def test_a_continued_message_gives_out_only_what_is_new() -> None:
    reply = parser(
        said("The weather", "Hm"), said("The weather is", "Hm"), said("The weather is bad", "Hm"), continued=True
    )
    assert reply.feed("x") == ReplyDelta("", " is")
    assert reply.finish() == Message("assistant", " is bad")


def test_a_refused_reply_keeps_what_was_given_out_and_adds_the_text_that_is_left() -> None:
    text = "Yes <tool>{bad"
    reply = parser(said("Yes "), TemplateError("no match"), TemplateError("no match"))
    assert reply.feed(text).content == "Yes "
    assert reply.finish() == Message("assistant", text)


def test_a_call_cut_off_in_its_arguments_is_kept() -> None:
    cut = said("", "", ("1", "f", '{"a'))
    reply = parser(cut, TemplateError("no match"), cut)
    reply.feed('<tool>f{"a')
    assert reply.finish() == Message("assistant", tool_calls=(ToolCall("1", "f", '{"a'),))


def test_empty_text_is_not_parsed() -> None:
    assert not parser().feed("")


def test_the_parser_is_made_of_what_render_answered() -> None:
    door = FakeDoor(PARAMS, parse=lambda text, partial: said(text.upper()))
    templates = ChatTemplates(door, None)
    reply = templates.reply_parser(templates.render([Message("user", "Hi")]))
    assert reply.feed("a").content == "A"


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<", "th", ">", "\n", "a", "é", "</", "think"]), max_size=12)


@given(PIECES, st.booleans())
def test_tag_replies_stream_to_the_same_message_as_in_one_piece(pieces: list[str], opened: bool) -> None:
    params = TAGS | {"generation_prompt": "<think>" if opened else ""}
    tags = TagReplies(params)
    text = "".join(pieces)
    streamed, whole = ReplyParser(tags, tags), ReplyParser(tags, tags)
    reasoning = content = ""
    for character in text:
        delta = streamed.feed(character)
        reasoning, content = reasoning + delta.reasoning, content + delta.content
    end = streamed.finish()
    assert end.reasoning.startswith(reasoning)
    assert end.content.startswith(content)
    whole.feed(text)
    assert whole.finish() == end


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "content"),
    [
        (False, "Hello", "", "Hello"),
        (False, "<think>\nHm\n</think>\n\nYes", "Hm", "Yes"),
        (True, "\nHm\n</think>\n\nYes", "Hm", "Yes"),
        (True, "Hm, no end", "Hm, no end", ""),
        (False, "a <think> b", "", "a <think> b"),
    ],
)
def test_tag_replies(opened: bool, text: str, reasoning: str, content: str) -> None:
    tags = TagReplies(TAGS | {"generation_prompt": "<think>\n" if opened else ""})
    assert tags.parse(text, partial=False) == said(content, reasoning)


@pytest.mark.parametrize("text", ["<", "<thi", "  <think", "<think>Hm</thin", "<think>Hm\n"])
def test_tag_replies_hold_back_what_may_be_a_tag(text: str) -> None:
    parsed = TagReplies(TAGS).parse(text, partial=True)
    assert parsed["content"] == ""
    assert parsed["reasoning"] in ("", "Hm")
