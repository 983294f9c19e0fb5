"""The frame around the commands: help, version, and every way of ending as an exit code."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import pagedrun
from pagedrun.cli import console, main
from pagedrun.errors import PagedrunError, UsageError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(console, "verbose", False)
    return tmp_path / "state"


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch):
    """A command `fall` that ends as told."""

    def make(error: BaseException) -> None:
        def fall(verbose: bool = typer.Option(False, "-v", callback=console.set_verbose)) -> None:
            raise error

        monkeypatch.setitem(main._COMMANDS, "fall", (__name__, "fall", "Falls."))
        monkeypatch.setitem(globals(), "fall", fall)

    return make


def test_version(capsys: Any) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"pagedrun {pagedrun.__version__}\n"


def test_help_lists_the_commands_on_stdout(capsys: Any) -> None:
    assert main.run(["--help"]) == 0
    captured = capsys.readouterr()
    for name in main._COMMANDS:
        assert f"\n  {name} " in captured.out
    assert captured.err == ""


def test_nothing_at_all_is_the_help_on_stderr_and_wrong_usage(capsys: Any) -> None:
    assert main.run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Commands:" in captured.err


@pytest.mark.parametrize("command", list(main._COMMANDS))
def test_every_command_has_help(command: str, capsys: Any) -> None:
    assert main.run([command, "-h"]) == 0
    assert f"Usage: pagedrun {command}" in capsys.readouterr().out


def test_hints_name_every_command_as_it_has_to_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_LAUNCHER", "./run")
    for name in main._COMMANDS:
        assert console.typed(f"run: pagedrun {name}") == f"run: ./run {name}"


def test_options_stand_under_their_panels(capsys: Any) -> None:
    main.run(["complete", "--help"])
    out = capsys.readouterr().out
    order = [
        out.index(text) for text in ("\nOptions:", "--raw  ", "\nSampling:", "--temp, ", "\nEngine:", "--kv-type ")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("args", "says", "see"),
    [
        (["compelte"], "there is no command 'compelte'; did you mean 'complete'?", "pagedrun --help"),
        (["zzz"], "there is no command 'zzz'", "pagedrun --help"),
        (["--bogus"], "no such option: --bogus", "pagedrun --help"),
        (["complete", "--temp", "hot"], "invalid value for", "pagedrun complete --help"),
        (["quantize", "x", "--keep-output"], "option '--keep-output' requires an arg", "pagedrun quantize --help"),
        (["pull", "--bogus"], "no such option: --bogus", "pagedrun pull --help"),
    ],
)
def test_wrong_usage_is_two_lines(args: list[str], says: str, see: str, capsys: Any) -> None:
    assert main.run(args) == 2
    captured = capsys.readouterr()
    error, hint = captured.err.splitlines()
    assert error.startswith(f"error: {says}")
    assert hint == f"hint:  see: {see}"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (PagedrunError("it broke", hint="mend it"), 1, "error: it broke\nhint:  mend it\n"),
        (PagedrunError("it broke"), 1, "error: it broke\n"),
        (UsageError("nonsense"), 2, "error: nonsense\n"),
        (PagedrunError("a\x1b[2Jb"), 1, "error: a[2Jb\n"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 1, "error: /x/y: Permission denied\n"),
        (typer.Exit(3), 3, ""),
        (typer.Exit(), 0, ""),
        (typer.Abort(), 130, ""),
    ],
)
def test_endings(raising, error: BaseException, code: int, err: str, capsys: Any) -> None:
    raising(error)
    assert main.run(["fall"]) == code
    assert capsys.readouterr().err == err


@pytest.mark.parametrize("args", [["doctor"], ["doctor", "--json"], ["--help"]])
def test_a_full_disk_behind_stdout(args: list[str], state: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pagedrun", *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("args", "code"),
    [([], 2), (["--help"], 0), (["list"], 0), (["path", "./absent.gguf"], 1), (["absent"], 2), (["path", "hf:x"], 2)],
)
def test_a_stderr_that_nobody_reads_changes_no_exit_code(args: list[str], code: int, state: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for stderr in (writer, os.open("/dev/full", os.O_WRONLY)):
        command = [sys.executable, "-m", "pagedrun", *args]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=stderr, check=False)
        os.close(stderr)
        assert done.returncode == code


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HF_ENDPOINT", "http://[::1", "HF_ENDPOINT is not the address of a hub: http://[::1"),
        ("HF_HUB_ETAG_TIMEOUT", "soon", "Hugging Face's library cannot use its settings: "),
    ],
)
@pytest.mark.parametrize("args", [["search", "m"], ["pull", "hf:me/M"], ["path", "hf:me/M"], ["list"]])
def test_variables_that_a_library_cannot_use_are_no_defect(
    args: list[str], variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)  # read when the library is imported: in a process of its own
    done = subprocess.run([sys.executable, "-m", "pagedrun", *args], capture_output=True, text=True, check=False)
    error, hint = done.stderr.splitlines()
    assert done.returncode == 1 and error.startswith(f"error: {says}") and hint.startswith("hint:  ")


def test_a_defect_is_one_line_and_a_traceback_in_the_log(raising, state: Path, capsys: Any) -> None:
    raising(RuntimeError("first line\nsecond line"))
    assert main.run(["fall"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: this should not have happened: RuntimeError: first line"
    log = state / "errors.log"
    assert str(log) in hint
    assert "Traceback" in log.read_text() and "second line" in log.read_text()
    assert main.run(["fall"]) == 1
    assert log.read_text().count("Traceback") == 2


def test_what_was_asked_is_not_logged(raising, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pagedrun", "complete", "my secret", "--system=also secret", "--raw"])
    raising(RuntimeError())
    main.run(["fall"])
    log = (state / "errors.log").read_text()
    assert "secret" not in log
    assert "--system --raw" in log


def test_verbose_shows_the_traceback(raising, capsys: Any) -> None:
    raising(RuntimeError("oops"))
    main.run(["fall", "-v"])
    assert "Traceback" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_not_promised(raising, state: Path, capsys: Any) -> None:
    state.parent.mkdir(exist_ok=True)
    state.write_text("a file where the folder should be")
    raising(RuntimeError("oops"))
    assert main.run(["fall"]) == 1
    assert capsys.readouterr().err.splitlines()[1] == "hint:  run again with -v for the details"


def test_the_log_keeps_to_its_owner(raising, state: Path) -> None:
    raising(RuntimeError("oops"))
    main.run(["fall"])
    assert stat.S_IMODE((state / "errors.log").stat().st_mode) & 0o077 == 0


def test_hints_name_the_launcher_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.typed("run: pagedrun setup") == "run: pagedrun setup"
    monkeypatch.setenv("PAGEDRUN_LAUNCHER", "scripts/pagedrun")
    assert (
        console.typed("run: pagedrun setup, then pagedrun chat")
        == "run: scripts/pagedrun setup, then scripts/pagedrun chat"
    )
    assert console.typed("pagedrun ships this") == "pagedrun ships this"
