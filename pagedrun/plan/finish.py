"""The rest of a plan, once weights and a trial are chosen: lines, pages, what is missing, speeds, reasons."""

from __future__ import annotations

import math

from pagedrun.plan import rules
from pagedrun.plan.layers import Weights
from pagedrun.plan.need import Choice, Needs, Trial
from pagedrun.plan.pages import kv_plan, title
from pagedrun.plan.reasons import reasons
from pagedrun.plan.result import Item, KvPlan, Plan, Settings
from pagedrun.plan.speed import Predictor


def finish(needs: Needs, choice: Choice) -> Plan:
    """The plan of a choice on a GPU."""
    weights, trial = choice.weights, choice.trial
    share = weights.kv_share
    pages, disk = _pages(needs, choice, share), needs.machine.disk
    swap = needs.swap(weights, trial)
    everywhere = pages / share if weights.whole and share else trial.hot * needs.seqs * needs.token_bytes
    kv = kv_plan(needs.shape.kv, needs.config, pages=everywhere, swap=swap, window=trial.window, disk=disk)
    missing, where = _missing(needs, weights, trial, kv)
    from_disk = max(needs.ram_before_pages(weights, trial) - needs.machine.ram, 0)
    direct = needs.config.spill == "zero-copy"
    predictor = Predictor(weights, needs.machine, kv, trial.batch, from_disk, direct=direct)
    return Plan(
        model=needs.shape.name,
        gpu=needs.machine.gpu,
        vram=needs.machine.vram,
        ram=needs.machine.ram,
        disk=disk,
        items=_items(needs, choice, pages, swap),
        settings=_settings(needs, choice, kv, from_disk),
        kv=kv,
        context=needs.context(weights, trial) + needs.spare() + math.ceil(everywhere),
        speeds=predictor.up_to(trial.window),
        reasons=reasons(needs, choice, kv),
        missing=missing,
        missing_in=where,
        reckoned=needs.buffers.reckoned,
        from_disk=min(from_disk, weights.ram),
        ram_needed=needs.ram_before_pages(weights, trial),
        spared=_spared(weights),
        swap=swap,
        paged=needs.config.paging != "off",
    )


def _pages(needs: Needs, choice: Choice, share: float) -> int:
    """Bytes of VRAM for pages; what has to be hot also where it does not fit, so that sums show what is missing."""
    each = needs.seqs * needs.token_bytes * share
    hot = math.ceil(choice.trial.hot * each)
    if not choice.weights.whole:  # pages of layers in RAM are there too, so that more would have no room
        return hot
    return max(min(needs.left_for_pages(choice.weights, choice.trial), math.ceil(choice.trial.window * each)), hot)


def _missing(needs: Needs, weights: Weights, trial: Trial, kv: KvPlan) -> tuple[int, str]:
    """Bytes that are short, and of what; some weights may be read from disk instead of RAM."""
    vram = needs.wanted(weights, trial) - needs.machine.vram
    if vram > 0:
        return vram, "VRAM"
    in_ram = needs.ram_before_pages(weights, trial)
    if (ram := in_ram - _spared(weights) - needs.machine.ram) > 0:
        return ram, "RAM"
    held = kv.hot + (kv.warm if needs.may_spill else 0)
    if held < trial.window and kv.token_bytes:
        return math.ceil((trial.window - held) * kv.token_bytes), "room for the KV cache"
    return 0, ""


def _spared(weights: Weights) -> int:
    """Of weights in RAM: what may be read from disk again and again."""
    return int(rules.MOST_FROM_DISK * weights.ram)


def _settings(needs: Needs, choice: Choice, kv: KvPlan, from_disk: int) -> Settings:
    weights = choice.weights
    return Settings(
        gpu_layers=weights.gpu_layers,
        ram_experts=weights.ram_experts,
        max_seq_len=choice.trial.window,
        max_num_seqs=needs.seqs,
        batch=choice.trial.batch,
        # Only what is computed from RAM again and again is worth reading at the start.
        pinned=bool(weights.ram_layers) and not from_disk and _pinnable(needs, choice),
        fine_pages=not kv.spills,
    )


def _pinnable(needs: Needs, choice: Choice) -> bool:
    return needs.ram_before_pages(choice.weights, choice.trial) <= needs.machine.ram - rules.RAM_MARGIN


def _items(needs: Needs, choice: Choice, pages: int, swap: int) -> tuple[Item, ...]:
    weights, trial, shape = choice.weights, choice.trial, needs.shape
    hidden = "attention, shared experts" if shape.routed else "layers"
    disk = needs.config.disk_space if needs.config.paging != "off" else 0
    kv_in_ram = math.ceil(trial.hot * needs.seqs * needs.token_bytes * (1 - weights.kv_share))
    lines = (
        Item("CUDA", vram=needs.machine.cuda if weights.gpu_layers else 0),
        Item("CUDA's kernels and scratch", vram=rules.CUDA_LATER if weights.gpu_layers else 0),
        Item("token embeddings", ram=shape.embeddings),
        Item(hidden, vram=weights.rest, ram=shape.rest - weights.rest),
        Item("output", vram=weights.output, ram=weights.rest_in_ram - (shape.rest - weights.rest)),
        Item("routed experts", vram=weights.experts, ram=weights.experts_in_ram),
        Item("compute buffers", vram=needs.compute(weights, trial), ram=needs.host_buffers(weights, trial)),
        Item("recurrent states, windows", vram=needs.states(weights, trial)),
        Item(title(needs.config), vram=pages + needs.spare(), ram=swap + kv_in_ram, disk=disk),
        Item("pagedrun itself", ram=rules.PROCESS),
    )
    return tuple(item for item in lines if item.vram or item.ram or item.disk)
