"""What `--session NAME` means to `chat` and `complete`: what was said so far, and saving what is said next.

What was said is the session's text, as JSON: a chat as `/save` writes it, or with --raw the text itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pagedrun.cli import console
from pagedrun.errors import DamagedTextError, PagedrunError, UsageError
from pagedrun.paths import sessions_dir
from pagedrun.units import count

if TYPE_CHECKING:
    from pagedrun.cli.repl.conversation import Conversation
    from pagedrun.durable import NamedSession
    from pagedrun.service import Answerer

RAW = "pagedrun-raw"
VERSION = 1


class Kept:
    """A session in use."""

    def __init__(self, session: NamedSession) -> None:
        self._session = session
        self._saved = session.note
        self._tokens: Sequence[int] = ()
        self._last: Future[None] | None = None
        self._model = ""

    @property
    def name(self) -> str:
        """As it was typed."""
        return self._session.name

    @property
    def model(self) -> str | None:
        """What it was saved with, as a user types it; None for a new one."""
        return self._session.model or None

    def attach(self, service: Answerer, model: str) -> None:
        """Prompts go on from the session's pages. Warns where they cannot; raises SessionError for another model."""
        self._model = model
        self._session.attach(service, model)
        if not self._session.refused or turns_in(self._session.note) == 0:
            return
        tokens = self._session.tokens
        what = f"{count(tokens, 'token')} have" if tokens else "what was said has"
        console.warn(f"{self.name}: {what} to be read again: {self._session.refused}")

    def conversation(self) -> Conversation:
        """What was said, as a chat. Raises UsageError for a session of --raw."""
        from pagedrun.cli.repl import saved
        from pagedrun.cli.repl.conversation import Conversation

        found = self._parsed()
        if found is None:
            return Conversation()
        if found.get("format") == RAW:
            raise UsageError(f"{self.name!r} is a session of --raw", hint="add --raw, or use another name")
        try:
            return saved.from_json(found)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise self._damaged(e) from e

    def text(self) -> str:
        """What was said, with --raw. Raises UsageError for a chat."""
        found = self._parsed()
        if found is None:
            return ""
        if found.get("format") != RAW:
            raise UsageError(f"{self.name!r} is a chat", hint="leave --raw out, or use another name")
        if not isinstance(text := found.get("text"), str):
            raise self._damaged("it has no text")
        return text

    def save(self, conversation: Conversation, tokens: Sequence[int]) -> None:
        """Save a chat in the background. tokens: of the last prompt and its answer."""
        self._save(_chat_note(conversation, self._model), tokens)

    def changed(self, conversation: Conversation, tokens: Sequence[int]) -> None:
        """Save a chat that nothing was said in, but something changed. tokens: of what is said so far."""
        if _differs(note := _chat_note(conversation, self._model), self._saved):
            self._save(note, tokens)

    def save_text(self, text: str, tokens: Sequence[int]) -> None:
        """The same with --raw."""
        self._save(json.dumps({"format": RAW, "version": VERSION, "text": text}), tokens)

    def finish(self, conversation: Conversation | None = None) -> None:
        """Wait for saves; a chat that was changed since the last one is saved. Raises SessionError."""
        self._wait()
        if conversation is not None:
            self.changed(conversation, self._tokens)
            self._wait()

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _save(self, note: str, tokens: Sequence[int]) -> None:
        if self._last is not None and self._last.done() and (error := self._last.exception()) is not None:
            console.warn(str(error))
        self._saved, self._tokens = note, tokens
        self._last = self._session.save(tokens, note)

    def _parsed(self) -> dict[str, Any] | None:
        if not self._session.note:
            return None
        try:
            found = json.loads(self._session.note)
        except ValueError as e:
            raise self._damaged(e) from e
        if not isinstance(found, dict):
            raise self._damaged("it is no object")
        return found

    def _damaged(self, why: object) -> PagedrunError:
        return DamagedTextError(f"what was said in {self.name!r} cannot be read: {why}", hint="use another name")


@contextmanager
def kept(name: str | None) -> Iterator[Kept | None]:
    """The session of that name, which nobody else has meanwhile; None for None."""
    if name is None:
        yield None
        return
    from pagedrun.durable import NamedSession
    from pagedrun.sessions import SessionFolder

    with NamedSession(SessionFolder(sessions_dir(), 0), name) as session:
        yield Kept(session)


def turns_in(note: str) -> int | None:
    """How many turns a session's text has; None where it is no chat."""
    try:
        return len(json.loads(note)["turns"])
    except (ValueError, KeyError, TypeError):
        return None


def _chat_note(conversation: Conversation, model: str) -> str:
    from pagedrun.cli.repl import saved

    return json.dumps(saved.to_json(conversation, model=model), ensure_ascii=False)


def _differs(new: str, old: str) -> bool:
    """Whether something else was said: when it was saved does not count."""
    if not old:
        return bool(json.loads(new)["turns"])
    a, b = json.loads(new), json.loads(old)
    return any(a.get(part) != b.get(part) for part in ("system", "turns", "dropped"))
