"""How many pages of a conversation that does not fit should be read through stages, and how many directly.

    hot         in a frame of the device                                    reading them costs nothing here
    staged      copied into a stage while other layers compute, each step   step = max(step, bytes / copy), and a little
    zero-copy   read by the kernel itself, over the bus                     step = step + bytes * reads / zero_copy

A stage takes memory of the device as well, so that staging makes a few more pages cold. Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MODES = ("off", "staged", "zero-copy", "auto")

#: Copies run beside everything else, but share the RAM's bandwidth with what is computed there: so much of the shorter
#: one comes on top of the longer one (scripts/results/spill-35b.md: 0 to 0.2).
OVERLAP_LOSS = 0.15

#: Of a step's time: pages that lie in another way are only moved where that leaves less.
MUCH = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured. copy, zero_copy: bytes/s; 0: not known.

    decode_reads, prefill_reads: how often a kernel reads a byte of a cold page in a step. decode_s, prefill_s: what a
    step takes when nothing is cold.
    """

    copy: float = 0.0
    zero_copy: float = 0.0
    decode_reads: float = 1.0
    prefill_reads: float = 16.0
    decode_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What pages can be in. pages: how many there are to place; least_hot: of them, those that have to be hot.

    device_bytes: for frames and for stages. stage_bytes: 0: there are no stages. most_cold: what the host can hold.
    staged, zero_copy: pages that are cold already and stay so, beside these.
    """

    pages: int
    least_hot: int
    device_bytes: int
    frame_bytes: int
    stage_bytes: int
    most_cold: int
    can_zero_copy: bool = True
    staged: int = 0
    zero_copy: int = 0


@dataclass(frozen=True, slots=True)
class Mix:
    """How many pages are what. seconds: of a step by the model; 0 where nothing was measured. why: for people."""

    hot: int
    staged: int
    zero_copy: int
    seconds: float
    why: str

    @property
    def cold(self) -> int:
        """Pages that are not hot."""
        return self.staged + self.zero_copy


def choose(space: Space, rates: Rates, mode: str, *, prefill: bool = False) -> Mix | None:
    """The best mix of those that fit; None when none does.

    `staged` and `zero-copy` say what is preferred: where that is not enough or cannot be, the other way is taken.
    """
    direct = np.arange(space.most_cold + 1 if space.can_zero_copy else 1)
    lack = (space.pages - direct) * space.frame_bytes - space.device_bytes
    gain = space.frame_bytes - space.stage_bytes
    can_stage = space.stage_bytes > 0 and gain > 0
    staged = np.maximum(-(-lack // gain), 0) if can_stage else np.where(lack > 0, space.pages + 1, 0)
    fits = (direct + staged <= space.most_cold) & (space.pages - direct - staged >= space.least_hot)
    if not fits.any():
        return None
    direct, staged = direct[fits], staged[fits]
    seconds = step_seconds(space, rates, staged, direct, prefill=prefill)
    if mode == "auto" and rates.copy > 0 and rates.zero_copy > 0:
        order, why = np.lexsort((direct + staged, seconds)), "shortest step by what was measured"
    elif mode == "zero-copy":
        order, why = np.lexsort((direct, staged)), "direct reading is preferred"
    else:
        order, why = np.argsort(direct), "staging is preferred" if mode == "staged" else "nothing was measured"
    best = order[0]
    n_staged, n_direct = int(staged[best]), int(direct[best])
    if not can_stage and n_direct:
        why = "stages would take as much memory as pages" if space.stage_bytes else "there are no stages here"
    elif not space.can_zero_copy and n_staged:
        why = "the host's memory cannot be read directly here"
    return Mix(space.pages - n_staged - n_direct, n_staged, n_direct, float(seconds[best]), why)


def gains_much(space: Space, rates: Rates, now: tuple[int, int], *, prefill: bool) -> bool:
    """Whether moving pages would make steps much shorter. now: how many are staged, and read directly."""
    if not any(now) or not rates.copy or not rates.zero_copy:
        return False
    best = choose(space, rates, "auto", prefill=prefill)
    return best is not None and best.seconds < MUCH * float(step_seconds(space, rates, *now, prefill=prefill))


def step_seconds(
    space: Space, rates: Rates, staged: np.ndarray | int, direct: np.ndarray | int, *, prefill: bool
) -> np.ndarray:
    """Seconds of a step with so many pages staged and read directly, beside those that are. Rates not known cost 0."""
    step = rates.prefill_s if prefill else rates.decode_s
    reads = rates.prefill_reads if prefill else rates.decode_reads
    copied = np.add(staged, space.staged) * space.frame_bytes / (rates.copy or np.inf)
    read = np.add(direct, space.zero_copy) * space.frame_bytes * reads / (rates.zero_copy or np.inf)
    return np.asarray(with_cold(step, staged=copied, direct=read))


def with_cold(step: float, *, staged: Any = 0.0, direct: Any = 0.0) -> Any:
    """Seconds of a step that takes `step` of them when nothing is cold; of several at once, where arrays are given.

    staged: seconds of copying to stages, beside it; direct: of reading cold pages where they are, for which it waits.
    """
    return np.maximum(step, staged) + OVERLAP_LOSS * np.minimum(step, staged) + direct
