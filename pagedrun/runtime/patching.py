"""Applies unified diffs exactly: every context line must match, or nothing is written.

A hunk may have moved up or down, but only if its old lines occur once in the rest of the file. There is no
fuzz. Only what our patches use is understood: changed, new and deleted text files, paths with one leading component
(a/, b/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pagedrun.errors import PatchError

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_UNSUPPORTED = (b"rename from ", b"copy from ", b"GIT binary patch", b"Binary files ")
_HINT = "the patches and the pinned llama.cpp do not belong together; reinstall pagedrun"


@dataclass(frozen=True)
class Hunk:
    """One place: `before` (old lines) starts at line `start` (from 1) and becomes `after`."""

    start: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass
class FileChange:
    """All hunks of one file; `old` is None for a new file, `new` is None for a deleted one."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)


def apply_patch(name: str, data: bytes, root: Path) -> None:
    """Apply the diff `data` to the tree `root`. Raises PatchError naming the patch, the file and the hunk."""
    results: dict[Path, bytes | None] = {}
    for change in parse(name, data):
        for path in (change.old, change.new):
            if path is not None:
                _check_inside(name, path)
        source = _read(name, change, root, results)
        lines = _changed(name, change, source)
        if change.new is None:
            if lines:
                raise PatchError(f"{name} deletes {change.old}, but not all of its lines", hint=_HINT)
            results[root / str(change.old)] = None
        else:
            results[root / change.new] = b"".join(lines)
    for target, content in results.items():
        if content is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def parse(name: str, data: bytes) -> list[FileChange]:
    """The changes in a diff, in order. Raises PatchError when it is not one that we understand."""
    lines = data.splitlines(keepends=True) if b"\r" not in data else re.findall(rb"[^\n]*\n|[^\n]+$", data)
    changes: list[FileChange] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_UNSUPPORTED):
            raise PatchError(f"{name}, line {at + 1}: renames, copies and binary files are not supported", hint=_HINT)
        if line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            changes.append(FileChange(_path(line), _path(lines[at + 1])))
            at += 2
        elif match := _HUNK.match(line):
            if not changes:
                raise PatchError(f"{name}, line {at + 1}: a hunk before any file name", hint=_HINT)
            hunk, at = _parse_hunk(name, lines, at, match)
            changes[-1].hunks.append(hunk)
        else:
            at += 1  # a commit message, `diff --git`, `index`: for people
    if not changes or any(not change.hunks for change in changes):
        raise PatchError(f"{name} is not a complete unified diff", hint=_HINT)
    return changes


def _parse_hunk(name: str, lines: list[bytes], at: int, match: re.Match[bytes]) -> tuple[Hunk, int]:
    n_before, n_after = (int(match[group]) if match[group] is not None else 1 for group in (2, 4))
    header, before, after = at, list[bytes](), list[bytes]()
    at += 1
    while len(before) < n_before or len(after) < n_after or (at < len(lines) and lines[at].startswith(b"\\")):
        mark, text = (lines[at][:1], lines[at][1:]) if at < len(lines) else (b"", b"")
        if mark == b"\n":  # some editors strip the blank of an empty context line
            mark, text = b" ", b"\n"
        if mark == b"\\":  # "\ No newline at end of file" is about the line above
            _drop_newline(lines[at - 1][:1], before, after)
        elif mark not in (b" ", b"-", b"+"):
            raise PatchError(f"{name}, line {header + 1}: the hunk is cut short", hint=_HINT)
        if mark in (b" ", b"-"):
            before.append(text)
        if mark in (b" ", b"+"):
            after.append(text)
        at += 1
    if (len(before), len(after)) != (n_before, n_after):
        raise PatchError(f"{name}, line {header + 1}: the hunk's lines do not add up", hint=_HINT)
    return Hunk(int(match[1]), tuple(before), tuple(after)), at


def _drop_newline(mark: bytes, before: list[bytes], after: list[bytes]) -> None:
    for lines, marks in ((before, (b" ", b"-")), (after, (b" ", b"+"))):
        if mark in marks and lines:
            lines[-1] = lines[-1].removesuffix(b"\n")


def _path(line: bytes) -> str | None:
    """The path in a `--- a/x` or `+++ b/x` line; None for /dev/null."""
    text = line[4:].split(b"\t")[0].strip().decode()
    return None if text == "/dev/null" else text.partition("/")[2]


def _check_inside(name: str, path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise PatchError(f"{name} names the path {path!r}, which is outside the sources", hint=_HINT)


def _read(name: str, change: FileChange, root: Path, results: dict[Path, bytes | None]) -> bytes:
    if change.old is None:
        target = root / str(change.new)
        if results.get(target) is not None or (target not in results and target.exists()):
            raise PatchError(f"{name} adds {change.new}, which is already there", hint=_HINT)
        return b""
    path = root / change.old
    content = results[path] if path in results else (path.read_bytes() if path.is_file() else None)
    if content is None:
        raise PatchError(f"{name} changes {change.old}, which is not in the sources", hint=_HINT)
    return content


def _changed(name: str, change: FileChange, source: bytes) -> list[bytes]:
    lines = re.findall(rb"[^\n]*\n|[^\n]+$", source)
    result: list[bytes] = []
    cursor = moved = 0
    for number, hunk in enumerate(change.hunks, 1):
        # A hunk without old lines names the line that it goes behind.
        expected = hunk.start - (1 if hunk.before else 0) + moved
        place = _find(lines, hunk, cursor, expected)
        if place is None:
            raise PatchError(
                f"{name} does not apply: hunk {number} of {len(change.hunks)} (line {hunk.start}) of "
                f"{change.old or change.new}",
                hint=_HINT,
            )
        moved += place - expected
        result += lines[cursor:place]
        result += hunk.after
        cursor = place + len(hunk.before)
    return result + lines[cursor:]


def _find(lines: list[bytes], hunk: Hunk, cursor: int, expected: int) -> int | None:
    """The index where the hunk applies: as expected, or at the only other place where its lines are."""
    n, before = len(hunk.before), list(hunk.before)
    if cursor <= expected <= len(lines) - n and lines[expected : expected + n] == before:
        return expected
    if not before:
        return None
    places = [i for i in range(cursor, len(lines) - n + 1) if lines[i : i + n] == before]
    return places[0] if len(places) == 1 else None
