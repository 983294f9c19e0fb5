"""Sizes, durations and counts as text: one style everywhere.

Sizes use binary units with two or three significant digits (94 MiB, 1.5 GiB); durations switch from milliseconds to
minutes as they grow; counts have thousands separators.
"""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size(n_bytes: float) -> str:
    """`n_bytes` in binary units: 512 B, 93.8 MiB, 20.6 GiB. Negative sizes keep their sign."""
    if n_bytes < 0:
        return f"-{size(-n_bytes)}"
    if n_bytes < 1024:
        return f"{n_bytes:.0f} B"
    value = n_bytes / 1024
    for unit in _UNITS:
        # 999.5 would round to "1000": it belongs to the next unit.
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{_digits(value)} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: float) -> str:
    """Seconds as text: 0.4 ms, 350 ms, 3.2 s, 1 min 05 s, 2 h 03 min."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(n: int, noun: str = "") -> str:
    """`n` with thousands separators, and the noun in the plural where due: 1 token, 8,192 tokens."""
    if not noun:
        return f"{n:,}"
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def rate(n: float, seconds: float) -> float | None:
    """`n` per second, or None when no time passed (a rate that was not measured)."""
    return n / seconds if seconds > 0 else None


def tokens_per_second(n: float, seconds: float) -> str:
    """A token rate as text: 41.3 tok/s; "-" when it was not measured."""
    value = rate(n, seconds)
    return "-" if value is None else f"{_digits(value)} tok/s"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"
