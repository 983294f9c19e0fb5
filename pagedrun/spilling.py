"""How pages in RAM are read on this machine: measured when a context is opened, in a fraction of a second.

zero-copy   the kernel reads RAM while it computes
staged      copied to the GPU one layer ahead: by a kernel, which lets the small copies pass that layers in RAM need,
            or by the copy engine, which takes nothing from what computes
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pagedrun.config import EngineConfig
from pagedrun.kv import Rates, SpillSettings
from pagedrun.native.frames import Copier, NativeFrames, Route, Staging
from pagedrun.plan import Plan

log = logging.getLogger(__name__)

#: A kernel that copies so much slower than the engine is not worth its place beside small copies.
_WORTH_IT = 0.6


@dataclass(frozen=True, slots=True)
class Bus:
    """Bytes a second between RAM and the GPU, by way; 0: cannot be measured."""

    kernel: float
    engine: float
    zero_copy: float

    @classmethod
    def of(cls, frames: NativeFrames) -> Bus:
        """Measured over the frames' own GPU."""
        return cls(*(frames.bandwidth(route) for route in (Route.KERNEL, Route.ENGINE, Route.ZERO_COPY)))

    def staging(self) -> Staging:
        """Decoding is copied for by the kernel unless that is slow; long batches hide the engine's large copies."""
        decode = Copier.KERNEL if self.kernel >= _WORTH_IT * self.engine else Copier.ENGINE
        prefill = Copier.ENGINE if self.engine >= self.kernel * _WORTH_IT else Copier.KERNEL
        return Staging(decode=decode, prefill=prefill)


def spill_settings(config: EngineConfig, plan: Plan | None, frames: NativeFrames, *, step_tokens: int) -> SpillSettings:
    """What the settings ask for, with what this machine can do; the native side is told how to copy."""
    rates = Rates()
    if config.spill != "off" and frames.geometry.stages_pay:
        bus = Bus.of(frames)
        staging = bus.staging()
        frames.staging(staging)
        rates = _rates(bus, staging, plan, step_tokens)
        log.info("reading pages from RAM: %s, %s", bus, staging)
    return SpillSettings(mode=config.spill, prefetch=config.prefetch_mode, rates=rates, step_tokens=step_tokens)


def _rates(bus: Bus, staging: Staging, plan: Plan | None, step_tokens: int) -> Rates:
    copy = bus.kernel if staging.decode == Copier.KERNEL else bus.engine
    first = plan.speeds[0] if plan is not None and plan.speeds else None
    return Rates(
        copy=copy,
        zero_copy=bus.zero_copy,
        decode_s=1 / first.decode if first and first.decode else 0.0,
        prefill_s=step_tokens / first.prefill if first and first.prefill else 0.0,
    )
