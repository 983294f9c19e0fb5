"""What a trial needs on the GPU and in RAM: weights, buffers, states, and room for pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagedrun.config import EngineConfig
from pagedrun.plan import pages, rules
from pagedrun.plan.buffers import BufferModel
from pagedrun.plan.layers import Weights
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Trial:
    """A window (tokens of a conversation), a batch, and how many tokens of each conversation have to be hot."""

    window: int
    batch: int
    hot: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan is made of. short: VRAM did not hold what was wished for, so that no routed experts were added."""

    weights: Weights
    trial: Trial
    short: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """Arithmetic over one model on one machine."""

    shape: ModelShape
    machine: MachineFacts
    config: EngineConfig
    buffers: BufferModel

    @property
    def may_spill(self) -> bool:
        """Whether a conversation may have pages in RAM while it goes on."""
        return self.config.spill != "off" and self.config.paging != "off"

    @property
    def seqs(self) -> int:
        """Conversations computed together."""
        return self.config.max_num_seqs

    @property
    def token_bytes(self) -> float:
        """Of one token's K and V."""
        return pages.token_bytes(self.shape.kv, self.config)

    def cuda(self, weights: Weights) -> int:
        """CUDA itself, where anything is on the GPU."""
        return self.machine.cuda + rules.CUDA_LATER if weights.gpu_layers else 0

    def compute(self, weights: Weights, trial: Trial) -> int:
        """Buffers on the GPU. They are reserved for one conversation of the whole window."""
        copies = bool(weights.ram_experts) or not weights.whole
        return self.buffers.device(trial.batch, trial.window, copies=copies) if weights.gpu_layers else 0

    def states(self, weights: Weights, trial: Trial) -> int:
        """Recurrent states and sliding windows on the GPU, of all conversations."""
        share = len(self.shape.layers[weights.first :]) / max(len(self.shape.layers), 1)
        return math.ceil(self.seqs * pages.fixed_bytes(self.shape.kv, self.config, trial.batch) * share)

    def context(self, weights: Weights, trial: Trial) -> int:
        """All that a context takes on the GPU beside pages."""
        return self.compute(weights, trial) + self.states(weights, trial)

    def spare(self) -> int:
        """Room of pages that holds no token."""
        return pages.spare(self.shape.kv, self.config)

    def wanted(self, weights: Weights, trial: Trial) -> int:
        """All that has to be on the GPU for this trial."""
        if not weights.gpu_layers:
            return 0
        hot = math.ceil(self.seqs * trial.hot * self.token_bytes * weights.kv_share)
        return self.cuda(weights) + weights.vram + self.context(weights, trial) + hot + self.spare()

    def left_for_pages(self, weights: Weights, trial: Trial) -> int:
        """Bytes of VRAM that pages can have."""
        taken = self.cuda(weights) + weights.vram + self.context(weights, trial) + self.spare()
        return max(self.machine.vram - taken, 0)

    def host_buffers(self, weights: Weights, trial: Trial) -> int:
        """Buffers in RAM, and what llama.cpp notes of each row."""
        cells = rules.CELL_BYTES * trial.window * self.seqs
        return cells + self.buffers.host(trial.batch, trial.window) if weights.gpu_layers else cells

    def ram_before_pages(self, weights: Weights, trial: Trial) -> int:
        """All that has to be in RAM."""
        kv = math.ceil(self.seqs * trial.hot * self.token_bytes * (1 - weights.kv_share))
        return weights.ram + rules.PROCESS + self.host_buffers(weights, trial) + kv

    def swap(self, weights: Weights, trial: Trial) -> int:
        """RAM that pages can have: as configured, as far as it can be pinned beside the weights."""
        if self.config.paging == "off":
            return 0
        left = self.machine.ram - rules.RAM_MARGIN - self.ram_before_pages(weights, trial)
        return max(min(self.config.swap_space, left), 0)
