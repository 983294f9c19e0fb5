"""`pagedrun complete` as a process: pipes, signals, a terminal; over the fake service, and on the real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli_fakes import folders

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "tests.cli_program", "complete"]
LONG = "a line of text\n" * 200


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folders(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TERM", "xterm")
    return path


def started(model: Path, *args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([*PROGRAM, "-m", str(model), *args], env={**os.environ, **(env or {})}, **settings)


def shell(command: str, model: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = {"PROGRAM": " ".join([*PROGRAM, "-m", str(model)]), **env}
    return subprocess.run(
        ["bash", "-c", command], env={**os.environ, **words}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("flags", ["", "--no-stream", "--json"])
def test_a_reader_that_leaves_ends_it_quietly(model: Path, flags: str) -> None:
    command = f"$PROGRAM hi {flags} </dev/null | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    # More than a pipe holds, so that there is something left to write when the reader is gone.
    ran = shell(command, model, {"FAKE_SAYS": LONG, "FAKE_STEP_S": "0.0005"})
    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_a_reader_that_leaves_stops_the_generation(model: Path) -> None:
    began = time.monotonic()
    ran = shell("$PROGRAM hi </dev/null | head -1", model, {"FAKE_SAYS": "one\n" + "x" * 3000, "FAKE_STEP_S": "0.02"})
    assert (ran.stdout, ran.stderr) == ("one\n", "")
    assert time.monotonic() - began < 20  # all of it would take 60 s


def test_the_answer_is_streamed_as_it_comes(model: Path) -> None:
    process = started(model, "hi", env={"FAKE_SAYS": "ab", "FAKE_STEP_S": "0.5"})
    assert process.stdout is not None
    assert process.stdout.read(1) == b"a"
    first = time.monotonic()
    assert process.stdout.read(1) == b"b"
    assert time.monotonic() - first > 0.2
    assert process.wait(20) == 0
    process.communicate()


def test_interrupted_is_130_and_quick(model: Path) -> None:
    process = started(model, "hi", env={"FAKE_SAYS": "x" * 3000, "FAKE_STEP_S": "0.02"})
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - sent < 5
    assert err == b""


def test_interrupted_while_reading_its_input(model: Path) -> None:
    process = started(model, stdin=subprocess.PIPE)
    time.sleep(2)  # until it waits for input
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    _, err = process.communicate()
    assert err == b""


def test_a_full_disk_is_an_error_not_a_traceback(model: Path) -> None:
    ran = shell("$PROGRAM hi </dev/null >/dev/full", model, {})
    assert ran.returncode == 1
    assert ran.stderr == "error: cannot write the answer: No space left on device\n"


def test_closed_streams(model: Path) -> None:
    ran = shell("$PROGRAM hi </dev/null >&-", model, {})
    assert (ran.returncode, ran.stderr) == (1, "error: standard output is closed\n")
    ran = shell("$PROGRAM hi <&-", model, {})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Hello!", "")
    ran = shell("$PROGRAM hi </dev/null 2>&-", model, {})
    assert (ran.returncode, ran.stdout) == (0, "Hello!")


def test_utf8_whatever_the_locale(model: Path) -> None:
    process = started(model, "größe?", env={"FAKE_SAYS": "Größe 👋", "LC_ALL": "C", "PYTHONUTF8": "0"})
    out, err = process.communicate(timeout=20)
    assert (out.decode(), err) == ("Größe 👋", b"")


def test_a_prompt_that_is_not_text(model: Path) -> None:
    process = started(model, os.fsdecode(b"a\xff"))
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"error: PROMPT is not UTF-8 text: byte 2 of 2 bytes is 0xff")


# --- at a terminal ---


def spawned(model: Path, *args: str, **env: str) -> pexpect.spawn[str]:
    return pexpect.spawn(
        sys.executable,
        [*PROGRAM[1:], "-m", str(model), *args],
        env={**os.environ, **env},
        encoding="utf-8",
        timeout=20,
        dimensions=(24, 80),
    )


def test_a_terminal_gets_a_last_line_end_and_no_control_characters(model: Path) -> None:
    child = spawned(model, "hi", FAKE_SAYS="a\x1b[31mb\x1b]0;owned\x07c")
    assert child.read() == "a[31mb]0;ownedc\r\n"
    child.close()
    assert child.exitstatus == 0


def test_a_terminal_is_not_read_unless_asked(model: Path) -> None:
    child = spawned(model, "-", FAKE_SAYS="yes")
    child.expect("Ctrl-D ends it")
    child.send("typed\n\x04")
    child.expect("yes")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_no_prompt_at_a_terminal_is_wrong_usage_in_colour(model: Path) -> None:
    child = spawned(model)
    shown = child.read()
    assert "\x1b[31;1merror:\x1b[0m there is no prompt" in shown
    child.close()
    assert child.exitstatus == 2
    child = spawned(model, NO_COLOR="1")
    assert child.read().startswith("error: there is no prompt")
    child.close()


def test_a_long_wait_is_explained_and_the_explanation_erased(model: Path) -> None:
    child = spawned(model, "hi", FAKE_SAYS="<think>h</think>X", FAKE_STEP_S="0.15")
    child.expect("thinking ...")
    child.expect("\r\x1b\\[K")
    assert child.read() == "X\r\n"
    child.close()


def test_ctrl_c_at_a_terminal(model: Path) -> None:
    child = spawned(model, "hi", FAKE_SAYS="x" * 3000, FAKE_STEP_S="0.02")
    child.expect("xxx")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


# --- the real thing ---


@pytest.fixture
def real(library: object, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the installed command on SmolLM2 with the runtime that is there."""
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pagedrun", "complete", "-m", str(smollm2), "--gpu-layers", "0", *args]
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **given)

    return run


@pytest.mark.real
def test_real_raw_continues_the_text(real) -> None:
    ran = real("--raw", "-n", "8", "--temp", "0", stdin="The capital of France is")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Paris" in ran.stdout


@pytest.mark.real
def test_real_chat_is_reproducible_by_its_seed(real) -> None:
    first = real("Say hello", "-n", "24", "--json", "--temp", "1")
    answer = json.loads(first.stdout)
    assert answer["finish_reason"] in ("stop", "length") and answer["text"]
    again = real("Say hello", "-n", "24", "--json", "--temp", "1", "--seed", str(answer["seed"]))
    assert json.loads(again.stdout)["text"] == answer["text"]
    assert answer["timings"]["decode_tokens_per_s"] > 1


@pytest.mark.real
@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_real_schema_output_is_valid(real, raw: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ran = real("Invent a person.", *raw, "--json-schema", json.dumps(schema), "--seed", "1", "-n", "200")
    assert (ran.returncode, ran.stderr) == (0, "")
    person = json.loads(ran.stdout)
    assert set(person) == {"name", "age"} and isinstance(person["age"], int) and len(person["name"]) <= 12


@pytest.mark.real
def test_real_errors(real, tmp_path: Path) -> None:
    ran = real("--raw", "--max-seq-len", "64", stdin="word " * 200)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "tokens and the context holds 64" in ran.stderr
    ran = real("--raw", "--max-seq-len", "32", "--ignore-eos", stdin="Once upon a time")
    assert ran.returncode == 3 and ran.stdout
    assert "the context of 32 tokens is full" in ran.stderr
    (tmp_path / "bad.gbnf").write_text("root ::= (")
    ran = real("hi", "--grammar", str(tmp_path / "bad.gbnf"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: ")


@pytest.mark.real
def test_real_log_only_when_asked(real) -> None:
    assert real("hi", "-n", "1").stderr == ""
    assert "llama" in real("hi", "-n", "1", "-v").stderr
