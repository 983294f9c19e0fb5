"""A plan for programs. Sizes in bytes, speeds in tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pagedrun.plan.ahead import WithRam
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.result import Plan


def to_data(plan: Plan, machine: MachineFacts, others: Sequence[WithRam] = ()) -> dict[str, Any]:
    """Values of a JSON object."""
    speeds = asdict(machine.speeds) | {"measured": sorted(machine.speeds.measured)}
    found = asdict(plan) | {"fits": plan.fits}
    found["totals"] = {memory: plan.total(memory) for memory in ("vram", "ram", "disk")}
    found["machine"] = asdict(machine) | {"speeds": speeds}
    found["with_ram"] = [
        {
            "ram": other.total,
            "fits": other.plan.fits,
            "needs": other.plan.ram_needed,
            "from_disk": other.plan.from_disk,
            "pinned": other.plan.settings.pinned,
            "warm": other.plan.kv.warm,
            "speeds": [asdict(speed) for speed in other.plan.speeds],
        }
        for other in others
    ]
    return found
