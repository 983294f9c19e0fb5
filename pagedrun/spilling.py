"""How pages in RAM are read on this machine: measured when a context is opened, in a fraction of a second.

zero-copy   the kernel reads RAM while it computes
staged      copied to the GPU one layer ahead: by a kernel, which lets the small copies pass that layers in RAM need,
            or by the copy engine, which takes nothing from what computes
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pagedrun.config import EngineConfig
from pagedrun.kv import PageManager, Rates, SpillSettings
from pagedrun.native.frames import Copier, NativeFrames, Route, Staging
from pagedrun.plan import Plan
from pagedrun.slots.pace import Pace

log = logging.getLogger(__name__)

#: A kernel that copies so much slower than the engine is not worth its place beside small copies.
_WORTH_IT = 0.6


@dataclass(frozen=True, slots=True)
class Bus:
    """Bytes a second between RAM and the GPU, by way; 0: cannot be measured."""

    kernel: float
    engine: float
    zero_copy: float
    kernel_of_4: float = 0.0

    @classmethod
    def of(cls, frames: NativeFrames) -> Bus:
        """Measured over the frames' own GPU; the kernel with 16 blocks and with 4."""
        kernel, engine, direct = (frames.bandwidth(r) for r in (Route.KERNEL, Route.ENGINE, Route.ZERO_COPY))
        frames.staging(Staging(blocks=4))
        return cls(kernel, engine, direct, frames.bandwidth(Route.KERNEL))

    def staging(self) -> Staging:
        """Decoding is copied for by the kernel unless that is slow; long batches hide the engine's large copies."""
        decode = Copier.KERNEL if self.kernel >= _WORTH_IT * self.engine else Copier.ENGINE
        prefill = Copier.ENGINE if self.engine >= self.kernel * _WORTH_IT else Copier.KERNEL
        return Staging(decode=decode, prefill=prefill, timing=True)

    def rates(self, *, decode_s: float = 0.0, prefill_s: float = 0.0) -> Rates:
        """For the cost model. decode_s, prefill_s: what a step takes when nothing is cold; 0: not known."""
        copy = self.kernel if self.staging().decode == Copier.KERNEL else self.engine
        return Rates(copy=copy, zero_copy=self.zero_copy, decode_s=decode_s, prefill_s=prefill_s)

    def pace(self, frames: NativeFrames, manager: PageManager) -> Pace:
        """What keeps copying as slow as it may be, over this manager's stages."""
        staging, size = self.staging(), frames.geometry.frame_bytes
        return Pace(
            cold_bytes=lambda: manager.stages.used * size,
            waited=lambda: frames.spill_stats().waited_s,
            choose=lambda blocks: frames.staging(replace(staging, blocks=blocks)),
            rate_of_4=self.kernel_of_4,
            rate=self.kernel,
            step_s=manager.spilling.settings.rates.decode_s,
        )


def measure_bus(config: EngineConfig, frames: NativeFrames) -> Bus | None:
    """The bus, where pages may be read through stages, and the native side told how; None where they may not."""
    if config.spill == "off" or not frames.geometry.stages_pay:
        return None
    bus = Bus.of(frames)
    frames.staging(bus.staging())
    log.info("reading pages from RAM: %s, %s", bus, bus.staging())
    return bus


def spill_settings(config: EngineConfig, plan: Plan | None, bus: Bus | None, *, step_tokens: int) -> SpillSettings:
    """What the settings ask for, with what this machine can do."""
    rates = Rates()
    if bus is not None:
        first = plan.speeds[0] if plan is not None and plan.speeds else None
        if first is not None and first.decode > 0 and first.prefill > 0:
            rates = bus.rates(decode_s=1 / first.decode, prefill_s=step_tokens / first.prefill)
        else:
            rates = bus.rates()
    return SpillSettings(mode=config.spill, prefetch=config.prefetch_mode, rates=rates, step_tokens=step_tokens)
