"""A plan without a GPU: everything is in RAM, and what is there to decide is how long a conversation may be.

    RAM   | weights | buffers, states, KV pages: gpu_memory, or half of the rest | KV pages that left: swap_space |

A conversation may be longer than the pages in the middle only where gpu_memory was given: it spills into swap_space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pagedrun.config import EngineConfig
from pagedrun.memory import default_seq_len
from pagedrun.plan import pages, rules
from pagedrun.plan.buffers import Reckoned
from pagedrun.plan.layers import Weights
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.reasons import scaled
from pagedrun.plan.result import Item, Plan, Settings
from pagedrun.plan.shape import ModelShape
from pagedrun.plan.speed import Predictor

_STEP = 256  # tokens: windows are rounded to it
_LEAST = 2048  # tokens of a conversation, when no length is asked for: as `default_seq_len` has it
_WHY = "Without a GPU everything is in RAM, and half of what the weights leave is for conversations."
_WHY_GIVEN = "Without a GPU everything is in RAM, and conversations have what gpu_memory says, as far as it is there."


@dataclass(frozen=True, slots=True)
class _Ram:
    """How RAM is shared out, in bytes. A window is in tokens."""

    shape: ModelShape
    machine: MachineFacts
    config: EngineConfig

    @property
    def weights(self) -> Weights:
        return Weights(self.shape, 0)

    @property
    def batch(self) -> int:
        return self.config.max_batch_tokens or rules.CPU_BATCH

    @property
    def left(self) -> int:
        """Beside weights; below 0 where they do not fit."""
        return self.machine.ram - self.weights.ram - rules.PROCESS

    @property
    def budget(self) -> int:
        """For buffers, states and pages."""
        left = max(self.left, 0)
        return min(self.config.gpu_memory, left) if self.config.gpu_memory else left // 2

    @property
    def swap(self) -> int:
        """For pages that had to leave."""
        if self.config.paging == "off":
            return 0
        return max(min(self.config.swap_space, self.left - self.budget - rules.RAM_MARGIN), 0)

    @property
    def spill(self) -> int:
        """Of swap: what a conversation may use while it goes on."""
        return self.swap if self.config.gpu_memory and self.config.spill != "off" else 0

    @property
    def states(self) -> int:
        return self.config.max_num_seqs * pages.fixed_bytes(self.shape.kv, self.config, self.batch)

    @property
    def token_bytes(self) -> float:
        return pages.token_bytes(self.shape.kv, self.config)

    @property
    def together(self) -> int:
        """Conversations that have to fit at once: without pages each has all of its memory from the start."""
        return self.config.max_num_seqs if self.config.paging == "off" else 1

    def buffers(self, window: int) -> int:
        cells = rules.CELL_BYTES * window * self.config.max_num_seqs
        return Reckoned(self.shape, self.config).cpu(self.batch, window) + cells

    def for_pages(self, window: int) -> int:
        """Of the budget, up to as much as all conversations can use."""
        room = max(self.budget - self.buffers(window) - self.states, 0)
        return min(room, math.ceil(window * self.config.max_num_seqs * self.token_bytes))

    def holds(self, window: int) -> bool:
        needed = math.ceil(window * self.together * self.token_bytes)
        room = self.for_pages(window)
        # The pages of a step cannot be elsewhere: without room for them nothing spills.
        spill = self.spill if room >= min(self.batch, window) * self.token_bytes else 0
        return needed <= room + spill and self.buffers(window) + self.states <= self.budget

    def window(self) -> int:
        """As asked for; else the model's own length, halved until it fits about, and then as much as fits."""
        if self.config.max_seq_len:
            return self.config.max_seq_len
        one = self.token_bytes * self.together
        most = default_seq_len(self.shape.n_ctx_train, lambda n: int(n * one), 2 * (self.budget + self.spill))
        least = min(_LEAST, self.shape.n_ctx_train)
        if self.holds(most) or most <= least:
            return most
        low, high = least // _STEP, most // _STEP
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.holds(middle * _STEP) else (low, middle)
        return max(low * _STEP, least)

    def needed(self, window: int) -> int:
        """RAM in all for conversations of that length; twice what they take where they get half of it."""
        context = self.buffers(window) + self.states + math.ceil(window * self.together * self.token_bytes)
        return self.weights.ram + rules.PROCESS + context * (1 if self.config.gpu_memory else 2)

    def missing(self, window: int) -> tuple[int, str]:
        """Bytes that are short for that length, and of what."""
        if self.holds(window):
            return 0, ""
        short = self.needed(window) - self.machine.ram
        if short > 0 or not self.config.gpu_memory:
            return max(short, 1), "RAM"
        context = self.needed(window) - self.weights.ram - rules.PROCESS
        beyond = min(self.spill, math.ceil(window * self.together * self.token_bytes))
        step = math.ceil(min(self.batch, window) * self.token_bytes) + self.buffers(window) + self.states
        return max(context - self.budget - beyond, step - self.budget, 1), "gpu_memory"


def cpu_plan(shape: ModelShape, machine: MachineFacts, config: EngineConfig) -> Plan:
    """As `opening` does it: pages and buffers get gpu_memory, or half of what is left beside the weights."""
    ram = _Ram(shape, machine, config)
    window = ram.window()
    least = config.max_seq_len or min(_LEAST, shape.n_ctx_train)
    missing, missing_in = ram.missing(least)
    room = ram.for_pages(window)
    kv = pages.kv_plan(shape.kv, config, pages=room, swap=ram.swap, window=window, disk=machine.disk)
    kv = replace(kv, staging=0)
    return Plan(
        model=shape.name,
        gpu="",
        vram=0,
        ram=machine.ram,
        disk=machine.disk,
        items=_items(ram, window),
        settings=_settings(config, window, ram.batch),
        kv=kv,
        context=ram.budget,
        speeds=Predictor(ram.weights, machine, kv, ram.batch).up_to(window),
        reasons=(_WHY_GIVEN if config.gpu_memory else _WHY, *scaled(config, shape)),
        missing=missing,
        missing_in=missing_in,
        ram_needed=ram.needed(least),
        swap=ram.swap,
        paged=config.paging != "off",
    )


def _items(ram: _Ram, window: int) -> tuple[Item, ...]:
    weights, config = ram.weights, ram.config
    disk = config.disk_space if config.paging != "off" else 0
    lines = (
        Item("token embeddings", ram=ram.shape.embeddings),
        Item("layers and output", ram=weights.rest_in_ram),
        Item("routed experts", ram=weights.experts_in_ram),
        Item("compute buffers", ram=ram.buffers(window)),
        Item("recurrent states, windows", ram=ram.states),
        Item(pages.title(config), ram=ram.for_pages(window)),
        Item("KV pages that left (swap)", ram=ram.swap, disk=disk),
        Item("pagedrun itself", ram=rules.PROCESS),
    )
    return tuple(item for item in lines if item.ram or item.disk)


def _settings(config: EngineConfig, window: int, batch: int) -> Settings:
    return Settings(
        gpu_layers=0,
        ram_experts=(),
        max_seq_len=window,
        max_num_seqs=config.max_num_seqs,
        batch=batch,
        pinned=False,
        fine_pages=True,
    )
