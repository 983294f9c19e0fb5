"""A plan without a GPU: everything is in RAM, and what is there to decide is how long a conversation may be."""

from __future__ import annotations

import math
from dataclasses import replace

from pagedrun.config import EngineConfig
from pagedrun.memory import default_seq_len
from pagedrun.plan import pages, rules
from pagedrun.plan.buffers import Reckoned
from pagedrun.plan.layers import Weights
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.result import Item, Plan, Settings
from pagedrun.plan.shape import ModelShape
from pagedrun.plan.speed import Predictor


def cpu_plan(shape: ModelShape, machine: MachineFacts, config: EngineConfig) -> Plan:
    """As `opening` does it: pages and buffers get gpu_memory, or half of what is left beside the weights."""
    batch, seqs = config.max_batch_tokens or rules.CPU_BATCH, config.max_num_seqs
    weights = Weights(shape, 0)
    left = max(machine.ram - weights.ram - rules.PROCESS, 0)
    budget = config.gpu_memory or left // 2
    token, fixed = pages.token_bytes(shape.kv, config), seqs * pages.fixed_bytes(shape.kv, config, batch)
    window = config.max_seq_len or default_seq_len(shape.n_ctx_train, lambda n: int(n * token), 2 * budget)
    buffers = Reckoned(shape, config).cpu(batch, window) + rules.CELL_BYTES * window * seqs
    room = max(budget - buffers - fixed, 0)
    held = min(room, math.ceil(window * seqs * token))
    swap = max(min(config.swap_space, left - budget - rules.RAM_MARGIN), 0)
    kv = replace(pages.kv_plan(shape.kv, config, pages=held, swap=swap, window=window), staging=0)
    items = _items(shape, weights, (buffers, fixed, held))
    needed = math.ceil((config.max_seq_len or min(window, rules.SHORTEST_WINDOW)) * token)
    missing = _missing(items, machine, short=needed - room - (swap if config.spill != "off" else 0))
    predictor = Predictor(weights, machine, kv, batch)
    return Plan(
        model=shape.name,
        gpu="",
        vram=0,
        ram=machine.ram,
        disk=machine.disk,
        items=items,
        settings=_settings(config, window, batch),
        kv=kv,
        context=budget,
        speeds=predictor.up_to(window),
        reasons=("Without a GPU everything is in RAM, and half of what the weights leave is for conversations.",),
        missing=missing,
        missing_in="RAM" if missing else "",
        ram_needed=sum(item.ram for item in items),
        swap=swap,
    )


def _missing(items: tuple[Item, ...], machine: MachineFacts, short: int) -> int:
    return max(sum(item.ram for item in items) - machine.ram, short, 0)


def _items(shape: ModelShape, weights: Weights, context: tuple[int, int, int]) -> tuple[Item, ...]:
    buffers, states, held = context
    lines = (
        Item("token embeddings", ram=shape.embeddings),
        Item("layers and output", ram=weights.rest_in_ram),
        Item("routed experts", ram=weights.experts_in_ram),
        Item("compute buffers", ram=buffers),
        Item("recurrent states, windows", ram=states),
        Item("KV pages", ram=held),
        Item("pagedrun itself", ram=rules.PROCESS),
    )
    return tuple(item for item in lines if item.ram)


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
