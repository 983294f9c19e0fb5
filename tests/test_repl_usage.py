"""`pagedrun chat` as a program: its options and exit codes, saving over a chat, a full context in numbers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagedrun.cli import main
from pagedrun.cli.repl.loop import Chat
from pagedrun.cli.repl.prompt import CommandInstead
from tests.repl_fakes import fake_service
from tests.test_repl_loop import Session, Typist, program


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    services = []

    def make(size: int = 4096) -> Session:
        services.append(fake_service(size=size))
        return Session(services[-1])

    yield make
    for service in services:
        service.close()


def ran(process: subprocess.Popen[bytes], text: bytes) -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(text, timeout=60)
    return process.returncode, (out or b"").decode(), err.decode()


def test_the_model_can_be_an_option_and_becomes_the_one_used_last(tmp_path: Path) -> None:
    for args in (["a-model"], ["-m", "a-model"], ["--model", "a-model"]):
        code, _, err = ran(program(tmp_path, *args), b"")
        assert code == 0 and "comes with pagedrun" not in err
        (tmp_path / "last-model").unlink()
    code, _, err = ran(program(tmp_path, "a-model", "-m", "a-model"), b"")
    assert code == 2 and "MODEL and --model" in err and not (tmp_path / "last-model").exists()


@pytest.mark.parametrize("lines", [b"/set temp -1\n", b"/set max_tokens 0\n", b"/set temp warm\n", b"/nonsense\n"])
def test_a_wrong_command_in_a_pipe_is_wrong_usage(tmp_path: Path, lines: bytes) -> None:
    code, out, err = ran(program(tmp_path), lines + b"hi\n")
    assert (code, out) == (2, "you said hi\n") and err.count("error:") == 1


@pytest.mark.parametrize("line", [b"hi\n", b"/help\n"])
def test_a_full_disk_is_one_error_and_the_end(tmp_path: Path, line: bytes) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, err = ran(program(tmp_path, "a-model", stdout=full), line + b"hi\n")
    assert code == 1
    assert err.splitlines()[1:] == ["error: cannot write the answer: No space left on device"]


def saved_turns(tmp_path: Path, name: str) -> int:
    return len(json.loads((tmp_path / "chats" / f"{name}.json").read_text())["turns"])


def test_a_conversation_is_saved_over_its_own_file_without_a_question(
    session: Callable[..., Session], tmp_path: Path
) -> None:
    s = session()
    s.say("echo a", "/save x", "echo b", "/save x", interactive=False)
    assert (s.code, saved_turns(tmp_path, "x")) == (0, 2)
    other = session()
    other.say("/load x", "echo c", "/save x")
    assert (other.asked, saved_turns(tmp_path, "x")) == ([], 3)


def test_another_chat_is_replaced_only_after_asking(session: Callable[..., Session], tmp_path: Path) -> None:
    s = session()
    s.say("echo a", "echo b", "/save x", "/clear", "echo c", "/save x", interactive=False)
    assert (s.code, saved_turns(tmp_path, "x")) == (2, 2)
    s.say("/save x", yes=False)
    assert len(s.asked) == 1 and saved_turns(tmp_path, "x") == 2
    s.say("/save x", "echo d", "/save x", yes=True)
    assert s.asked == ["There already is a chat named x. Replace it?"] and saved_turns(tmp_path, "x") == 2
    assert sorted(p.name for p in (tmp_path / "chats").iterdir()) == ["x.json"]


def test_a_command_in_answer_to_a_question_is_done_instead(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    class Commander(Typist):
        def confirm(self, question: str) -> bool:
            raise CommandInstead("/drop 1")

    s = session(size=512)
    s.say("chars 155", "chars 155")
    Chat(s.state, Commander(["echo " + "y" * 130, "echo z"], interactive=True, yes=True)).run()
    assert s.conversation.dropped == 1
    assert [t.question for t in s.conversation.turns] == ["chars 155", "chars 155", "echo z"]
    assert "error" not in capsys.readouterr().err


def test_never_more_is_used_than_the_context_has(
    session: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    s = session(size=512)
    s.say("chars 900", "/stats", yes=False)
    assert "context      512 of 512 tokens (100%)" in capsys.readouterr().out
    s = session(size=512)
    s.say("chars 155", "chars 155", "echo " + "y" * 130, yes=False)
    assert "the prompt has 519 tokens, and the context holds 512 tokens" in capsys.readouterr().err


def test_help_tells_the_range_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["chat", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "-1: the whole context" not in shown and shown.count("(0 to 1048576)") == 2
    codes = shown.partition("Exit codes:")[2]
    assert all(f" {code} " in codes for code in (0, 1, 2, 3, 130))
