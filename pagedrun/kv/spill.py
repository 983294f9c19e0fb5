"""Active spill: a conversation that is bound, and does not fit the device.

    pages      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
                 cold: sealed    hot: the newest ones, those not sealed, and those that are written to next
                 on the host

The oldest pages are cold, so that what is copied lies together. Cold pages are read by every step, which slows it down
for everybody in it; when that is worth it is the caller's affair, and nothing here happens unless it is asked for.

Pages leave a few at a time, so that this is rare. Recall leaves as many frames free as a spill makes, and undoes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pagedrun.errors import UsageError
from pagedrun.kv.cost import MODES, Mix, Rates, Space, choose
from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.ids import NONE, FrameIds, PageIds
from pagedrun.kv.prefetch import PREFETCH_MODES
from pagedrun.kv.residency import Residency
from pagedrun.kv.stages import Stages
from pagedrun.kv.table import Conversation, PageTable
from pagedrun.kv.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSettings:
    """How bound conversations spill.

    mode: off, staged, zero-copy or auto. prefetch: off, sequential, associative or hybrid. rates: for auto.
    batch: pages that are spilled beyond those that have to be, and frames that coming back leaves free. per_step: pages
    that come back, or are brought ahead, before a step. step_tokens: the most that a step computes of a conversation.
    """

    mode: str = "off"
    prefetch: str = "off"
    rates: Rates = field(default_factory=Rates)
    batch: int = 4
    per_step: int = 4
    step_tokens: int = 1

    def __post_init__(self) -> None:
        for value, known, name in (
            (self.mode, MODES, "spill"),
            (self.prefetch, PREFETCH_MODES, "prefetch_mode"),
        ):
            if value not in known:
                raise UsageError(f"there is no {name} {value!r}", hint=f"{name} is one of {', '.join(known)}")
        if min(self.batch, self.per_step, self.step_tokens) < 1:
            raise UsageError("batch, per_step and step_tokens of spilling are 1 or more")

    def can(self, geometry: PageGeometry) -> bool:
        """Whether anything can be cold in a store."""
        return self.mode != "off" and (geometry.stages_pay or geometry.zero_copy)

    def reserve(self, geometry: PageGeometry) -> int:
        """Bytes of gpu_memory that frames leave for the first stage; 0: stages are not used."""
        wanted = self.mode in ("staged", "auto") or (self.mode == "zero-copy" and not geometry.zero_copy)
        return geometry.stage_bytes if wanted and geometry.stages_pay else 0


class Spill:
    """Decides which pages are cold, and moves them.

    flush: tells the store all that was decided, and waits. spare(n_bytes): takes memory of the host from snapshots that
    are needed least. spilled, recalled: pages so far. mix: what was chosen last.
    """

    def __init__(
        self,
        geometry: PageGeometry,
        settings: SpillSettings,
        parts: tuple[PageTable, Residency, Windows, Stages],
        flush: Callable[[], None],
        spare: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self.possible = settings.can(geometry)
        self.spilled = 0
        self.recalled = 0
        self.mix: Mix | None = None
        self._geometry = geometry
        self._stages_pay = settings.reserve(geometry) > 0
        self._table, self._residency, self._windows, self._stages = parts
        self._flush = flush
        self._spare = spare

    # spilling

    def make_room(self, c: Conversation, n_new: int, *, prefill: bool) -> bool:
        """See that `n_new` frames are within reach, for which pages of a bound conversation become cold.

        False when that is not enough; some may be cold then all the same. Raises FrameError.
        """
        if self._stages.frames_for(0):  # the store failed when the reserve had been used
            self._flush()
            self._destroy(self._stages.frames_for(0))
        if self._residency.within_reach() >= n_new:
            return True
        if not self.possible or c.slot is None:
            return False
        n_direct = -(-n_new * self._geometry.frame_bytes // max(self._geometry.stage_bytes, 1))
        while not self._spill_some(c, n_new, c.slot, prefill=prefill):
            if not self._give_stages_up(c.slot, n_direct):
                return False
        return True

    def _spill_some(self, c: Conversation, n_new: int, slot: int, *, prefill: bool) -> bool:
        residency, table = self._residency, self._table
        self._take_back_stages()
        mine = c.pages[: self._geometry.full_pages(c.length)]  # the next token is written behind these
        mine = mine[(table.device[mine] != NONE) & (table.pins[mine] == 1)]
        gain = self._geometry.frame_bytes - (self._geometry.stage_bytes if self._stages_pay else 0)
        n_cold = -(-(n_new + min(self.settings.batch, len(mine) // 4)) * self._geometry.frame_bytes // gain)
        if residency.savable(mine) < min(n_cold, len(mine)):
            unsaved = int((table.host[mine[:n_cold]] == NONE).sum())
            self._spare(unsaved * self._geometry.frame_bytes)
        reach, savable = residency.within_reach(), residency.savable(mine)
        if reach < n_new:
            mix = self._plan(len(mine) + reach, len(mine), n_new, savable, prefill=prefill, slot=slot)
            if mix is None:
                return False
            self._cool(c, mine[: mix.cold], mix.staged)
        return residency.within_reach() >= n_new

    def _give_stages_up(self, slot: int, n: int) -> bool:
        """Let up to `n` staged pages be read directly: the last thing that makes room. False when there are none."""
        stages = self._windows.stage.reshape(-1, self._geometry.n_pages)[slot]
        pages = np.flatnonzero(stages != NONE)[:n]
        if not pages.size or not self._geometry.zero_copy:
            return False
        frames, _ = self._windows.of(slot)
        self._windows.show_cold(slot, pages, frames[pages], np.full(len(pages), NONE, np.int64))
        return True

    def give_up(self, c: Conversation, n: int) -> None:
        """Make `n` frames free that a bound conversation has, or as many as can be. Raises FrameError."""
        while n > 0 and not self.make_room(c, self._residency.within_reach() + n, prefill=False):
            n //= 2

    def _plan(
        self, n_frames: int, n_pages: int, n_new: int, most_cold: int, *, prefill: bool, slot: int | None = None
    ) -> Mix | None:
        """What `n_pages` pages and `n_new` new ones should be, in the memory of `n_frames` frames and what is left."""
        g, device = self._geometry, self._residency.device
        left = max(device.budget.left - device.reserve, 0)
        slack = left - (device.obtainable - device.available) * g.frame_bytes
        space = Space(
            pages=n_pages + n_new,
            least_hot=n_new,
            device_bytes=n_frames * g.frame_bytes + slack + self._stages.free * g.stage_bytes,
            frame_bytes=g.frame_bytes,
            stage_bytes=g.stage_bytes if self._stages_pay else 0,
            most_cold=most_cold,
            can_zero_copy=g.zero_copy,
        )
        if slot is not None:
            stages = self._windows.stage.reshape(-1, g.n_pages)[slot]
            n_staged = int((stages != NONE).sum())
            cold = int((self._windows.of(slot)[0] >= self._windows.first_host).sum())
            space = replace(space, staged=n_staged, zero_copy=cold - n_staged)
        wishes = (min(self.settings.batch, n_pages // 4), 0)  # more than is needed, so that this is rare
        more = (replace(space, pages=space.pages + n, least_hot=n_new + n) for n in wishes)
        mix = next(
            (m for s in more if (m := choose(s, self.settings.rates, self.settings.mode, prefill=prefill))), None
        )
        self.mix = mix or self.mix
        return mix

    def _cool(self, c: Conversation, pages: PageIds, n_staged: int) -> None:
        """Make hot pages cold, the first `n_staged` of them staged."""
        todo, direct = pages[:n_staged], pages[n_staged:]
        while todo.size:
            n = self._stages.provide(len(todo))
            self._show(c, todo[:n], self._stages.take(n))
            todo = todo[n:]
            if not todo.size and not self._stages.frames_for(0):
                break
            # The frames that became free are to pay for more stages, and for the reserve that was used.
            self._flush()
            paid = self._destroy(self._stages.frames_for(len(todo)))
            if not n and not paid:
                break
        if self._geometry.zero_copy:
            direct = np.concatenate([todo, direct])
            self._show(c, direct, np.full(len(direct), NONE, np.int64))

    def _show(self, c: Conversation, pages: PageIds, stages: FrameIds) -> None:
        if pages.size and c.slot is not None:
            self._residency.chill(pages)
            self.spilled += len(pages)
            self._windows.show_cold(c.slot, self._table.index[pages], self._table.host[pages], stages)

    # binding

    def settle_in(self, c: Conversation) -> FrameIds | None:
        """Bring a conversation that does not fit to the device as far as it can be: the newest pages hot.

        Answers, by page, the stage of those that are to be read through one; the other cold ones can be read directly.
        None when it cannot be; pages may have moved then all the same. Raises FrameError.
        """
        if not self.possible:
            return None
        self._take_back_stages()
        table = self._table
        if self._residency.promote(c.pages):
            return np.full(c.n_pages, NONE, np.int64)
        shared = (table.device[c.pages] != NONE) & (table.pins[c.pages] > 0)  # hot for others, and so for us
        mine = c.pages[~shared]
        sealed = mine[table.index[mine] < self._geometry.full_pages(c.length)]
        resident = (table.device[mine] != NONE).sum()
        table.pins[mine] += 1
        reach = self._residency.within_reach()
        table.pins[mine] -= 1
        n_new = int(self._geometry.full_pages(c.length) == c.n_pages)  # the next token needs one more
        must = len(mine) - len(sealed)
        mix = self._plan(int(reach + resident), len(sealed), must + n_new, len(sealed), prefill=False)
        if mix is None:
            return None
        cold, hot = sealed[: mix.cold], np.setdiff1d(mine, sealed[: mix.cold], assume_unique=True)
        self._residency.demote(np.sort(cold[table.pins[cold] == 0]))
        if (table.device[cold] != NONE).any():
            return None
        table.pins[hot] += 1
        try:
            staged = self._pay_for(mix.staged)
        finally:
            table.pins[hot] -= 1
        if (staged < len(cold) and not self._geometry.zero_copy) or not self._residency.promote(hot):
            return None
        self._residency.await_host(cold)
        stages = np.full(c.n_pages, NONE, np.int64)
        stages[table.index[cold[:staged]]] = self._stages.take(staged)
        return stages

    def _pay_for(self, n: int) -> int:
        """See that `n` stages are free, for which idle pages leave and frames are destroyed; answers how many are."""
        if n and self._stages.frames_for(n):
            self._residency.vacate(self._stages.frames_for(n))
            self._flush()
            self._destroy(self._stages.frames_for(n))
        return self._stages.provide(n)

    def _take_back_stages(self) -> None:
        """Destroy the stages that pages left which came back, or whose conversation was let go."""
        if self._stages.free:
            self._flush()
            self._stages.shrink(0)

    def _destroy(self, n: int) -> int:
        """Destroy up to `n` free frames of the device, after a flush; answers how many."""
        device = self._residency.device
        return device.shrink(min(n, len(device.idle_frames)))

    # coming back

    def recall(self, bound: list[Conversation]) -> int:
        """Bring cold pages of bound conversations back, the newest first, a few at a time; answers how many."""
        if not self._windows.n_cold or self.settings.prefetch not in ("sequential", "hybrid"):
            return 0
        table = self._table
        room = self._residency.within_reach() - self.settings.batch
        n = min(self.settings.per_step, room)
        back = 0
        for c in bound:
            cold = c.pages[table.device[c.pages] == NONE][::-1][: max(n - back, 0)]
            if cold.size and self._residency.promote(cold):
                back += len(cold)
        self.recalled += back
        return back

    def tidy(self) -> None:
        """Give stages back that nobody needs any more. After a flush."""
        if self._stages.created:
            self._stages.shrink(self.settings.batch if self._windows.n_cold else 0)

    def most_pages(self, host_frames: int) -> int:
        """How many pages a conversation can have, with all memory to itself but what snapshots need."""
        g, device = self._geometry, self._residency.device
        hot = min(max(device.budget.limit - device.reserve, 0) // g.frame_bytes, device.most)
        least = g.pages_for(self.settings.step_tokens) + 1
        if not self.possible or hot < least:
            return hot
        if g.zero_copy:  # pages give their stages up in the end
            return hot + host_frames
        most = max(device.budget.limit - device.reserve, 0)
        staged = min((most - least * g.frame_bytes) // g.stage_bytes, host_frames)
        return max(hot, (most - staged * g.stage_bytes) // g.frame_bytes + staged)
