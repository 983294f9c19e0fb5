"""Where the pages of the KV cache are: rows for /stats, and an object for `complete --json`.

pages         620 pages of 113.8 tokens, 99% full
  VRAM        210 pages  2.1 GiB of 2.2 GiB
  RAM (swap)  412 pages  4.0 GiB of 8.0 GiB
  cold        410 pages are read from RAM at every step: 400 staged, 10 zero-copy
  why         shortest step by what was measured
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagedrun.units import count, size

if TYPE_CHECKING:
    from pagedrun.durable import Keeping
    from pagedrun.kv import KvStats
    from pagedrun.kv.stats import DiskStats, PrefetchStats, SpillStats, SwapStats, TierStats

Rows = list[tuple[str, str]]

_WORTH_SAYING = 1 << 20  # bytes of swap_space that are no pages


def rows(kv: KvStats, *, on_gpu: bool) -> Rows:
    """(label, value) pairs; only those that say something."""
    each = f"{kv.tokens_per_page:,.1f}".removesuffix(".0")
    found: Rows = [("pages", f"{count(kv.pages, 'page')} of {each} tokens, {kv.utilisation:.0%} full")]
    tiers: dict[str, TierStats | DiskStats] = {
        "VRAM" if on_gpu else "RAM": kv.device,
        "RAM (swap)": kv.host,
        "disk": kv.disk,
    }
    found += _tier_rows(tiers)
    found += _cold_rows(kv.spill)
    found += _moved_rows(kv)
    if kv.snapshots:
        found.append(("  snapshots", f"{count(kv.snapshots)}, {size(kv.snapshot_bytes)} of RAM (swap)"))
    found += _swap_rows(kv.swap)
    found.append(("  buffers", size(kv.buffer_bytes)))
    refused = {**{name: tier.refused for name, tier in tiers.items()}, "stages": kv.spill.refused}
    return found + [("  refused", f"{name}: {text}") for name, text in refused.items() if text]


def kept_rows(keeper: Keeping | None) -> Rows:
    """What came from conversations on disk, and went there, since the start."""
    if keeper is None or not (keeper.stats.saved or keeper.stats.restored):
        return []
    stats = keeper.stats
    saved = f"{count(stats.saved, 'save')}" + (f", {count(stats.failed)} failed" if stats.failed else "")
    if not stats.restored:
        return [("kept on disk", saved)]
    return [("kept on disk", f"{saved}; {count(stats.restored_tokens, 'token')} restored in {stats.restored_s:.2f} s")]


def kept_report(keeper: Keeping | None) -> dict[str, Any] | None:
    """What was restored, for programs; None where nothing is kept. Saves come after the report."""
    if keeper is None:
        return None
    stats = keeper.stats
    return {
        "restored": stats.restored,
        "restored_tokens": stats.restored_tokens,
        "restored_bytes": stats.restored_bytes,
        "restored_s": stats.restored_s,
        "skipped": stats.skipped,
    }


def report(kv: KvStats | None) -> dict[str, Any] | None:
    """The same for programs, in bytes and pages; every key is always there. None without pages."""
    if kv is None:
        return None
    disk, spill, ahead = kv.disk, kv.spill, kv.prefetch
    return {
        "device": _tier_report(kv.device),
        "host": _tier_report(kv.host),
        "disk": {**_tier_report(disk), "written": disk.written, "read": disk.read, "lost": disk.lost},
        "spill": {
            "mode": spill.mode,
            "cold": spill.cold,
            "staged": spill.staged,
            "zero_copy": spill.zero_copy,
            "reason": spill.reason,
            "stages": spill.stages,
            "stage_bytes": spill.stage_bytes,
            "spilled": spill.spilled,
            "recalled": spill.recalled,
        },
        "prefetch": {
            "mode": ahead.mode,
            "pages": ahead.pages,
            "hits": ahead.hits,
            "late": ahead.late,
            "wasted": ahead.wasted,
            "bytes": ahead.n_bytes,
        },
        "tokens_per_page": kv.tokens_per_page,
        "tokens": kv.tokens,
        "utilisation": kv.utilisation,
        "shared_pages": kv.shared_pages,
        "evictions": kv.evictions,
        "snapshots": kv.snapshots,
        "snapshot_bytes": kv.snapshot_bytes,
        "buffer_bytes": kv.buffer_bytes,
        "swap": {
            "bytes": kv.swap.used,
            "limit_bytes": kv.swap.limit,
            "pages": kv.swap.pages,
            "ahead": kv.swap.ahead,
            "snapshots": kv.swap.snapshots,
            "index": kv.swap.index,
            "staging": kv.swap.staging,
        },
    }


def _tier_report(tier: TierStats | DiskStats) -> dict[str, int]:
    return {"pages": tier.used, "bytes": tier.n_bytes, "limit_bytes": tier.limit_bytes}


def _tier_rows(tiers: dict[str, TierStats | DiskStats]) -> Rows:
    """Pages of each tier, what they take and what they may, in columns; the first tier always, others if in use."""
    shown = [
        (name, count(tier.used, "page"), size(tier.n_bytes), size(tier.limit_bytes))
        for name, tier in tiers.items()
        if tier.n_bytes or tier is next(iter(tiers.values()))
    ]
    pages, taken = (max(len(row[i]) for row in shown) for i in (1, 2))
    return [(f"  {name}", f"{n:>{pages}}  {n_bytes:>{taken}} of {limit}") for name, n, n_bytes, limit in shown]


def _swap_rows(swap: SwapStats) -> Rows:
    """What takes RAM, where that is not pages alone."""
    parts = {"pages": swap.pages, "made ahead": swap.ahead, "snapshots": swap.snapshots, "index": swap.index}
    parts["staging"] = swap.staging
    if swap.used - swap.pages < _WORTH_SAYING:
        return []
    text = ", ".join(f"{name} {size(n)}" for name, n in parts.items() if n)
    return [("  swap space", f"{size(swap.used)} of {size(swap.limit)}: {text}")]


def _cold_rows(spill: SpillStats) -> Rows:
    found: Rows = []
    if spill.cold:
        ways = {"staged": spill.staged, "zero-copy": spill.zero_copy}
        how = ", ".join(f"{count(n)} {way}" for way, n in ways.items() if n)
        are = "is" if spill.cold == 1 else "are"
        found.append(("  cold", f"{count(spill.cold, 'page')} {are} read from RAM at every step: {how}"))
        if spill.reason:
            found.append(("  why", spill.reason))
    if spill.stages:
        found.append(("  stages", f"{count(spill.stages)}, {size(spill.stage_bytes)} of VRAM"))
    return found


def _moved_rows(kv: KvStats) -> Rows:
    """What went where since the start."""
    found: Rows = []
    if kv.spill.spilled:
        found.append(("  spilled", f"{count(kv.spill.spilled, 'page')} so far, {count(kv.spill.recalled)} came back"))
    if kv.disk.written or kv.disk.lost:
        lost = f", {count(kv.disk.lost)} could not be read" if kv.disk.lost else ""
        found.append(("  to disk", f"{count(kv.disk.written, 'page')} so far, {count(kv.disk.read)} came back{lost}"))
    if kv.prefetch.pages:
        found.append(("  prefetch", _ahead(kv.prefetch)))
    return found


def _ahead(ahead: PrefetchStats) -> str:
    ends = {"in time": ahead.hits, "late": ahead.late, "not used": ahead.wasted}
    text = ", ".join(f"{count(n)} {end}" for end, n in ends.items() if n)
    return f"{count(ahead.pages, 'page')}, {size(ahead.n_bytes)}" + (f": {text}" if text else "")
