"""Reading what the user says: prompt_toolkit on a terminal, plain lines from a pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pagedrun.cli import console
from pagedrun.cli.repl import commands
from pagedrun.errors import UsageError

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

#: Completions of a command's argument, by command name.
ArgumentCompletions = dict[str, Callable[[], Iterable[str]]]

_PROMPT = "> "
_CONTINUATION = "  "


class CommandInstead(Exception):  # noqa: N818 - no error: what the user wants now
    """A yes-or-no question was answered with a /command: it is to be done, and what was asked about is not."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class LineReader(Protocol):
    """Where messages come from."""

    interactive: bool

    def read(self) -> str:
        """The next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        ...

    def confirm(self, question: str) -> bool:
        """Ask yes or no; no is the default, and the answer where nobody can be asked. Raises CommandInstead."""
        ...


class PipeReader:
    """One message per line, from something that is not a terminal."""

    interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines = 0

    def read(self) -> str:
        """The next line. Raises UsageError for one that is not text."""
        line = self._stream.readline()
        if not line:
            raise EOFError
        self._lines += 1
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as e:
            raise UsageError(f"line {self._lines:,} of the input is not UTF-8 text (byte {e.start:,})") from None
        if "\0" in text:
            raise UsageError(f"line {self._lines:,} of the input has a NUL byte: it is not text")
        return text.rstrip("\r\n")

    def confirm(self, question: str) -> bool:
        """No: there is nobody to ask."""
        return False


class TerminalReader:
    """prompt_toolkit: history across runs, completion of commands, lines by Alt-Enter or paste."""

    interactive = True

    def __init__(self, history_file: Path, completions: ArgumentCompletions, warn: Callable[[str], None]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        # The terminal may be on stderr only: `pagedrun chat > answers.md`. Otherwise prompt_toolkit is to choose,
        # as it spares a dumb terminal its escape sequences only then.
        self._output = None if console.is_terminal(sys.stdout) else create_output(always_prefer_tty=True)
        self._session: PromptSession[str] = PromptSession(
            message=_PROMPT,
            multiline=True,
            prompt_continuation=lambda _width, _line, _wrapped: _CONTINUATION,
            key_bindings=_keys(),
            history=_history(history_file, warn),
            completer=_completer(completions),
            complete_while_typing=True,
            reserve_space_for_menu=4,
            output=self._output,
        )

    def read(self) -> str:
        """The next message, however many lines it has."""
        return clean(self._session.prompt())

    def confirm(self, question: str) -> bool:
        """Ask on a line of its own, again after anything but an answer. Raises CommandInstead for a /command."""
        from prompt_toolkit import PromptSession

        session: PromptSession[str] = PromptSession(output=self._output)
        while True:
            try:
                text = clean(session.prompt(f"{question} [y/N] ")).strip()
            except (EOFError, KeyboardInterrupt):
                return False
            if text.lower() in ("y", "yes"):
                return True
            if text.lower() in ("", "n", "no"):
                return False
            self._session.history.append_string(text)  # a message typed too early: Up brings it back
            if commands.is_command(text):
                raise CommandInstead(text)
            console.note("y or n, please; what you typed is not sent, and the Up key will bring it back")


def open_reader(history_file: Path, completions: ArgumentCompletions, warn: Callable[[str], None]) -> LineReader:
    """The reader that fits stdin."""
    if sys.stdin is None:
        return PipeReader(io.BytesIO())
    if not sys.stdin.isatty():
        return PipeReader(sys.stdin.buffer)
    return TerminalReader(history_file, completions, warn)


def clean(text: str) -> str:
    """Text as it can be stored and tokenised: bytes that were not UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@contextmanager
def silent_keyboard() -> Iterator[None]:
    """Keep keys from being echoed into an answer. They are not lost: the next prompt gets them."""
    import termios

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, AttributeError, termios.error):  # not a terminal, or closed
        yield
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history(path: Path, warn: Callable[[str], None]) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class CleanFileHistory(FileHistory):
        """FileHistory cannot write what is not UTF-8."""

        def store_string(self, string: str) -> None:
            super().store_string(clean(string))

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # what people say to a model is their own business
    except OSError as e:
        warn(f"the input history is not kept: cannot write {path}: {e.strerror}")
        return InMemoryHistory()
    return CleanFileHistory(str(path))


def _completer(arguments: ArgumentCompletions) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class CommandCompleter(Completer):
        """Completes /commands and their first argument."""

        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            for text, meta, typed in completions(document.text_before_cursor, arguments):
                yield Completion(text, start_position=-len(typed), display_meta=meta)

    return CommandCompleter()


def completions(before: str, arguments: ArgumentCompletions) -> Iterator[tuple[str, str, str]]:
    """(completion, explanation, the typed part it replaces) for the text before the cursor."""
    if not commands.is_command(before) or "\n" in before:
        return
    word, space, argument = before[1:].partition(" ")
    if not space:
        for command in commands.COMMANDS:
            if command.name.startswith(word.lower()):
                yield command.name, command.help, word
        return
    for candidate in arguments.get(word.lower(), tuple)():
        if candidate.startswith(argument) and candidate != argument:
            yield candidate, "", argument
