"""Sizes, durations and counts as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun import units


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        (1023 * 1024, "1.0 MiB"),
        (999 * 1024, "999 KiB"),
        (22_134_528_992, "20.6 GiB"),
        (100 * 2**30, "100 GiB"),
        (-1536, "-1.5 KiB"),
        (5 * 2**60, "5,120 PiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert units.size(n) == text


@settings(deadline=None)
@given(st.integers(0, 2**59))
def test_a_size_is_never_off_by_more_than_it_shows(n: int) -> None:
    number, unit = units.size(n).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}[unit]
    shown = float(number.replace(",", "")) * scale
    assert abs(shown - n) <= 0.051 * scale or abs(shown - n) <= 0.006 * n
    assert len(number.replace(".", "").replace(",", "")) <= 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.35, "350 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (65, "1 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7380, "2 h 03 min"),
        (-2, "-2.0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


def test_counts_have_separators_and_agree_in_number() -> None:
    assert units.count(1, "token") == "1 token"
    assert units.count(0, "token") == "0 tokens"
    assert units.count(8192, "token") == "8,192 tokens"
    assert units.count(8192) == "8,192"


def test_a_rate_that_was_not_measured_is_none_not_infinite() -> None:
    assert units.rate(10, 0) is None
    assert units.rate(10, 4) == 2.5
    assert units.tokens_per_second(10, 0) == "-"
    assert units.tokens_per_second(413, 10) == "41.3 tok/s"
