"""A plan for people: tables of texts, and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from pagedrun.plan import rules
from pagedrun.plan.ahead import WithRam
from pagedrun.plan.machine import MachineFacts, Speeds
from pagedrun.plan.result import Plan
from pagedrun.units import count, size

Rows = list[tuple[str, ...]]

ITEM_TITLES = ("", "VRAM", "RAM", "DISK")
SPEED_TITLES = ("CONTEXT", "IN RAM", "DECODE", "PREFILL")
KV_TITLES = ("CONVERSATIONS", "IN", "LONGEST", f"OF {rules.HOT_TOKENS:,}", "OF 8,192")
_SHORT = 8192


def item_rows(plan: Plan) -> Rows:
    """One row for each line, their sum, what is free, what is left."""
    rows: Rows = [(item.name, _cell(item.vram), _cell(item.ram), _cell(item.disk)) for item in plan.items]
    sums = [plan.total(memory) for memory in ("vram", "ram", "disk")]
    free = [plan.vram, plan.ram, plan.disk]
    rows.append(("together", *map(_cell, sums)))
    rows.append(("may be used" if plan.vram else "free", *map(_cell, free)))
    rows.append(("left", *(size(f - s) if f or s else "" for f, s in zip(free, sums, strict=True))))
    return rows


def kv_rows(plan: Plan) -> Rows:
    """How long a conversation can be with a tier and those above it; how many of two lengths the tier has room for."""
    kv, window = plan.kv, plan.settings.max_seq_len
    if not kv.token_bytes:
        return []
    where = "VRAM" if plan.vram and plan.settings.gpu_layers > 1 else "RAM"  # the first is the output
    tiers = [("hot", where, kv.hot)]
    if kv.warm:
        tiers.append(("warm", "RAM", kv.warm))
    if kv.cold:
        tiers.append(("cold", "disk", kv.cold))
    together = sum(n for _, _, n in tiers[:2])
    rows: Rows = []
    for name, memory, n in tiers:
        longest = min(n if name == "hot" else together if name == "warm" else window, window)
        rows.append(
            (name, memory, count(longest), *(_how_many(plan, n, length) for length in (rules.HOT_TOKENS, _SHORT)))
        )
    return rows


def _how_many(plan: Plan, n_tokens: int, length: int) -> str:
    """Conversations of that length in n_tokens; "-" where none can be so long."""
    if length > plan.settings.max_seq_len:
        return "-"
    n = n_tokens // length
    return f"{n if plan.paged else min(n, plan.settings.max_num_seqs):,}"


def speed_rows(plan: Plan) -> Rows:
    """Tokens a second at some lengths of context."""
    return [
        (count(s.depth), count(s.cold) if s.cold else "", f"{_rate(s.decode)} tok/s", f"{_rate(s.prefill)} tok/s")
        for s in plan.speeds
    ]


def summary(plan: Plan, machine: MachineFacts) -> list[str]:
    """What the tables do not say."""
    where = machine.gpu or "no GPU"
    lines = [f"{plan.model} on {where}, {count(machine.cores, 'core')}"]
    settings = plan.settings
    if settings.gpu_layers:
        lines.append(
            f"{count(settings.max_num_seqs, 'conversation')} of up to {count(settings.max_seq_len, 'token')}, "
            f"{count(settings.batch, 'token')} a batch"
        )
    if plan.fits and (plan.kv.staging or (plan.kv.spills and settings.gpu_layers)):
        lines.append(f"a full conversation has {_whole_window(plan)}")
    if plan.from_disk:
        lines.append(f"{size(plan.from_disk)} of weights have no room in RAM: they are read from disk again and again")
    return lines


def notes(plan: Plan, machine: MachineFacts) -> list[str]:
    """How far the figures can be trusted."""
    found = []
    if plan.reckoned and plan.vram:
        found.append("compute buffers are reckoned, not asked of llama.cpp, which needs a GPU to answer")
    if assumed := _assumed(machine.speeds, on_gpu=bool(plan.vram)):
        found.append(f"assumed, rather low, as it was not measured: {', '.join(assumed)}")
    return found


def needed_line(plan: Plan) -> str:
    """RAM that a machine has to have free, and what for."""
    rest = f"; {size(plan.spared)} of it, weights, may come from disk instead, slowly" if plan.spared else ""
    what = ""
    if plan.needed_for:
        what = f", for a conversation of {count(plan.needed_for, 'token')}"
        what += " (more holds longer ones, and others')" if plan.fits else ""
    elif plan.vram:
        left = sum(item.ram for item in plan.items) - plan.swap
        what = ", all of the above but pages that left VRAM" if plan.swap and left == plan.ram_needed else ""
    return f"RAM it needs: {size(plan.ram_needed)}{what}{rest}"


def ram_line(other: WithRam) -> str:
    """What a machine with that much RAM gets."""
    plan = other.plan
    head = f"{size(other.total)} of RAM, {size(plan.ram)} of it free: "
    if not plan.fits:
        return head + f"{size(plan.missing)} of {plan.missing_in} are missing"
    speed = f", {_rate(plan.speeds[0].decode)} tok/s" if plan.speeds else ""
    if plan.from_disk:
        return head + f"{size(plan.from_disk)} of weights would come from disk all the time{speed}"
    pinned = "pinned weights" if plan.settings.pinned else "weights mapped from the file"
    kept = f"; {count(plan.kv.warm, 'token')} of idle conversations stay warm" if plan.kv.warm else ""
    return head + f"{pinned}{speed}{kept}"


def refusal(plan: Plan) -> tuple[str, str]:
    """What is missing, and what would fit."""
    hint = " or ".join(plan.nearest)
    message = f"it does not fit: {size(plan.missing)} of {plan.missing_in} are missing"
    return message, f"these would fit: {hint}" if hint else "use a smaller model or quantisation"


def _whole_window(plan: Plan) -> str:
    kv, window = plan.kv, plan.settings.max_seq_len
    hot = int(min(kv.hot - kv.staging / kv.token_bytes, window))
    how = f"through {size(kv.staging)}" if kv.staging else "over the bus"
    return f"{count(hot, 'token')} in VRAM, {count(window - hot)} in RAM, read {how}"


def _assumed(speeds: Speeds, *, on_gpu: bool) -> Sequence[str]:
    names = {"vram": "VRAM", "pcie": "copies to the GPU", "ram": "RAM"} if on_gpu else {"ram": "RAM"}
    return [
        f"{text} {getattr(speeds, name) / 1e9:.0f} GB/s" for name, text in names.items() if name not in speeds.measured
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _cell(n_bytes: int) -> str:
    return size(n_bytes) if n_bytes else ""
