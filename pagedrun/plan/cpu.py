"""A plan without a GPU: everything is in RAM, and what is there to decide is how long a conversation may be.

    RAM   | weights | buffers, states, KV pages: gpu_memory, or half of the rest | KV pages that left: swap_space |

A conversation may be longer than the pages in the middle only where gpu_memory was given: it spills into swap_space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagedrun.config import EngineConfig
from pagedrun.plan import pages, rules
from pagedrun.plan.layers import Weights
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.ram import Opener, Room
from pagedrun.plan.reasons import scaled
from pagedrun.plan.result import Item, Plan, Settings
from pagedrun.plan.shape import ModelShape
from pagedrun.plan.speed import Predictor

_MOST_MIB = 1 << 24  # 16 TiB: no budget is searched beyond
_WHY = "Without a GPU everything is in RAM, and half of what the weights leave is for conversations."
_WHY_GIVEN = "Without a GPU everything is in RAM, and conversations have what gpu_memory says, as far as it is there."


@dataclass(frozen=True, slots=True)
class _Ram:
    """How RAM is shared out, in bytes."""

    shape: ModelShape
    machine: MachineFacts
    config: EngineConfig

    @property
    def weights(self) -> Weights:
        return Weights(self.shape, 0)

    @property
    def opener(self) -> Opener:
        return Opener(self.shape, self.config, self.batch)

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

    def room(self) -> Room:
        """What conversations have."""
        if self.config.paging == "off":
            return self.opener.plain(self.budget, self.left)
        return self.opener.paged(self.budget, self.swap)

    def fits(self) -> bool:
        """Whether there is room for the length asked for; without one, for any."""
        return self.left > 0 and self.room().tokens >= max(self.config.max_seq_len, 1)

    def missing(self) -> tuple[int, str]:
        """Bytes that are short, to a MiB, and of what."""
        if self.fits():
            return 0, ""
        given, here = self.config.gpu_memory, self.machine
        if 0 < given < self.left:
            more = _least(lambda n: replace(self, config=replace(self.config, gpu_memory=given + n)).fits())
            if given + more <= self.left:
                return more, "gpu_memory"
        return _least(lambda n: replace(self, machine=replace(here, ram=here.ram + n)).fits()), "RAM"


def _least(enough: Callable[[int], bool]) -> int:
    """The fewest bytes, in whole MiB, that are enough."""
    high = 1
    while high < _MOST_MIB and not enough(high * rules.MIB):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle * rules.MIB) else (middle, high)
    return high * rules.MIB


def _needed(ram: _Ram, missing: int, missing_in: str) -> tuple[int, int]:
    """RAM that has to be free, at the least, and for how many tokens of a conversation; 0: for what does not fit."""
    bare = ram.weights.ram + rules.PROCESS
    length = ram.config.max_seq_len
    if missing:
        return (ram.machine.ram if missing_in == "RAM" else bare + ram.config.gpu_memory) + missing, length
    length = length or min(ram.room().tokens, rules.CPU_LEAST)
    one = replace(ram, config=replace(ram.config, max_seq_len=length))
    return bare + _least(lambda n: replace(one, machine=replace(ram.machine, ram=bare + n)).fits()), length


def cpu_plan(shape: ModelShape, machine: MachineFacts, config: EngineConfig, *, off_gpu: str = "") -> Plan:
    """As `opening` does it: pages and buffers get gpu_memory, or half of what is left beside the weights.

    off_gpu: why a GPU that there is has no part in it.
    """
    ram = _Ram(shape, machine, config)
    room = ram.room()
    window = config.max_seq_len or max(room.tokens, 1)
    missing, missing_in = ram.missing()
    needed, needed_for = _needed(ram, missing, missing_in)
    kv = pages.kv_plan(shape.kv, config, pages=0, swap=0, window=window, disk=machine.disk)
    if kv.token_bytes:
        kv = replace(kv, hot=room.hot, warm=room.warm, staging=0, spills=window > room.hot)
    why = _WHY_GIVEN if config.gpu_memory else _WHY
    return Plan(
        model=shape.name,
        gpu="",
        vram=0,
        ram=machine.ram,
        disk=machine.disk,
        items=_items(ram, room),
        settings=_settings(config, window, ram.opener.computed(window)),
        kv=kv,
        context=ram.budget,
        speeds=Predictor(ram.weights, machine, kv, ram.opener.computed(window)).up_to(window),
        reasons=(
            why.replace("Without a GPU", f"Nothing is on the GPU: {off_gpu}. So") if off_gpu else why,
            *scaled(config, shape),
        ),
        missing=missing,
        missing_in=missing_in,
        ram_needed=needed,
        needed_for=needed_for,
        swap=ram.swap,
        paged=config.paging != "off",
        off_gpu=off_gpu,
    )


def _items(ram: _Ram, room: Room) -> tuple[Item, ...]:
    weights, config = ram.weights, ram.config
    disk = config.disk_space if config.paging != "off" else 0
    lines = (
        Item("token embeddings", ram=ram.shape.embeddings),
        Item("layers and output", ram=weights.rest_in_ram),
        Item("routed experts", ram=weights.experts_in_ram),
        Item("compute buffers", ram=room.buffers),
        Item("recurrent states, windows", ram=ram.opener.states(room.window)),
        Item(pages.title(config), ram=room.frames),
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
