"""Options of `pagedrun serve` that say which models it has, and how long they stay loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from pagedrun.cli.options import MODEL_HELP, PullOption
from pagedrun.errors import UsageError

ModelsArgument = Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]

_PANEL = "Models"
_STAY_S = 300.0  # Ollama's
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class ServedModelOptions:
    """Which models, whether they may be fetched, and how long they stay loaded."""

    model_option: Annotated[
        list[str] | None,
        typer.Option("-m", "--model", help="The same; may be repeated.", metavar="MODEL", show_default=False),
    ] = None
    pull: PullOption = False
    any_installed: Annotated[
        bool,
        typer.Option(
            "--any-installed",
            help="Serve whatever pagedrun list shows, when it is asked for by name; nothing is fetched.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    keep_loaded: Annotated[
        str | None,
        typer.Option(
            "--keep-alive",
            help="How long a model stays loaded without requests: 10m, 90s, 0: until its last answer has ended, -1: "
            "for ever. Without this option 5m where there may be several, and for ever where there is one.",
            metavar="DURATION",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None

    def keep_s(self, n_models: int, option: str = "--keep-alive") -> float | None:
        """Seconds that a model stays without requests; None: for ever. option: what said so. Raises UsageError."""
        if self.keep_loaded is None:
            return _STAY_S if n_models > 1 or self.any_installed else None
        return seconds(self.keep_loaded, option)


def seconds(text: str, what: str) -> float | None:
    """A duration as people write it: 10m, 1h30m, 90 (seconds); None for one that never ends: -1, forever.

    Raises UsageError that begins with `what`.
    """
    text = text.strip().lower()
    if text in ("forever", "never") or re.fullmatch(r"-\d+[a-z]*", text):
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if text and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    raise UsageError(f"{what} must be a duration, not {text!r}", hint="for example 10m, 1h30m, 90s, 0, or -1: for ever")
