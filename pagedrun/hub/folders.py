"""Looking at files and folders that others keep: nothing here raises for what is absent, closed, broken or circular."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Real trees are less deep, and real manifests and settings smaller.
_DEPTH = 6
_JSON_BYTES = 1 << 20


def found_at(path: Path) -> os.stat_result | None:
    """What the system says about a path; None for what is not there, not allowed, or too long to be a path."""
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def is_file(path: Path) -> bool:
    """Whether there is a file, or a link to one, that can be seen."""
    found = found_at(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: Path) -> bool:
    """Whether there is a folder, or a link to one, that can be seen."""
    found = found_at(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_broken_link(path: Path) -> bool:
    """Whether there is a link that leads to nothing."""
    return os.path.islink(path) and found_at(path) is None  # noqa: PTH114 - the other raises for what is too long


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name, hidden things left out; nothing when it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError):
        return []


def below(folder: Path, suffix: str = "") -> Iterator[Path]:
    """Files below a folder, by name, behind links too, each folder once; nothing hidden, nothing broken."""
    waiting = [(folder, 0)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        here, depth = waiting.pop(0)
        found = found_at(here)
        if found is None or (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        for path in entries(here):
            if is_folder(path):
                waiting += [(path, depth + 1)] if depth < _DEPTH else []
            elif path.name.lower().endswith(suffix) and is_file(path):
                yield path


def distinct(folders: list[Path]) -> list[Path]:
    """Each folder once, by its first name."""
    found: dict[str, Path] = {}
    for folder in folders:
        found.setdefault(os.path.realpath(folder), folder)
    return list(found.values())


def size_of(path: Path) -> int:
    """Its bytes; 0 for what is not there any more."""
    found = found_at(path)
    return found.st_size if found else 0


def text_of(path: Path) -> str:
    """The beginning of a text file; nothing when it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_JSON_BYTES)
    except OSError:
        return ""


def json_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one when there is none."""
    try:
        value = json.loads(text_of(path))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
