"""Conversations as JSON files in the state folder. Written aside and renamed; an existing one is never replaced."""

from __future__ import annotations

import json
import re
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pagedrun.cli.repl.conversation import Conversation, Turn
from pagedrun.errors import PagedrunError, UsageError
from pagedrun.paths import state_dir
from pagedrun.request import FinishReason

FORMAT = "pagedrun-chat"
VERSION = 1

# Letters, digits, inner spaces, and - _ . but not at the front: no path separators, no hidden or temporary files.
_NAME = re.compile(r"\w[\w .-]{0,99}", re.ASCII)


def chats_dir() -> Path:
    """Where saved conversations are."""
    return state_dir() / "chats"


def chat_names() -> list[str]:
    """Names that `load` knows, sorted."""
    return sorted(path.stem for path in chats_dir().glob("*.json"))


def chat_path(name: str) -> Path:
    """The file of a saved conversation. Raises UsageError for a name that cannot be a file name."""
    if not _NAME.fullmatch(name) or name.endswith((" ", ".")):
        raise UsageError(
            f"{name!r} cannot be the name of a chat" if name else "the chat needs a name",
            hint="letters, digits, spaces and - _ . make a name, for example: /save recipes",
        )
    return chats_dir() / f"{name}.json"


def save(conversation: Conversation, name: str, *, model: str) -> Path:
    """Write a conversation to a new file. Raises UsageError when the name is taken or bad."""
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
        path.touch(mode=0o600, exist_ok=False)  # claims the name, which a rename alone would take from another chat
        aside.replace(path)
    except FileExistsError:
        raise UsageError(
            f"there already is a chat named {name}", hint=f"choose another name, or delete {path}"
        ) from None
    except OSError as e:
        raise PagedrunError(f"cannot write {path}: {e.strerror}") from e
    finally:
        aside.unlink(missing_ok=True)
    return path


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
