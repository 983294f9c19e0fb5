"""What /set shows and changes: sampling settings and how the chat behaves, each with where its value comes from.

/set here  >  command line  >  registry (models.toml)  >  the model file  >  llama.cpp
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagedrun.errors import ParameterError, UsageError
from pagedrun.sampling import LLAMA_DEFAULTS, SamplingParams

#: Settings of the chat itself: name -> (default, what it does).
CHAT: dict[str, tuple[Any, str]] = {
    "think": (None, "let the model think before it answers: on, off, or default (as the model is used to)"),
    "show_thinking": (False, "print the thinking"),
    "max_tokens": (None, "longest answer in tokens; default: no limit"),
    "stats": (False, "a line with speeds after each answer"),
    "auto_drop": (False, "drop the oldest turns without asking when the context is full"),
}
SAMPLING = (*LLAMA_DEFAULTS, "seed", "ignore_eos")
NAMES = (*CHAT, *SAMPLING)
_ALIASES = {"temp": "temperature", "typical": "typical_p", "n": "max_tokens"}
_SWITCHES = ("think", "show_thinking", "stats", "auto_drop", "ignore_eos")
_FLOATS = tuple(name for name, value in LLAMA_DEFAULTS.items() if isinstance(value, float))
_ON_OFF = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as /set lists it."""

    name: str
    value: str
    origin: str


@dataclass(slots=True, kw_only=True)
class Settings:
    """The settings in force.

    flags: what the command line gave, sampling and chat settings by name, without Nones.
    registry: recommended sampling for thinking on, off or by default; registry_think: whether to think by default.
    model_file: the GGUF's own sampling.
    base: sampling from the command line, which also carries what /set cannot show (biases, DRY's breakers).
    """

    base: SamplingParams = field(default_factory=SamplingParams)
    flags: Mapping[str, Any] = field(default_factory=dict)
    registry: Callable[[bool | None], Mapping[str, Any]] = lambda _think: {}
    registry_think: bool | None = None
    model_file: Mapping[str, Any] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """A setting's value in force; None is "no limit", "random" or "as the model is used to"."""
        return self._find(name)[0]

    def sampling(self) -> SamplingParams:
        """The sampling of the next answer, as far as chat decides it; the service fills in the rest."""
        chosen = {name: value for name, value in self.chosen.items() if name in SAMPLING}
        # Here and not at load time, because what is recommended changes with `/set think`.
        return self._override(chosen).with_defaults(self.registry(self.value("think")))

    def set(self, name: str, text: str) -> Shown:
        """Change a setting from what the user typed; "default" takes the change back.

        Raises UsageError for an unknown name and for a value that is out of range.
        """
        name = canonical(name)
        if text.lower() == "default":
            self.chosen.pop(name, None)
            return self.show(name)
        value = _parse(name, text)
        if name in SAMPLING:
            try:
                self._override({name: value})
            except ParameterError as e:  # the same mistake on the command line is wrong usage too
                raise UsageError(e.message, hint=e.hint) from e
        self.chosen[name] = value
        return self.show(name)

    def show(self, name: str) -> Shown:
        """A setting with its value and origin as text. Raises UsageError for an unknown name."""
        name = canonical(name)
        value, origin = self._find(name)
        return Shown(name, _text(name, value), origin)

    def __iter__(self) -> Iterator[Shown]:
        return (self.show(name) for name in NAMES)

    def _find(self, name: str) -> tuple[Any, str]:
        if name in self.chosen:
            return self.chosen[name], "/set"
        if name in self.flags:
            return self.flags[name], "command line"
        if name == "think" and self.registry_think is not None:
            return self.registry_think, "registry"
        if name in CHAT:
            return CHAT[name][0], "default"
        layers = (
            (self.registry(self.value("think")), "registry"),
            (self.model_file, "model file"),
            (LLAMA_DEFAULTS, "llama.cpp"),
        )
        for layer, origin in layers:
            if layer.get(name) is not None:
                return layer[name], origin
        return (False if name == "ignore_eos" else None), "default"

    def _override(self, values: dict[str, Any]) -> SamplingParams:
        return self.base.override(**values)


def canonical(name: str) -> str:
    """A setting's full name. Raises UsageError with the nearest ones for an unknown name."""
    plain = name.strip().lower().replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    if plain in NAMES:
        return plain
    close = difflib.get_close_matches(plain, (*NAMES, *_ALIASES), 3, 0.6)
    raise UsageError(
        f"there is no setting {name!r}", hint=f"did you mean {' or '.join(close)}?" if close else "/set lists them all"
    )


def _parse(name: str, text: str) -> Any:
    if name in _SWITCHES:
        if text.lower() not in _ON_OFF:
            raise UsageError(f"{name} can be on, off or default, not {text!r}")
        return _ON_OFF[text.lower()]
    kind, what = (float, "a number") if name in _FLOATS else (int, "a whole number")
    try:
        value = kind(text)
    except ValueError:
        raise UsageError(f"{name} must be {what} or default, not {text!r}") from None
    if name == "max_tokens" and value < 1:
        raise UsageError(f"max_tokens must be 1 or more, not {value}")
    return value


def _text(name: str, value: Any) -> str:
    if value is None:
        return {"think": "as the model does", "max_tokens": "no limit", "seed": "random"}.get(name, "-")
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
