"""`pagedrun doctor`: what was found on this machine, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagedrun.doctor import Check

_COLOURS = {"ok": "32", "missing": "33;1", "wrong": "31;1"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Show what was found on this machine, and what is missing.

    Leaves with 0 if pagedrun can run here, with 1 if not. Lines that only limit it (no GPU, no model yet) do not
    count.
    """
    from pagedrun.doctor import can_run, examine

    checks: list[Check] = []
    for check in examine():
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        _print_json(checks, can_run(checks))
    if not can_run(checks):
        raise typer.Exit(1)


def _show(check: Check) -> None:
    """`ok       name           detail`, and a hint below, wrapped to the terminal."""
    import shutil
    import sys
    import textwrap

    from pagedrun.cli import console

    status = f"{check.status:<9}"
    if console.use_colour(sys.stdout):
        status = f"\x1b[{_COLOURS[check.status]}m{status}\x1b[0m"
    width = shutil.get_terminal_size().columns if console.is_terminal(sys.stdout) else 10_000
    lines = [line for part in console.printable(check.detail).splitlines() for line in textwrap.wrap(part, width - 25)]
    if check.hint:
        lines += textwrap.wrap(f"hint: {console.printable(check.hint)}", width - 25)
    for number, line in enumerate(lines):
        print(f"{status}{check.name:<15} {line}" if number == 0 else f"{'':25}{line}", flush=True)  # noqa: T201


def _print_json(checks: list[Check], ok: bool) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, indent=2))  # noqa: T201
