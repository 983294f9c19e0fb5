"""Where a wish does not fit: the settings nearest to it that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pagedrun.config import EngineConfig
from pagedrun.plan import rules
from pagedrun.plan.result import Plan
from pagedrun.units import count

_SHORTEST = 1024
_STEP = 1024
_SMALLER_KV = ("q8_0", "q4_0")
_SMALL_BATCH = 512


def with_nearest(plan: Plan, config: EngineConfig, choose: Callable[[EngineConfig], Plan]) -> Plan:
    """The plan, with what else would fit: one change at a time, and all of them together where none is enough."""
    found = [text for text, other in (*_single(config, choose), *_more(plan, config)) if choose(other).fits]
    if not found:
        text, other = _together(config)
        found = [text] if choose(other).fits else []
    return replace(plan, nearest=tuple(found))


def _single(config: EngineConfig, choose: Callable[[EngineConfig], Plan]) -> Iterator[tuple[str, EngineConfig]]:
    if config.gpu_layers > 0:
        yield "--gpu-layers -1", replace(config, gpu_layers=-1)
    if config.max_seq_len > _SHORTEST and (length := _longest(config, choose)):
        yield f"--max-seq-len {length}", replace(config, max_seq_len=length)
    if config.max_num_seqs > 1:
        yield "--max-num-seqs 1", replace(config, max_num_seqs=1)
    for kind in _SMALLER_KV:
        if config.kv_type in ("f32", "f16", "bf16") or (config.kv_type == "q8_0" and kind == "q4_0"):
            yield f"--kv-type {kind}", replace(config, kv_type=kind, kv_type_k="", kv_type_v="")
    if config.spill == "off":
        yield "--spill auto", replace(config, spill="auto")
    if not config.max_batch_tokens or config.max_batch_tokens > _SMALL_BATCH:
        yield f"max_batch_tokens = {_SMALL_BATCH} in the settings", replace(config, max_batch_tokens=_SMALL_BATCH)


def _more(plan: Plan, config: EngineConfig) -> Iterator[tuple[str, EngineConfig]]:
    """More of what was limited by a setting."""
    if plan.missing_in == "gpu_memory":
        n_mib = -(-(config.gpu_memory + plan.missing) // rules.MIB)
        yield f'gpu_memory = "{n_mib}MiB" in the settings', replace(config, gpu_memory=n_mib * rules.MIB)


def _longest(config: EngineConfig, choose: Callable[[EngineConfig], Plan]) -> int:
    """The longest window below the one asked for that fits, to 1,024 tokens; 0: none does."""
    low, high = 0, config.max_seq_len // _STEP
    while high - low > 1:
        middle = (low + high) // 2
        fits = choose(replace(config, max_seq_len=middle * _STEP)).fits
        low, high = (middle, high) if fits else (low, middle)
    return low * _STEP


def _together(config: EngineConfig) -> tuple[str, EngineConfig]:
    other = replace(
        config, max_seq_len=_SHORTEST, max_num_seqs=1, kv_type="q4_0", kv_type_k="", kv_type_v="",
        max_batch_tokens=_SMALL_BATCH, gpu_layers=min(config.gpu_layers, 0), spill="auto",
    )  # fmt: skip
    text = f"--max-seq-len {_SHORTEST} --max-num-seqs 1 --kv-type q4_0, {count(_SMALL_BATCH)} tokens in a batch"
    return text, other
