"""`pagedrun chat` in a real terminal, over the fake service."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagedrun.units import size
from tests.repl_fakes import MARKDOWN, located
from tests.repl_terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, TAB, UP, Terminal

Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Terminal] = []

    def chat(*args: str, size: int = 4096, step_s: float = 0.0, cols: int = 80, rows: int = 24, **env: str) -> Terminal:
        env = {"PAGEDRUN_STATE": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")} | env
        program = ("-m", "tests.repl_program", str(size), str(step_s), *args)
        running.append(Terminal(*program, env=env, cols=cols, rows=rows))
        return running[-1]

    yield chat
    for terminal in running:
        terminal.close()


def ready(terminal: Terminal) -> None:
    terminal.wait_for(r"^>\s*$")


def test_a_question_is_answered_and_ctrl_d_leaves(start: Start) -> None:
    t = start("some-model")
    ready(t)
    assert f"Fake-1B · Q4_0 · {size(located().path.stat().st_size)} · context 4,096 tokens · CPU" in t.text
    assert "qwen3.6-35b" not in t.text
    t.send("hello there" + ENTER)
    t.wait_for("^you said hello there$")
    t.send(CTRL_D)
    assert t.wait_for_exit() == 0


def test_without_a_model_a_line_says_how_to_get_a_stronger_one(start: Start) -> None:
    t = start(cols=200)
    ready(t)
    assert re.search(r"for qwen3.6-35b \(20.6 GiB\) type: pagedrun chat qwen3.6-35b", t.text)


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(start: Start, tmp_path: Path) -> None:
    t = start(step_s=0.01)
    ready(t)
    t.send("count 5000" + ENTER)
    t.wait_for(r"1 2 3 4 5")
    t.send(CTRL_C)
    t.wait_for("stopped; what was said is kept", timeout=5)
    t.send("/save cut" + ENTER)
    t.wait_for("saved to")
    (turn,) = json.loads((tmp_path / "chats" / "cut.json").read_text())["turns"]
    assert turn["end"] == "cancelled" and turn["answer"].startswith("1 2 3 4 5") and len(turn["answer"]) < 5000
    t.send("still here" + ENTER)
    t.wait_for("^you said still here$")


def test_ctrl_c_before_the_first_token_keeps_nothing(start: Start) -> None:
    t = start()
    ready(t)
    t.send("wait " + "long prompt " * 30 + ENTER)  # several steps of a second
    t.wait_for("reading the prompt…")
    t.send(CTRL_C)
    t.wait_for("the question is not kept", timeout=8)
    assert "reading the prompt…" not in t.text
    t.send("/undo" + ENTER)
    t.wait_for("nothing has been said yet")


def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_hints_at_ctrl_d(start: Start) -> None:
    t = start()
    ready(t)
    t.send("half a thought")
    t.wait_for("half a thought")
    t.send(CTRL_C)
    t.wait_for(r"^>\s*$")
    assert "Ctrl-D or /exit leaves" not in t.text
    t.send(CTRL_C)
    t.wait_for("Ctrl-D or /exit leaves")
    t.send("echo fine" + ENTER)
    t.wait_for("^fine$")


def test_history_is_kept_across_runs(start: Start, tmp_path: Path) -> None:
    first = start()
    ready(first)
    first.send("echo remember me" + ENTER)
    first.wait_for("^remember me$")
    first.send(CTRL_D)
    first.wait_for_exit()
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0
    second = start()
    ready(second)
    second.send(UP)
    second.wait_for("> echo remember me")
    second.send(ENTER)
    second.wait_for("^remember me$")


def test_lines_by_alt_enter_and_by_paste_make_one_message(start: Start) -> None:
    t = start()
    ready(t)
    t.send("echo one" + ALT_ENTER + "two")
    t.wait_for(r"^> echo one\n  two$")
    t.send(ENTER)
    t.wait_for(r"^one\ntwo\n+>$")  # before it the terminal would change line ends
    t.paste("echo alpha\nbeta\r\ngamma")
    t.wait_for(r"^  gamma$")
    t.send(ENTER)
    t.wait_for(r"^alpha\nbeta\ngamma$")


def test_commands_are_completed(start: Start) -> None:
    t = start()
    ready(t)
    t.send("/reg")
    t.wait_for("ask the last question again")
    t.send(TAB)
    t.wait_for("^> /regenerate")
    t.send(CTRL_C)
    ready(t)
    t.send("/set temperat")
    t.wait_for(r"^ +temperature$")
    t.send(TAB)
    t.wait_for("^> /set temperature")
    t.send(" 0.3" + ENTER)
    t.wait_for(r"temperature = 0.3 \(/set\)")


def test_markdown_is_shown_once_and_completely(start: Start) -> None:
    t = start(rows=10, step_s=0)
    ready(t)
    t.send("md" + ENTER)
    t.wait_for("^The end.$")
    ready(t)
    said = t.text.split("> md")[1]
    for piece in ("Title", "A paragraph with bold text", "on two lines.", "one", "two", r"def f\(\):", "return 1"):
        assert len(re.findall(piece, said)) == (2 if piece == "two" else 1), (piece, said)
    assert "**" not in said and "```" not in said


def test_an_answer_taller_than_the_screen_leaves_no_duplicates(start: Start) -> None:
    t = start(rows=8, cols=40, step_s=0.002)
    ready(t)
    t.send("count 400" + ENTER)
    t.wait_for(r"\b400\b", timeout=40)
    ready(t)
    numbers = re.findall(r"\d+", t.text.split("count 400")[1])
    assert numbers == [str(n + 1) for n in range(400)]


@pytest.mark.parametrize("cols", [20, 120])
def test_resizing_in_the_middle_of_an_answer_leaves_no_duplicates(start: Start, cols: int) -> None:
    t = start(rows=12, cols=40, step_s=0.01)
    ready(t)
    t.send("count 150" + ENTER)
    t.wait_for(r"\b5 6 7\b")
    t.resize(cols, 12)
    t.wait_for(r"\b150\b", timeout=30)
    ready(t)
    if cols > 40:  # the emulator cuts rows off where real terminals wrap them, so only growing can be compared
        assert re.findall(r"\d+", t.text.split("count 150")[1]) == [str(n + 1) for n in range(150)]
    t.send("echo after" + ENTER)
    t.wait_for("^after$")


def test_a_terminal_of_twenty_columns(start: Start) -> None:
    t = start(cols=20, rows=10)
    ready(t)
    t.send("md" + ENTER)
    t.wait_for("^The end.$")
    t.send("/help" + ENTER)
    t.wait_for("Ctrl-D")
    t.send("/stats" + ENTER)
    t.wait_for("memory")
    t.send("chars 500" + ENTER)
    t.wait_for("x{20}", times=25)


def test_thinking_is_folded_into_how_long_it_took(start: Start) -> None:
    t = start()
    ready(t)
    t.send("think yes" + ENTER)
    t.wait_for(r"^thought for .*s\n\nyes$")
    assert "hmm" not in t.text
    t.send("/set show_thinking on" + ENTER)
    t.wait_for("show_thinking = on")
    t.send("think again" + ENTER)
    t.wait_for(r"^hmm\nwell\nthought for .*s\n\nagain$")
    assert re.search(r"\x1b\[2mhmm", t.raw)


def test_what_a_model_writes_cannot_drive_the_terminal(start: Start) -> None:
    t = start()
    ready(t)
    t.raw = ""
    t.send("escape" + ENTER)
    t.wait_for(r"^a\[2Jb\]0;ownedc")
    ready(t)
    assert "\x1b[2J" not in t.raw and "\x1b]0;" not in t.raw and "\x9b" not in t.raw and "\x07" not in t.raw


def test_keys_pressed_during_an_answer_reach_the_next_prompt_and_are_not_echoed(start: Start) -> None:
    t = start(step_s=0.01)
    ready(t)
    t.send("count 60" + ENTER)
    t.wait_for("1 2 3")
    t.send("echo typed ahead" + ENTER)
    t.wait_for(r"\b60\b")
    t.wait_for("^typed ahead$")
    assert re.findall(r"\d+", t.text.split("count 60")[1].split(">")[0]) == [str(n + 1) for n in range(60)]


def test_a_failing_request_is_reported_and_the_chat_goes_on(start: Start) -> None:
    t = start()
    ready(t)
    t.send("echo first" + ENTER)
    t.wait_for("^first$")
    t.send("fail" + ENTER)
    t.wait_for(r"error: decoding failed\nhint:  try again")
    t.send("/undo" + ENTER)
    t.wait_for("taken back: echo first")


def test_no_colour_when_none_is_wanted(start: Start) -> None:
    t = start(NO_COLOR="1")
    ready(t)
    t.send("md" + ENTER)
    t.wait_for("^The end.$")
    ready(t)
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]", t.raw)


def test_a_full_context_offers_to_drop_the_oldest_turns(start: Start) -> None:
    t = start(size=512, cols=120)
    ready(t)
    for _ in range(2):
        t.send("chars 155" + ENTER)
        ready(t)
    t.send("echo hi" + ENTER)
    t.wait_for(r"warning: the context is filling up: 391 of 512 tokens used, 121 left for the answer")
    t.wait_for("^hi$")
    t.send("echo " + "y" * 79 + ENTER)
    t.wait_for(r"the oldest 1 turn: “chars 155”")
    t.wait_for(r"Drop it \(183 tokens\)\? \[y/N\]")
    t.send("y" + ENTER)
    t.wait_for("the oldest turn is no longer sent to the model: 183 tokens freed")
    t.wait_for("^y{79}$")


def test_anything_but_an_answer_to_a_question_is_asked_again_or_done(start: Start) -> None:
    t = start(size=512, cols=120)
    ready(t)
    for _ in range(2):
        t.send("chars 155" + ENTER)
        ready(t)
    t.send("echo " + "y" * 130 + ENTER)
    t.wait_for(r"\[y/N\]")
    t.send("echo early" + ENTER)
    t.wait_for(r"\[y/N\]", times=2)
    assert "y or n, please" in t.text
    t.send("/drop 2" + ENTER)
    t.wait_for("the oldest 2 turns are no longer sent to the model")
    ready(t)
    for shown in ("/drop 2", "echo early", "echo yyyy"):
        t.send(UP)
        t.wait_for(f"^> {shown}")
    t.send(ENTER)
    t.wait_for("^y{120}$")


def test_a_dumb_terminal_gets_plain_text(start: Start) -> None:
    t = start(TERM="dumb")
    t.wait_for("Ctrl-D leaves")
    t.send("md" + ENTER)
    t.wait_for("^The end.$")
    assert "A paragraph with **bold** text" in t.text
    t.raw = ""
    t.send("escape" + ENTER)
    t.wait_for("ownedc")
    assert "\x1b" not in t.raw
    t.send(CTRL_D)
    assert t.wait_for_exit() == 0


def test_answers_can_go_to_a_file_while_the_chat_is_on_the_terminal(start: Start, tmp_path: Path) -> None:
    answers = tmp_path / "answers.md"
    redirect = f"import os, sys; os.dup2(os.open({str(answers)!r}, os.O_CREAT | os.O_WRONLY), 1); "
    run = "sys.argv[1:] = []; from tests.repl_program import run; run(4096, 0, [])"
    t = Terminal("-c", redirect + run, env={"PAGEDRUN_STATE": str(tmp_path)})
    try:
        ready(t)
        t.send("md" + ENTER)
        t.wait_for(r"^> md\n>\s*$")
        t.send(CTRL_D)
        assert t.wait_for_exit() == 0
    finally:
        t.close()
    assert answers.read_text() == MARKDOWN


def test_a_state_folder_that_cannot_be_written_does_not_stop_the_chat(start: Start) -> None:
    t = start(PAGEDRUN_STATE="/proc/nothing")
    t.wait_for("the input history is not kept")
    t.send("hi" + ENTER)
    t.wait_for("^you said hi$")
    t.send("/save x" + ENTER)
    t.wait_for("error: cannot write /proc/nothing")
