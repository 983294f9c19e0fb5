"""What a machine has, as a plan sees it: bytes that are free, and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedrun.plan import rules


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes a second of reading each memory; `pcie`: of copies from pinned RAM to the GPU. flops: of prefill.

    measured: names of those that were measured here; the others are assumed, rather low.
    """

    vram: float = 250e9
    ram: float = 30e9
    pcie: float = 12e9
    disk: float = 1.5e9
    flops: float = 0.0
    measured: frozenset[str] = frozenset()

    @property
    def prefill_flops(self) -> float:
        """Operations a second of large matrix products, where they were not measured: as the memory's speed says."""
        return self.flops or min(rules.FLOPS_PER_BYTE * self.vram, rules.MOST_FLOPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """gpu: its name, "" without one. vram: what may be used of it, weights and CUDA itself included. ram: free.

    cores: that compute, which more threads do not add to. cuda: what CUDA's context takes, before anything is loaded.
    supposed: nobody has such a GPU here, it was asked for.
    """

    gpu: str = ""
    vram: int = 0
    ram: int = 0
    ram_total: int = 0
    cores: int = 1
    disk: int = 0
    cuda: int = rules.CUDA_CONTEXT
    supposed: bool = False
    speeds: Speeds = field(default_factory=Speeds)
