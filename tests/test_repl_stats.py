"""Figures of the pages, as /stats and `complete --json` show them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedrun.cli.complete import _kv_report
from pagedrun.cli.repl.stats import Stats
from pagedrun.kv import KvStats
from tests.paged_fakes import PagedEngine


@pytest.fixture
def kv() -> KvStats:
    """Of an engine whose pages hold six tokens, after 35 + 5 of them."""
    paged = PagedEngine(device=10)
    paged.ask("it was a dark and stormy night, and")
    stats = paged.slots.stats()
    assert stats is not None
    return stats


def shown(kv: KvStats) -> dict[str, str]:
    return dict(Stats().rows(used=40, size=60, on_gpu=False, kv=kv))


def test_how_many_tokens_a_page_holds_is_told(kv: KvStats) -> None:
    assert shown(kv)["pages"].startswith("7 pages, ")
    assert shown(kv)["  each"] == "6 tokens"
    report = _kv_report(kv)
    assert report is not None
    assert (report["tokens_per_page"], report["device"]["pages"], report["tokens"]) == (6, 7, 40)


@pytest.mark.parametrize(("n", "text"), [(102.4, "102.4 tokens"), (262_144.0, "262,144 tokens")])
def test_pages_need_not_hold_whole_tokens_nor_few(kv: KvStats, n: float, text: str) -> None:
    assert shown(replace(kv, tokens_per_page=n))["  each"] == text
