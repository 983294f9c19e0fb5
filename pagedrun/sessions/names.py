"""Names of sessions."""

from __future__ import annotations

from pagedrun.errors import UsageError

_LONGEST = 200  # bytes; a file's name has 255, and what is written aside has a longer one


def checked_name(name: str) -> str:
    """A name that can be a file's, or UsageError."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        n_bytes = _LONGEST + 1
    wrong = ""
    if not name or not name.strip():
        wrong = "is empty"
    elif name != name.strip():
        wrong = "begins or ends with a space"
    elif n_bytes > _LONGEST:
        wrong = f"has more than {_LONGEST} bytes, or is no text"
    elif name[0] in ".-":
        wrong = f"begins with {name[0]!r}"
    elif "/" in name or "\\" in name or not name.isprintable():
        wrong = "has separators or control characters"
    if wrong:
        raise UsageError(f"the session's name {name[:50]!r} {wrong}", hint="use letters, digits, -, _, . and spaces")
    return name
