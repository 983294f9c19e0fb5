"""What scripts have in common that try one thing on several models: which, and how much of it."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))
from pagedrun import hub

T = TypeVar("T")


def parser(doc: str | None, kind: type, *names: str, nargs: str = "*", **helps: str) -> argparse.ArgumentParser:
    """Models, --name of the result, and fields of a dataclass with their defaults, some of them with a help.

    nargs: how many models, as argparse has it.
    """
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("models", nargs=nargs, type=Path)
    found.add_argument("--name", default="cpu")
    for name in (*helps, *names):
        default = getattr(kind, name)
        found.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=helps.get(name))
    return found


def made(kind: type[T], args: argparse.Namespace, **more: Any) -> T:
    """The dataclass, as it was asked for."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in vars(args).items() if name in names} | more)


def models(args: argparse.Namespace) -> list[Path]:
    """Those that were named, or the default model."""
    given = args.models or hub.fetch_default_model()
    return given if isinstance(given, list) else [given]


class NowAndThen:
    """Says on stderr how far it is, at most once in so many seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._last > self._every_s:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)
