"""The config file's table [serve]: options of `pagedrun serve`, by their long names with _ for -.

    [serve]
    model = "qwen3.6-35b"
    port = 8080
    api_key_file = "keys"        from the config file's folder, where it is relative
    cors = ["http://localhost:3000"]

An option of the command line is used in place of the file's.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from typer.models import OptionInfo

from pagedrun.config import SERVE, EngineConfig, read_config
from pagedrun.errors import UsageError
from pagedrun.paths import expanded

G = TypeVar("G")

#: Options that are none of the file's, and what to do instead.
_REFUSED = {"api_key": "put keys into a file of their own that others cannot read, and name it with api_key_file"}

_ENGINE = frozenset(field.name for field in fields(EngineConfig))


class _Option(NamedTuple):
    """An option as the file has it. field: of its group; kinds: of its values."""

    field: str
    kinds: tuple[Any, ...]
    low: float | None
    high: float | None


class ServeFile:
    """The table of one file. Take out of it what there is, then `check` that nothing is left.

    file: None for the usual one. given: whether the command line has an option, by its parameter's name.
    Raises UsageError.
    """

    def __init__(self, file: Path | None, given: Callable[[str], bool]) -> None:
        self._path, written = read_config(file)
        self._table = written.get(SERVE, {})
        self._given = given
        self._known: set[str] = set()
        self._used: set[str] = set()
        if not isinstance(self._table, dict):
            raise UsageError(f"{self._path}: {SERVE} is no table", hint=f"begin it with a line [{SERVE}]")

    def fill(self, group: G) -> G:
        """The group of options, with what the file has and the command line has not. Raises UsageError."""
        values = {}
        for name, option in _options(type(group)).items():
            if name in _REFUSED:
                continue
            self._known.add(name)
            if name in self._table:
                value = self._value(option, name)  # checked also where it is not used
                if not self._given(option.field):
                    values[option.field] = value
                    self._used.add(name)
        return replace(group, **values)  # type: ignore[type-var]

    def check(self) -> None:
        """Raise UsageError for a name that no group had."""
        for name in self._table:
            if name in self._known:
                continue
            close = difflib.get_close_matches(name.lower(), self._known, 1, 0.75)
            known = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(self._known))}"
            if name in _ENGINE:
                known = f"it is the engine's: put it above [{SERVE}]"
            raise UsageError(f"{self._called(name)}: there is no such setting", hint=_REFUSED.get(name, known))

    def called(self, name: str) -> str:
        """What to call a setting in an error: as the file has it where that one is in use, else the option."""
        return self._called(name) if name in self._used else f"--{name.replace('_', '-')}"

    def _called(self, name: str) -> str:
        return f"{self._path}: [{SERVE}] {name}"

    def _value(self, option: _Option, name: str) -> Any:
        value = _converted(self._table[name], option.kinds, self._called(name), self._path.parent)
        if option.low is not None and value < option.low:
            raise UsageError(f"{self._called(name)} must be {option.low} or more, not {value}")
        if option.high is not None and value > option.high:
            raise UsageError(f"{self._called(name)} must be {option.high} or less, not {value}")
        return value


def _options(group: type[Any]) -> dict[str, _Option]:
    """The options of a group by the names that they have in a file."""
    hints, plain = get_type_hints(group, include_extras=True), get_type_hints(group)
    found = {}
    for field in fields(group):
        info = next((one for one in get_args(hints[field.name])[1:] if isinstance(one, OptionInfo)), None)
        if info is None:
            continue
        texts = (str(info.default), *(info.param_decls or ()))  # typer takes the first one for the default
        flags = [one for text in texts for one in text.split("/") if one.startswith("--")]
        name = (flags[0] if flags else field.name).lstrip("-").replace("-", "_")
        kind = plain[field.name]
        kinds = tuple(one for one in get_args(kind) if one is not type(None)) if not _is_list(kind) else (kind,)
        found[name] = _Option(field.name, kinds or (kind,), info.min, info.max)
    return found


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


def _converted(value: Any, kinds: tuple[Any, ...], what: str, folder: Path) -> Any:
    """A value of the file as one of these. Raises UsageError that begins with `what`."""
    kind = kinds[0]
    if _is_list(kind):
        values = value if isinstance(value, list) else [value]
        if values and all(isinstance(one, str) and one for one in values):
            return values
        raise UsageError(f"{what} must be a text or a list of texts, not {value!r}")
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{what} must be true or false, not {value!r}")
    if isinstance(value, bool):
        raise UsageError(f"{what} cannot be {value!r}")
    if kind is int and not isinstance(value, int):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    if kind is float:
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        raise UsageError(f"{what} must be a number, not {value!r}")
    if kind is Path:
        if isinstance(value, str) and value:
            return folder / expanded(Path(value))
        raise UsageError(f"{what} must be the name of a file, not {value!r}")
    if kind is str:
        if isinstance(value, str | int | float):  # a size may be a number
            return str(value)
        raise UsageError(f"{what} must be a text, not {value!r}")
    return value
