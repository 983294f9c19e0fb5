"""What is asked of spilling, by the user and by whoever measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedrun.errors import UsageError
from pagedrun.kv.cost import MODES, Rates
from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.prefetch import PREFETCH_MODES


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSettings:
    """How bound conversations spill.

    mode: off, staged, zero-copy or auto. prefetch: off, sequential, associative or hybrid. rates: for auto.
    batch: pages that are spilled beyond those that have to be, and frames that coming back leaves free. per_step: pages
    that come back, or are brought ahead, before a step. step_tokens: the most that a step computes of a conversation.
    """

    mode: str = "off"
    prefetch: str = "off"
    rates: Rates = field(default_factory=Rates)
    batch: int = 4
    per_step: int = 4
    step_tokens: int = 1

    def __post_init__(self) -> None:
        for value, known, name in (
            (self.mode, MODES, "spill"),
            (self.prefetch, PREFETCH_MODES, "prefetch_mode"),
        ):
            if value not in known:
                raise UsageError(f"there is no {name} {value!r}", hint=f"{name} is one of {', '.join(known)}")
        if min(self.batch, self.per_step, self.step_tokens) < 1:
            raise UsageError("batch, per_step and step_tokens of spilling are 1 or more")

    def can(self, geometry: PageGeometry) -> bool:
        """Whether anything can be cold in a store."""
        return self.mode != "off" and (geometry.stages_pay or geometry.zero_copy)

    def reserve(self, geometry: PageGeometry) -> int:
        """Bytes of gpu_memory that frames leave for the first stage; 0: stages are not used."""
        wanted = self.mode in ("staged", "auto") or (self.mode == "zero-copy" and not geometry.zero_copy)
        return geometry.stage_bytes if wanted and geometry.stages_pay else 0
