"""`pagedrun list`: the models on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pagedrun.gguf_file import ModelFacts
    from pagedrun.hub.library import Entry
    from pagedrun.memory import Fit

_TITLES = ("NAME", "SIZE", "QUANT", "CONTEXT", "WHERE", "LAST USED", "FITS")
_FITS = {"gpu": "GPU", "gpu+ram": "GPU and RAM", "ram": "RAM", "no": "no"}


@dataclass(frozen=True, slots=True)
class _Listed:
    """One line. facts: from the file's header; None where it is damaged, and `problem` says how."""

    entry: Entry
    facts: ModelFacts | None
    problem: str | None
    fit: Fit

    @property
    def is_model(self) -> bool:
        """Damaged files count as models; what can only go along with one, or was made for quantising, does not."""
        return self.facts is None or self.facts.kind == "model"

    @property
    def quantization(self) -> str | None:
        """As the file says; other kinds of files (adapters, importance matrices) are called what they are."""
        if self.facts is None:
            return None
        return self.facts.quantization or None if self.is_model else self.facts.kind

    @property
    def context(self) -> int | None:
        """Tokens; the registry knows better what a model was trained for."""
        known = self.entry.spec.context if self.entry.spec else None
        return known or (self.facts.context if self.facts else None)


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array; sizes in bytes.")] = False,
) -> None:
    """List the models on this machine, those of other programs too: each can be used by its name, without a copy.

    FITS says where a model would go in the memory that is free now, with a small context.
    """
    from pagedrun import machine
    from pagedrun.cli import table
    from pagedrun.hub import library

    free = machine.free_memory()
    listed = [_look(entry, free) for entry in library.entries()]
    if as_json:
        table.print_json([_to_json(one) for one in listed])
        return
    table.print_table(_TITLES, [_row(one) for one in listed], right=("SIZE", "CONTEXT"))
    _summarise(listed, free)
    _show_unfinished([one.entry for one in listed])


def _look(entry: Entry, free: Any) -> _Listed:
    from pagedrun.errors import ModelFileError
    from pagedrun.gguf_file import read_facts
    from pagedrun.memory import fit

    try:
        facts, problem = read_facts(entry.paths[0]), None
    except ModelFileError as e:
        facts, problem = None, e.message
    return _Listed(entry, facts, problem, fit(entry.size, free))


def _row(one: _Listed) -> tuple[str, ...]:
    from pagedrun.hub.places import TITLES
    from pagedrun.units import count, size

    return (
        one.entry.name,
        size(one.entry.size),
        one.quantization or "-",
        count(one.context) if one.context else "-",
        TITLES[one.entry.place],
        ago(one.entry.last_used),
        "damaged" if one.problem else _FITS[one.fit.where] if one.is_model else "-",
    )


def ago(when: float | None) -> str:
    """How long ago, in one unit; after a month, the day."""
    from pagedrun.units import count

    if when is None:
        return "never"
    passed = time.time() - when
    for unit, seconds, up_to in (("minute", 60, 3600), ("hour", 3600, 86_400), ("day", 86_400, 30 * 86_400)):
        if passed < seconds:
            return "just now"
        if passed < up_to:
            return f"{count(int(passed // seconds), unit)} ago"
    return time.strftime("%Y-%m-%d", time.localtime(when))


def _summarise(listed: list[_Listed], free: Any) -> None:
    from pagedrun.cli import console
    from pagedrun.paths import models_dir
    from pagedrun.units import count, size

    if not listed:
        command = console.typed("pagedrun pull NAME")
        console.note(f"no models on this machine yet, neither in {models_dir()} nor with other programs")
        console.note(f"get one with: {command}; names: {console.typed('pagedrun search WORD')}")
        return
    total = sum(one.entry.size for one in listed)
    vram = f" and {size(free.vram)} of VRAM" if free.vram else ""
    n_others = sum(not one.is_model for one in listed)
    others = f" and {count(n_others, 'other file')}" if n_others else ""
    console.note(
        f"{count(len(listed) - n_others, 'model')}{others}, {size(total)}; free now: {size(free.ram)} of RAM{vram}"
    )
    for one in listed:
        if one.problem:
            console.warn(console.printable(f"{one.entry.name}: {one.problem}"))


def _show_unfinished(entries: list[Entry]) -> None:
    """What takes room and is no model yet: how far it is, how it goes on, how it goes away."""
    import shlex

    from pagedrun.cli import console
    from pagedrun.hub.unfinished import unfinished
    from pagedrun.units import size

    for one in unfinished(entries):
        far = f"{size(one.size)} of {size(one.total)}" if one.total else f"{size(one.size)} so far"
        go_on = f"pagedrun pull {shlex.quote(one.pull_name)}" if one.pull_name else "the command that began it"
        # While the model itself is here, rm would take that, too.
        drop = "" if one.is_again else f"; drop: pagedrun rm {shlex.quote(one.name)}"
        console.note(console.printable(console.typed(f"unfinished: {one.name}, {far}; go on: {go_on}{drop}")))


def _to_json(one: _Listed) -> dict[str, Any]:
    entry, spec = one.entry, one.entry.spec
    return {
        "name": entry.name,
        "title": spec.title if spec else (one.facts.title or None if one.facts else None),
        "registry": spec.name if spec else None,
        "paths": [str(path) for path in entry.paths],
        "size": entry.size,
        "sha256": list(entry.sha256),
        "kind": one.facts.kind if one.facts else None,
        "architecture": one.facts.architecture or None if one.facts else None,
        "quantization": one.quantization,
        "context": one.context,
        "place": entry.place,
        "last_used": entry.last_used,
        "fit": {"fits": bool(one.fit), "where": one.fit.where, "missing": one.fit.missing},
        "problem": one.problem,
    }
