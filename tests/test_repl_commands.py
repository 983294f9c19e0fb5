"""The table of commands, /set, completion, reading from a pipe."""

from __future__ import annotations

import io
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.cli.repl import actions, commands
from pagedrun.cli.repl.prompt import PipeReader, clean, completions
from pagedrun.cli.repl.settings import CHAT, NAMES, SAMPLING, Settings
from pagedrun.errors import UsageError
from pagedrun.sampling import SamplingParams

REQUIRED = {"help", "clear", "system", "regenerate", "undo", "save", "load", "set", "stats", "exit"}


def test_the_table_has_what_was_promised_and_every_command_does_something() -> None:
    names = {c.name for c in commands.COMMANDS}
    assert names >= REQUIRED
    assert names == actions.ACTIONS.keys()
    called = [name for c in commands.COMMANDS for name in (c.name, *c.aliases)]
    assert len(called) == len(set(called)) and "quit" in called


def test_help_is_made_from_the_table() -> None:
    shown = dict(commands.help_rows())
    assert shown.keys() == {c.usage for c in commands.COMMANDS}
    assert "/quit" in shown["/exit"]


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/?", "help", ""),
        ("/EXIT  ", "exit", ""),
        ("/quit", "exit", ""),
        ("/system  You are  terse. ", "system", "You are  terse."),
        ("/system\nfirst\nsecond", "system", "first\nsecond"),
        ("/set temp 0.3", "set", "temp 0.3"),
        ("/load", "load", ""),
        ("/save my chat", "save", "my chat"),
    ],
)
def test_lines_are_read_as_commands(line: str, name: str, argument: str) -> None:
    command, given_argument = commands.parse(line)
    assert (command.name, given_argument) == (name, argument)


@pytest.mark.parametrize(
    ("line", "hint"),
    [("/hepl", "/help"), ("/regenrate", "/regenerate"), ("/ex", "/exit"), ("/etc/passwd", "space in front"), ("/", "")],
)
def test_an_unknown_command_suggests_close_ones(line: str, hint: str) -> None:
    with pytest.raises(UsageError, match="no command") as e:
        commands.parse(line)
    assert hint in e.value.hint


def test_arguments_must_be_there_where_they_are_needed_and_only_there() -> None:
    with pytest.raises(UsageError, match="needs a NAME"):
        commands.parse("/save")
    with pytest.raises(UsageError, match="takes nothing"):
        commands.parse("/clear everything")


@given(st.text())
def test_any_line_is_a_command_or_an_error(text: str) -> None:
    try:
        command, _ = commands.parse("/" + text)
    except UsageError:
        return
    assert command in commands.COMMANDS


def settings_with_layers() -> Settings:
    return Settings(
        base=SamplingParams(top_p=0.5, logit_bias=((1, 2.0),)),
        flags={"top_p": 0.5, "stats": True},
        registry=lambda think: {"temperature": 0.6 if think else 0.7, "min_p": 0.01},
        model_file={"min_p": 0.2, "top_k": 20},
    )


def test_each_setting_comes_from_the_highest_layer_that_has_it() -> None:
    s = settings_with_layers()
    shown = {row.name: (row.value, row.origin) for row in s}
    assert shown.keys() == set(NAMES)
    assert shown["top_p"] == ("0.5", "command line")
    assert shown["temperature"] == ("0.7", "registry")
    assert shown["min_p"] == ("0.01", "registry")
    assert shown["top_k"] == ("20", "model file")
    assert shown["typical_p"] == ("1", "llama.cpp")
    assert shown["seed"] == ("random", "default")
    assert shown["stats"] == ("on", "command line")
    assert shown["think"] == ("as the model does", "default")


def test_what_is_set_goes_first_and_default_takes_it_back() -> None:
    s = settings_with_layers()
    assert s.set("temp", "0.3").value == "0.3" and s.set("top-p", "0.9").origin == "/set"
    sampling = s.sampling()
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.3, 0.9, 0.01)
    assert sampling.logit_bias == ((1, 2.0),) and sampling.top_k is None  # the service fills in the rest
    assert s.set("top_p", "default").origin == "command line"
    assert s.set("temperature", "DEFAULT").origin == "registry"
    assert s.sampling().top_p == 0.5


def test_recommended_sampling_follows_thinking() -> None:
    s = settings_with_layers()
    assert s.sampling().temperature == 0.7
    s.set("think", "on")
    assert s.value("think") is True and s.sampling().temperature == 0.6
    s.set("think", "off")
    assert s.value("think") is False
    s.set("think", "default")
    assert s.value("think") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temp", "-1"),
        ("temp", "warm"),
        ("temp", "nan"),
        ("top_p", "1.5"),
        ("top_k", "2.5"),
        ("seed", "-3"),
        ("think", "maybe"),
        ("max_tokens", "0"),
        ("temprature", "1"),
    ],
)
def test_a_wrong_value_is_refused_and_changes_nothing(name: str, text: str) -> None:
    s = settings_with_layers()
    before = list(s)
    with pytest.raises(UsageError):
        s.set(name, text)
    assert list(s) == before


def test_a_misspelled_setting_suggests_close_ones() -> None:
    with pytest.raises(UsageError) as e:
        Settings().set("temprature", "1")
    assert "temperature" in e.value.hint


def test_every_scalar_of_sampling_can_be_set() -> None:
    lists = {"logit_bias", "dry_sequence_breakers"}
    assert set(SAMPLING) == {f.name for f in fields(SamplingParams)} - lists
    assert not set(SAMPLING) & CHAT.keys()


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("/re", ["regenerate"]),
        ("/s", ["system", "save", "set", "stats"]),
        ("/set tem", ["temperature"]),
        ("/load re", ["recipes"]),
        ("/load recipes", []),
        ("/undo x", []),
        ("hello /re", []),
        ("/re\n", []),
        ("", []),
    ],
)
def test_completions(before: str, expected: list[str]) -> None:
    arguments = {"set": lambda: NAMES, "load": lambda: ["recipes", "other"]}
    found = list(completions(before, arguments))
    assert [text for text, _, _ in found] == expected
    assert all(before.endswith(typed) for _, _, typed in found)


def test_a_pipe_is_read_line_by_line() -> None:
    reader = PipeReader(io.BytesIO("eins\r\n\nzwölf".encode()))
    assert [reader.read(), reader.read(), reader.read()] == ["eins", "", "zwölf"]
    with pytest.raises(EOFError):
        reader.read()
    assert reader.confirm("really?") is False


@pytest.mark.parametrize(("data", "said"), [(b"ok\nb\xffd\n", "line 2 .* not UTF-8"), (b"ok\nb\0d\n", "line 2 .* NUL")])
def test_what_is_no_text_is_named(data: bytes, said: str) -> None:
    reader = PipeReader(io.BytesIO(data))
    reader.read()
    with pytest.raises(UsageError, match=said):
        reader.read()


@given(st.binary())
def test_typed_bytes_become_text_that_can_be_stored(data: bytes) -> None:
    clean(data.decode("utf-8", "surrogateescape")).encode("utf-8")
