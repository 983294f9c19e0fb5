"""What another amount of RAM would get: people ask before they buy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagedrun.plan import rules
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.result import Plan

#: What the system and a desktop hold of a machine's RAM.
_SYSTEM = 2 * rules.GIB


@dataclass(frozen=True, slots=True)
class WithRam:
    """A plan for a machine with `total` bytes of RAM."""

    total: int
    plan: Plan


def with_other_ram(machine: MachineFacts, choose: Callable[[MachineFacts], Plan]) -> tuple[WithRam, ...]:
    """Plans for the usual sizes, 2 GiB of each being the system's."""
    return tuple(WithRam(total, choose(replace(machine, ram=total - _SYSTEM))) for total in rules.RAM_SIZES)
