"""Conversations as JSON files in the state folder, written aside and renamed; none is replaced without leave."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pagedrun.cli.repl.conversation import Conversation, Turn
from pagedrun.errors import PagedrunError, UsageError
from pagedrun.paths import state_dir
from pagedrun.request import FinishReason

FORMAT = "pagedrun-chat"
VERSION = 1

_SUFFIX = ".json"
_MAX_BYTES = 255 - len(_SUFFIX)  # file systems allow a name 255


def chats_dir() -> Path:
    """Where saved conversations are."""
    return state_dir() / "chats"


def chat_names() -> list[str]:
    """Names that `load` knows, sorted."""
    return sorted(path.stem for path in chats_dir().glob(f"*{_SUFFIX}"))


def chat_path(name: str) -> Path:
    """The file of a saved conversation. Raises UsageError for a name that cannot be a file name."""
    name = unicodedata.normalize("NFC", name)  # one name, however the keyboard composes it
    if not _is_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a chat" if name else "the chat needs a name",
            hint="letters, digits, spaces and - _ . make a name (not too long), for example: /save recipes",
        )
    return chats_dir() / f"{name}{_SUFFIX}"


def _is_name(name: str) -> bool:
    """Letters and digits of any script, inner spaces, and - _ . but of these only _ at the front.

    No path separators, no control characters, no hidden or temporary files.
    """
    return (
        bool(name)
        and all(c in " -_." or unicodedata.category(c)[0] in "LMN" for c in name)
        and (name[0] == "_" or name[0].isalnum())
        and name[-1] not in " ."
        and len(name.encode()) <= _MAX_BYTES
    )


def save(
    conversation: Conversation, name: str, *, model: str, may_replace: Callable[[Path], bool] = lambda _: False
) -> Path:
    """Write a conversation to a file. Raises UsageError for a bad name, and a taken one unless `may_replace` agrees."""
    path = chat_path(name)
    if not conversation.turns and not conversation.system:
        raise UsageError("there is nothing to save yet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False, encoding="utf-8") as file:
            json.dump(to_json(conversation, model=model), file, ensure_ascii=False, indent=1)
            file.write("\n")
    except OSError as e:
        raise PagedrunError(f"cannot write {path}: {e.strerror}") from e
    aside = Path(file.name)
    try:
        if not _claim(path) and not may_replace(path):
            raise UsageError(f"there already is a chat named {name}", hint=f"choose another name, or delete {path}")
        aside.replace(path)
    except OSError as e:
        raise PagedrunError(f"cannot write {path}: {e.strerror}") from e
    finally:
        aside.unlink(missing_ok=True)
    return path


def _claim(path: Path) -> bool:
    """Whether the name was free. It is taken at once: a rename alone would take it from another chat."""
    try:
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    return True


def load(name: str) -> Conversation:
    """Read a saved conversation. Raises UsageError when there is none of that name, or it is damaged."""
    path = chat_path(name)
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(chat_names())
        raise UsageError(
            f"there is no chat named {name}", hint=f"saved: {known}" if known else "none is saved yet"
        ) from None
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(f"{path} is not a saved chat, or it is damaged ({e})") from e


def to_json(conversation: Conversation, *, model: str) -> dict[str, Any]:
    """The conversation as plain JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": conversation.system,
        "dropped": conversation.dropped,
        "turns": [
            {"question": t.question, "reasoning": t.reasoning, "answer": t.answer, "end": t.end.value}
            for t in conversation.turns
        ],
    }


def from_json(data: dict[str, Any]) -> Conversation:
    """The conversation `to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(f"format {data.get('format')!r}, version {data.get('version')!r}")
    turns = tuple(
        Turn(
            question=_text(t["question"]),
            reasoning=_text(t["reasoning"]),
            answer=_text(t["answer"]),
            end=FinishReason(t["end"]),
        )
        for t in data["turns"]
    )
    return Conversation(system=_text(data["system"]), turns=turns, dropped=int(data["dropped"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
