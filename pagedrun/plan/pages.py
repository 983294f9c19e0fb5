"""The KV cache in a number of bytes: how many tokens are hot, warm, cold, and through what the cold ones are read."""

from __future__ import annotations

import math

from pagedrun.config import EngineConfig
from pagedrun.gguf_file import KvFacts
from pagedrun.plan import rules
from pagedrun.plan.result import KvPlan


def token_bytes(kv: KvFacts, config: EngineConfig) -> float:
    """Of one token's K and V in all layers that keep it."""
    return sum(kv.bytes_per_token(kind) / 2 for kind in config.kv_types)


def fixed_bytes(kv: KvFacts, config: EngineConfig, batch: int) -> int:
    """Of one conversation, however long it is: recurrent states, and windows that slide."""
    window = math.ceil((kv.window + batch) / 256) * 256 if kv.window else 0
    ratio = token_bytes(kv, config) / max(kv.full_elements, 1) if kv.full_elements else 2.0
    return (kv.state_bytes or 0) + int(window * kv.window_elements * ratio)


def spare(kv: KvFacts, config: EngineConfig) -> int:
    """Of pages that no token is in: each conversation's last page is half empty, and one more is being filled."""
    layers = max(kv.full_layers, 1) if kv.full_elements else 0
    return config.max_num_seqs * layers * rules.GRANULARITY


def title(config: EngineConfig) -> str:
    """What a table calls it."""
    return "KV cache" if config.paging == "off" else "KV pages"


def cold(kv: KvFacts, config: EngineConfig, disk: int) -> int:
    """Tokens that the file on disk holds, as far as `disk` bytes are free."""
    n_bytes = token_bytes(kv, config)
    return int(min(config.disk_space, disk) / n_bytes) if n_bytes and config.paging != "off" else 0


def staging_share(n_groups: int) -> float:
    """Of the cold part of a conversation: VRAM that layers take turns in. 1: no turns are possible."""
    return min((2 + n_groups % 2) / n_groups, 1.0) if n_groups > 1 else 1.0


def hot_and_staged(n_tokens: int, room: float, n_groups: int) -> tuple[float, float]:
    """How a conversation of n_tokens lies in room for `room` tokens: hot ones, and what its stages take, in tokens.

    room = hot + share x (n_tokens - hot). Where even that is more than there is, some of the cold ones have no stage.
    """
    if n_tokens <= room:
        return float(n_tokens), 0.0
    share = staging_share(n_groups)
    if share >= 1:
        return room, 0.0
    hot = max((room - share * n_tokens) / (1 - share), 0.0)
    return hot, room - hot


def kv_plan(kv: KvFacts, config: EngineConfig, *, pages: float, swap: int, window: int, disk: int = 1 << 62) -> KvPlan:
    """pages: bytes for pages on the device, with the shares of layers that lie elsewhere. swap: bytes of RAM.

    disk: bytes that are free there.
    """
    n_bytes = token_bytes(kv, config)
    if not n_bytes:  # nothing is kept of a token: any number of them is hot
        return KvPlan(
            token_bytes=0, state_bytes=kv.state_bytes or 0, hot=window, warm=0, cold=0, staging=0, spills=False
        )
    hot = int(max(pages, 0) / n_bytes)
    staged = 0.0 if config.spill == "zero-copy" else hot_and_staged(window, hot, kv.full_layers)[1]
    return KvPlan(
        token_bytes=n_bytes,
        state_bytes=kv.state_bytes or 0,
        hot=hot,
        warm=int(swap / n_bytes),
        cold=cold(kv, config, disk),
        staging=int(staged * n_bytes),
        spills=window > hot,
    )
