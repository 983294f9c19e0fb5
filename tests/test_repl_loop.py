"""The chat without a terminal: what is sent to the model, what is kept, what is said. And as a real pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.repl.conversation import Conversation
from pagedrun.cli.repl.loop import Chat
from pagedrun.cli.repl.output import Output
from pagedrun.cli.repl.settings import Settings
from pagedrun.cli.repl.state import ChatState
from pagedrun.request import FinishReason
from pagedrun.service import Service
from tests.repl_fakes import FakeTemplates, fake_service, model_info

ROOT = Path(__file__).resolve().parent.parent


class Typist:
    """Types lines and answers questions."""

    def __init__(self, lines: list[str | type[BaseException]], *, interactive: bool, yes: bool) -> None:
        self.interactive = interactive
        self.asked: list[str] = []
        self._lines = lines
        self._yes = yes

    def read(self) -> str:
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        if not isinstance(line, str):
            raise line
        return line

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return self._yes


class Session:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.state = ChatState(service=service, output=Output(), settings=Settings(model_file=model_info().sampling))
        self.code = 0
        self.asked: list[str] = []

    def say(self, *lines: str | type[BaseException], interactive: bool = True, yes: bool = False) -> None:
        typist = Typist(list(lines), interactive=interactive, yes=yes)
        self.code = Chat(self.state, typist).run()
        self.asked = typist.asked

    @property
    def conversation(self) -> Conversation:
        return self.state.conversation

    @property
    def sent(self) -> list[tuple[str, str]]:
        """Roles and contents of the prompt rendered last."""
        templates = self.service.templates
        assert isinstance(templates, FakeTemplates)
        return [(m.role, m.content) for m in templates.calls[-1][0]]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    services: list[Service] = []

    def make(size: int = 4096) -> Session:
        services.append(fake_service(size=size))
        return Session(services[-1])

    yield make
    for service in services:
        service.close()


def test_a_conversation_is_sent_with_all_that_was_said(session: Callable[..., Session]) -> None:
    s = session()
    s.say("/system be brief", "echo one", "", "   ", "  echo two  ")
    assert s.sent == [("system", "be brief"), ("user", "echo one"), ("assistant", "one"), ("user", "echo two")]
    assert [t.answer for t in s.conversation.turns] == ["one", "two"]


def test_a_space_in_front_sends_a_slash(session: Callable[..., Session]) -> None:
    s = session()
    s.say(" /help")
    assert s.conversation.turns[0].question == "/help"


def test_thinking_is_kept_and_passed_on_to_the_template(session: Callable[..., Session]) -> None:
    s = session()
    s.say("think yes", "echo next")
    assert (s.conversation.turns[0].reasoning, s.conversation.turns[0].answer) == ("hmm\nwell", "yes")
    templates = s.service.templates
    assert isinstance(templates, FakeTemplates)
    assert [m.reasoning for m in templates.calls[-1][0]] == ["", "hmm\nwell", ""]


def test_think_is_handed_to_the_template(session: Callable[..., Session]) -> None:
    s = session()
    s.say("/set think off", "echo a")
    templates = s.service.templates
    assert isinstance(templates, FakeTemplates)
    assert templates.calls[-1][1].think is False


def test_undo_and_regenerate(session: Callable[..., Session]) -> None:
    s = session()
    s.say("echo one", "echo two", "/regenerate")
    assert [t.question for t in s.conversation.turns] == ["echo one", "echo two"]
    assert s.sent[-1] == ("user", "echo two") and len(s.sent) == 3
    s.say("/undo", "/undo", "/undo")
    assert s.conversation.turns == ()


def test_a_failure_leaves_the_conversation_as_it_was(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session()
    s.say("echo one", "fail now", "bad template", "echo two")
    assert [t.answer for t in s.conversation.turns] == ["one", "two"]
    err = capsys.readouterr().err
    assert "error: decoding failed\nhint:  try again" in err
    assert "error: the template fails\nhint:  at line 3" in err
    assert s.code == 0


def test_regenerate_that_fails_keeps_the_old_answer(session: Callable[..., Session]) -> None:
    s = session()
    s.say("echo one")
    s.state.conversation = s.conversation.undo().add(type(s.conversation.turns[0])(question="fail", answer="old"))
    s.say("/regenerate")
    assert s.conversation.turns[-1].answer == "old"


def test_an_answer_that_reaches_its_limit_is_kept(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session()
    s.say("/set max_tokens 5", "chars 100")
    assert s.conversation.turns[0].answer == "xxxxx" and s.conversation.turns[0].end is FinishReason.LENGTH
    assert "stopped at 5 tokens, as set" in capsys.readouterr().err


def test_save_clear_load(session: Callable[..., Session], capsys: pytest.CaptureFixture[str]) -> None:
    s = session()
    s.say("/system terse", "echo one", "/save first", "/clear")
    assert s.conversation == Conversation(system="terse")
    s.say("/load first", "/load", "/save first", "/save", "/save ../x", "/load nothing")
    assert [t.answer for t in s.conversation.turns] == ["one"]
    out, err = capsys.readouterr()
    assert "first" in out.split("\n")
    assert "needs a NAME" in err and "cannot be the name" in err


def test_stats_count_the_answers(session: Callable[..., Session], capsys: pytest.CaptureFixture[str]) -> None:
    s = session()
    s.say("chars 9", "chars 4", "/set stats on", "/stats", "chars 2")
    out, err = capsys.readouterr()
    session_row = next(line for line in out.split("\n") if line.startswith("session"))
    answers = next(line for line in out.split("\n") if line.startswith("  answers"))
    last = next(line for line in out.split("\n") if line.startswith("last answer"))
    assert "2 answers" in session_row and " 15 tokens" in answers and " 5 tokens" in last  # ends count as tokens
    used = len("[user]chars 9\n[assistant]xxxxxxxxx\n[user]chars 4\n[assistant]xxxx\n[user]\n[assistant]")
    assert f"context      {used} of 4,096 tokens (2%)" in out
    assert err.count("tok/s") == 2 and "answer 3 tokens" in err


def test_ctrl_c_at_the_prompt_hints_only_when_pressed_twice(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session()
    s.say(KeyboardInterrupt, "echo a")
    assert "Ctrl-D" not in capsys.readouterr().err
    s.say(KeyboardInterrupt, KeyboardInterrupt)
    assert "Ctrl-D or /exit leaves" in capsys.readouterr().err


# [user]chars 155\n[assistant]xxx...\n is 183 tokens here.


def test_a_question_that_does_not_fit_offers_to_drop(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session(size=512)
    question = "echo " + "y" * 130
    s.say("chars 155", "chars 155", question, yes=False)
    assert len(s.asked) == 1 and len(s.conversation.turns) == 2 and s.conversation.dropped == 0
    assert "the prompt has 519 tokens and the context holds 512" in capsys.readouterr().err
    s.say(question, yes=True)
    assert s.conversation.dropped == 1 and len(s.conversation.turns) == 3
    assert len(s.sent) == 3  # a turn and the question
    err = capsys.readouterr().err
    assert "the oldest 1 turn: “chars 155”" in err
    assert "the oldest turn is no longer sent to the model: 183 tokens freed" in err


def test_what_was_dropped_stays_in_the_saved_file(session: Callable[..., Session]) -> None:
    s = session()
    s.say("/system s", "echo one", "echo two", "/drop 1", "/save x", "/clear", "/load x", "echo three")
    assert s.sent[0] == ("system", "s") and s.sent[1] == ("user", "echo two")
    assert [t.answer for t in s.conversation.turns] == ["one", "two", "three"]
    s.say("/drop 9", "/drop x", "/drop")
    assert s.conversation.dropped == 2


def test_dropping_can_be_automatic_but_not_silent(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session(size=512)
    s.say("/set auto_drop on", "chars 155", "chars 155", "chars 155", "chars 155", interactive=False)
    assert s.asked == [] and len(s.conversation.turns) == 4 and s.conversation.dropped == 2 and s.code == 0
    assert "no longer sent to the model" in capsys.readouterr().err


def test_in_a_pipe_a_prompt_that_does_not_fit_is_an_error_with_numbers(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session(size=512)
    s.say("chars 155", "chars 155", "echo " + "y" * 130, interactive=False)
    assert s.code == 3
    err = capsys.readouterr().err
    assert "the prompt has 519 tokens and the context holds 512" in err and "/drop 1 frees 183 tokens" in err


def test_an_answer_cut_by_the_context_says_so(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session(size=512)
    s.say("chars 155", "chars 900", yes=True)
    assert [t.end for t in s.conversation.turns] == [FinishReason.STOP, FinishReason.CONTEXT]
    assert "the answer was cut off: the context of 512 tokens is full" in capsys.readouterr().err
    assert len(s.asked) == 1 and s.conversation.dropped == 1
    s = session(size=512)
    s.say("chars 900", interactive=False)
    assert s.code == 3


def test_a_failing_request_in_a_pipe_shows_in_the_exit_code(session: Callable[..., Session]) -> None:
    s = session()
    s.say("fail", "echo fine", "/nonsense", interactive=False)
    assert s.code == 1


def program(
    tmp_path: Path, *args: str, size: int = 4096, step_s: float = 0.0, stdout: Any = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.repl_program", str(size), str(step_s), *args],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PAGEDRUN_STATE": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )


def test_through_a_pipe_only_answers_are_on_stdout(tmp_path: Path) -> None:
    with program(tmp_path, "--system", "s", "--show-thinking") as p:
        out, err = p.communicate("hi\nthink **yés**\n/exit\nnot read\n".encode(), timeout=60)
    assert p.returncode == 0
    assert out.decode() == "you said hi\n**yés**\n"
    assert "Fake-1B · Q4_0" in err.decode() and "hmm\nwell\n" in err.decode()
    assert b"\x1b" not in out + err
    assert not (tmp_path / "history").exists()


def test_a_pipe_that_ends_without_exit_is_fine(tmp_path: Path) -> None:
    with program(tmp_path) as p:
        out, _ = p.communicate(b"hi", timeout=60)
    assert (p.returncode, out) == (0, b"you said hi\n")


def test_ctrl_c_in_a_pipe_ends_with_130_and_what_was_said(tmp_path: Path) -> None:
    with program(tmp_path, step_s=0.01) as p:
        assert p.stdin and p.stdout
        p.stdin.write(b"count 9999\nhi\n")
        p.stdin.flush()
        first = p.stdout.read(5)
        began = time.monotonic()
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate(timeout=30)
    assert first == b"1 2 3" and time.monotonic() - began < 5
    assert p.returncode == 130
    assert b"you said" not in rest and b"Traceback" not in err


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    with program(tmp_path, step_s=0.001) as p:
        assert p.stdin and p.stdout and p.stderr
        p.stdin.write(b"count 9999\n")
        p.stdin.flush()
        p.stdout.read(5)
        p.stdout.close()
        err = p.stderr.read()
        assert p.wait(timeout=30) == 0
    assert b"Traceback" not in err and b"error" not in err


def test_limits_and_settings_come_from_the_command_line(tmp_path: Path) -> None:
    with program(tmp_path, "-n", "3", "--temp", "0.25", "--no-think") as p:
        out, _ = p.communicate(b"chars 50\n/set temp\n/set think\n", timeout=60)
    lines = out.decode().split("\n")
    assert lines[:3] == ["xxx", "temperature = 0.25 (command line)", "think = off (command line)"]
    assert "let the model think" in lines[3]
    with program(tmp_path, "-n", "0") as p:
        _, err = p.communicate(b"", timeout=60)
    assert p.returncode == 2 and b"--max-tokens" in err
