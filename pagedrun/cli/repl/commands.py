"""The /commands: their table, how a line is read as one, and the help made from the table.

What a command does is in `actions`; here is only what it is called.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from pagedrun.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """A /command: `argument` is how help shows it, in brackets when it may be left out, "" for none."""

    name: str
    argument: str
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The command as help shows it."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS = (
    Command("help", "", "this list", ("?",)),
    Command("clear", "", "start over; the system prompt stays"),
    Command("system", "[TEXT]", "show the system prompt, or set it; - for none"),
    Command("regenerate", "", "ask the last question again", ("retry",)),
    Command("undo", "", "take back the last question and its answer"),
    Command("drop", "[N]", "stop sending the oldest N turns; without N, as many as make room"),
    Command("save", "NAME", "save the conversation"),
    Command("load", "[NAME]", "go on with a saved conversation; without NAME, list them"),
    Command("set", "[NAME [VALUE]]", "show or change settings: /set temp 0.3, /set temp default"),
    Command("stats", "", "speeds, context used, memory"),
    Command("exit", "", "leave", ("quit",)),
)
_LINE = re.compile(r"/(\S*)\s*(.*)", re.DOTALL)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}

KEYS = (
    ("Enter", "send"),
    ("Alt-Enter", "new line"),
    ("Ctrl-C", "stop the answer; at the prompt, clear the line"),
    ("Ctrl-D", "leave"),
)


def is_command(line: str) -> bool:
    """Whether a line is meant as a command. A space in front makes it a message."""
    return line.startswith("/")


def parse(line: str) -> tuple[Command, str]:
    """The command of a line and its argument.

    Raises UsageError for an unknown command (with the nearest ones) and for a missing or superfluous argument.
    """
    match = _LINE.fullmatch(line.strip())
    word, argument = match.groups() if match else ("", "")
    command = _BY_NAME.get(word.lower())
    if command is None:
        raise UsageError(f"there is no command /{word}", hint=_suggestion(word))
    if argument and not command.argument:
        raise UsageError(f"/{command.name} takes nothing after it")
    if not argument and command.argument and not command.argument.startswith("["):
        raise UsageError(f"/{command.name} needs a {command.argument}", hint=f"{command.usage}: {command.help}")
    return command, argument


def help_rows() -> list[tuple[str, str]]:
    """(usage, explanation) of every command."""
    return [(c.usage, c.help + "".join(f" (also /{a})" for a in c.aliases)) for c in COMMANDS]


def _suggestion(word: str) -> str:
    close = difflib.get_close_matches(word.lower(), _BY_NAME, 3, 0.5)
    if close:
        return f"did you mean {' or '.join('/' + name for name in close)}?"
    return "/help lists them; put a space in front to send the line as a message"
