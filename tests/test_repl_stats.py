"""Figures of the pages, as /stats and `complete --json` show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedrun.cli import pages
from pagedrun.cli.repl.stats import Stats
from pagedrun.kv import KvStats, SpillSettings
from pagedrun.kv.stats import DiskStats, PrefetchStats, SpillStats
from pagedrun.units import size
from tests.paged_fakes import STAGED, PagedEngine

NIGHT = "it was a dark and stormy night, and"


@pytest.fixture
def kv() -> KvStats:
    """Of an engine whose pages hold six tokens, after 35 + 5 of them."""
    paged = PagedEngine(device=10)
    paged.ask(NIGHT)
    stats = paged.slots.stats()
    assert stats is not None
    return stats


def shown(kv: KvStats, *, on_gpu: bool = False) -> dict[str, str]:
    return dict(Stats().rows(used=40, size=60, on_gpu=on_gpu, kv=kv))


def test_how_many_tokens_a_page_holds_is_told(kv: KvStats) -> None:
    assert shown(kv)["pages"] == "7 pages of 6 tokens, 95% full"
    report = pages.report(kv)
    assert report is not None
    assert (report["tokens_per_page"], report["device"]["pages"], report["tokens"]) == (6, 7, 40)


@pytest.mark.parametrize(("n", "text"), [(102.4, "of 102.4 tokens"), (262_144.0, "of 262,144 tokens")])
def test_pages_need_not_hold_whole_tokens_nor_few(kv: KvStats, n: float, text: str) -> None:
    assert text in shown(replace(kv, tokens_per_page=n))["pages"]


def test_where_nothing_left_there_is_one_tier_and_no_more(kv: KvStats) -> None:
    assert [label for label, _ in pages.rows(kv, on_gpu=False)] == ["pages", "  RAM", "  buffers"]
    assert shown(kv)["  RAM"].startswith("7 pages  ")


def test_all_tiers_are_in_one_table_and_cold_pages_with_how_they_are_read() -> None:
    """Ten frames' memory in all, for a conversation of nine pages and others that rest."""
    paged = PagedEngine(device=6, host=8, disk=20, spill=SpillSettings(mode="staged"), geometry=STAGED)
    for prompt in ("a" * 30, "b" * 30, NIGHT + " the rain fell"):
        paged.ask(prompt)
    kv = paged.engine.stats.kv
    assert kv is not None and kv.disk.used and kv.spill.staged
    rows = shown(kv, on_gpu=True)
    frame = STAGED.frame_bytes
    for label, tier in (("  VRAM", kv.device), ("  RAM (swap)", kv.host), ("  disk", kv.disk)):
        assert rows[label].split() == f"{tier.used} pages {size(tier.n_bytes)} of {size(tier.limit_bytes)}".split()
    assert kv.disk.n_bytes == kv.disk.used * frame
    assert rows["  cold"] == f"{kv.spill.cold} pages are read from RAM at every step: {kv.spill.staged} staged"
    assert rows["  why"]
    assert rows["  stages"] == f"{kv.spill.stages}, {size(kv.spill.stages * STAGED.stage_bytes)} of VRAM"
    assert rows["  spilled"] == f"{kv.spill.spilled} pages so far, 0 came back"
    report = pages.report(kv)
    assert report is not None
    assert report["spill"]["cold"] == report["spill"]["staged"] == kv.spill.cold
    assert report["spill"]["reason"] == rows["  why"]
    assert report["disk"]["limit_bytes"] == 20 * frame


def test_what_came_ahead_and_what_went_wrong(kv: KvStats) -> None:
    ahead = PrefetchStats("hybrid", pages=30, hits=25, late=3, wasted=2, n_bytes=60 << 20)
    disk = DiskStats(20, 0, 0, 1 << 30, written=9, read=4, lost=1, refused="No space left on device")
    spill = SpillStats("auto", cold=1, zero_copy=1, reason="there are no stages here")
    rows = shown(replace(kv, prefetch=ahead, disk=disk, spill=spill))
    assert rows["  prefetch"] == "30 pages, 60.0 MiB: 25 in time, 3 late, 2 not used"
    assert rows["  to disk"] == "9 pages so far, 4 came back, 1 could not be read"
    assert rows["  refused"] == "disk: No space left on device"
    assert rows["  cold"] == "1 page is read from RAM at every step: 1 zero-copy"
    assert rows["  why"] == "there are no stages here"


def test_programs_find_every_key_always(kv: KvStats) -> None:
    report = pages.report(kv)
    assert report is not None
    assert report["disk"] == {"pages": 0, "bytes": 0, "limit_bytes": 0, "written": 0, "read": 0, "lost": 0}
    assert report["spill"]["mode"] == report["prefetch"]["mode"] == "off"
    assert report["prefetch"]["bytes"] == 0
    assert pages.report(None) is None
