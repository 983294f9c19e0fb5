"""Turns, system prompt, undo, drop, save and load, against a plain list; and the room that is left."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagedrun.chat import Message
from pagedrun.cli.repl import saved
from pagedrun.cli.repl.context import Room, low_mark, plan_drop
from pagedrun.cli.repl.conversation import Conversation, Turn
from pagedrun.errors import UsageError
from pagedrun.request import FinishReason

ENDS = (FinishReason.STOP, FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.CONTEXT)
turns = st.builds(Turn, question=st.text(), answer=st.text(), reasoning=st.text(), end=st.sampled_from(ENDS))


class ConversationMachine(RuleBasedStateMachine):
    """The model: a system text, a list of turns, and how many of them are out of the model's sight."""

    def __init__(self) -> None:
        super().__init__()
        self.real = Conversation()
        self.system, self.turns, self.dropped = "", [], 0
        self.folder = tempfile.TemporaryDirectory()
        self.files: dict[str, tuple[str, list[Turn], int]] = {}
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("PAGEDRUN_STATE", self.folder.name)

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    @rule(turn=turns)
    def ask(self, turn: Turn) -> None:
        before = self.real
        self.real = self.real.add(turn)
        assert before.turns == tuple(self.turns)  # an abandoned answer leaves the old one as it was
        self.turns.append(turn)

    @rule(text=st.text())
    def set_system(self, text: str) -> None:
        self.real, self.system = self.real.with_system(text), text

    @rule()
    def clear(self) -> None:
        self.real, self.turns, self.dropped = self.real.clear(), [], 0

    @rule()
    def undo(self) -> None:
        if not self.turns:
            with pytest.raises(UsageError):
                self.real.undo()
            return
        self.real = self.real.undo()
        self.turns.pop()
        self.dropped = min(self.dropped, len(self.turns))

    @rule(answer=st.text())
    def regenerate(self, answer: str) -> None:
        if self.turns:
            question = self.turns[-1].question
            self.real = self.real.undo().add(Turn(question=question, answer=answer))
            self.turns[-1] = Turn(question=question, answer=answer)
            self.dropped = min(self.dropped, len(self.turns) - 1)

    @rule(count=st.integers(-1, 4))
    def drop(self, count: int) -> None:
        if not 1 <= count <= len(self.turns) - self.dropped:
            with pytest.raises(UsageError):
                self.real.drop(count)
            return
        self.real = self.real.drop(count)
        self.dropped += count

    @rule(name=st.sampled_from(["a", "b", "c d"]))
    def save(self, name: str) -> None:
        if name in self.files or not (self.turns or self.system):
            with pytest.raises(UsageError):
                saved.save(self.real, name, model="m")
            return
        saved.save(self.real, name, model="m")
        self.files[name] = (self.system, list(self.turns), self.dropped)

    @rule(name=st.sampled_from(["a", "b", "c d"]))
    def load(self, name: str) -> None:
        if name not in self.files:
            with pytest.raises(UsageError):
                saved.load(name)
            return
        self.real = saved.load(name)
        self.system, kept, self.dropped = self.files[name]
        self.turns = list(kept)

    @invariant()
    def same(self) -> None:
        assert (self.real.system, self.real.turns, self.real.dropped) == (self.system, tuple(self.turns), self.dropped)
        expected = [Message(role="system", content=self.system)] if self.system else []
        for turn in self.turns[self.dropped :]:
            expected += [
                Message(role="user", content=turn.question),
                Message(role="assistant", content=turn.answer, reasoning=turn.reasoning),
            ]
        assert list(self.real.messages()) == expected
        assert list(self.real.messages("next")) == [*expected, Message(role="user", content="next")]

    @invariant()
    def no_files_left_over(self) -> None:
        folder = Path(self.folder.name) / "chats"
        assert {p.name for p in folder.iterdir()} == {f"{n}.json" for n in self.files} if folder.exists() else True


ConversationMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestConversation = ConversationMachine.TestCase


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    return tmp_path / "chats"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../up",
        "a/b",
        ".hidden",
        "a\0b",
        "a\nb",
        "x" * 251,
        "ü" * 126,
        "a\x9bb",
        "\u0301",
        " x",
        "a\u2028b",
        "dot.",
        "/etc/passwd",
        "-x",
    ],
)
def test_names_that_are_no_file_names_are_refused(chats: Path, name: str) -> None:
    with pytest.raises(UsageError):
        saved.save(Conversation(system="s"), name, model="m")
    with pytest.raises(UsageError):
        saved.load(name)
    assert not chats.exists()


@pytest.mark.parametrize("name", ["überblick", "u\u0308berblick", "日本語", "हिन्दी", "x" * 250, "_a-1.b c"])
def test_names_can_be_in_any_script(chats: Path, name: str) -> None:
    saved.save(Conversation(system="s"), name, model="m")
    assert saved.load(name).system == "s"
    assert saved.load(unicodedata.normalize("NFC", name)).system == "s"


def test_an_existing_chat_is_replaced_only_with_leave(chats: Path) -> None:
    path = saved.save(Conversation(system="first"), "x", model="m")
    with pytest.raises(UsageError, match="already"):
        saved.save(Conversation(system="second"), "x", model="m")
    assert json.loads(path.read_text())["system"] == "first"
    saved.save(Conversation(system="third"), "x", model="m", may_replace=lambda taken: taken == path)
    assert json.loads(path.read_text())["system"] == "third"
    assert [p.name for p in chats.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"format": "pagedrun-chat", "version": 2}', "\x00", '{"format": "pagedrun-chat"'],
)
def test_a_damaged_chat_is_a_clear_error(chats: Path, text: str) -> None:
    chats.mkdir()
    (chats / "x.json").write_text(text)
    with pytest.raises(UsageError, match="not a saved chat"):
        saved.load("x")


@pytest.mark.parametrize(
    "change",
    [{"dropped": 5}, {"turns": [{"question": 1}]}, {"turns": 3}, {"system": None}, {"turns": [{"question": "q"}]}],
)
def test_a_chat_with_wrong_values_is_a_clear_error(chats: Path, change: dict[str, object]) -> None:
    path = saved.save(Conversation(turns=(Turn(question="q"),)), "x", model="m")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match="not a saved chat"):
        saved.load("x")


def test_an_unknown_chat_names_those_that_are_there(chats: Path) -> None:
    saved.save(Conversation(system="s"), "recipes", model="m")
    with pytest.raises(UsageError) as e:
        saved.load("recipe")
    assert "recipes" in e.value.hint


@pytest.mark.parametrize(("size", "mark"), [(512, 128), (2048, 512), (4096, 512), (8192, 819), (262_144, 4096)])
def test_when_the_context_counts_as_low(size: int, mark: int) -> None:
    assert low_mark(size) == mark
    assert Room(size - mark + 1, size).is_low and not Room(size - mark, size).is_low
    assert not Room(size, size).fits and Room(size - 1, size).fits
    assert Room(size - min(64, size // 16) + 1, size).is_too_little
    assert not Room(size - min(64, size // 16), size).is_too_little


def count(conversation: Conversation, question: str) -> int:
    return sum(len(m.content) for m in conversation.messages(question))


def spoken(*sizes: int) -> Conversation:
    return Conversation(system="s" * 100, turns=tuple(Turn(question="q" * n) for n in sizes))


@pytest.mark.parametrize(
    ("sizes", "question", "dropped"),
    [
        ((600, 600, 600), 10, 1),  # 1,536 comfortable: 1,310 after one
        ((600, 600, 600), 300, 2),  # 1,600 after one is too much, 1,000 after two is not
        ((10, 2000, 10), 10, 2),
        ((100,), 1800, 1),  # never comfortable, but it fits
    ],
)
def test_the_fewest_oldest_turns_are_dropped(sizes: tuple[int, ...], question: int, dropped: int) -> None:
    conversation = spoken(*sizes)
    plan = plan_drop(conversation, "q" * question, count, 2048)
    assert plan is not None and plan.turns == dropped
    assert plan.before == 100 + sum(sizes) + question
    assert plan.frees == sum(sizes[:dropped])
    assert plan.after == count(conversation.drop(dropped), "q" * question)


def test_dropping_is_not_offered_where_it_cannot_help() -> None:
    assert plan_drop(spoken(), "q" * 3000, count, 2048) is None
    assert plan_drop(spoken(50, 50), "q" * 3000, count, 2048) is None
    assert plan_drop(spoken(500).drop(1), "q" * 2000, count, 2048) is None
