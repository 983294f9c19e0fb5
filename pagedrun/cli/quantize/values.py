"""Values of `pagedrun quantize`'s options: paths, types, patterns."""

from __future__ import annotations

from pathlib import Path

from pagedrun.errors import UsageError


def path_of(text: str) -> Path:
    """An option's path; "" would be the current folder."""
    if not text:
        raise ValueError("a file's name cannot be empty")
    return Path(text)


def check_readable(option: str, path: Path) -> None:
    """Raises UsageError for a file that cannot be opened."""
    try:
        path.open("rb").close()
    except OSError as e:
        raise UsageError(f"{option}: cannot read {path}: {e.strerror}") from e


def tensor_type(text: str) -> tuple[str, str]:
    """PATTERN=TYPE. Raises UsageError."""
    from pagedrun.quantize import types

    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name:
        raise UsageError(f"--tensor-type {text!r} is not PATTERN=TYPE", hint="for example --tensor-type ffn_down=q6_k")
    return pattern, types.tensor_type("--tensor-type", name)


def type_of(option: str, text: str | None, also: str = "") -> str:
    """The name of a tensor's type, or the word `also`; "" where the option was not given. Raises UsageError."""
    from pagedrun.quantize import types

    if text is None:
        return ""
    return text.lower() if also and text.lower() == also else types.tensor_type(option, text)
