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
from dataclasses import replace

import numpy as np

from pagedrun.kv.cost import Mix, Space, choose, gains_much
from pagedrun.kv.geometry import PageGeometry
from pagedrun.kv.ids import NONE, FrameIds, PageIds
from pagedrun.kv.residency import Residency
from pagedrun.kv.settings import SpillSettings
from pagedrun.kv.stages import Stages
from pagedrun.kv.table import Conversation, PageTable
from pagedrun.kv.windows import Windows


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
        if residency.lower.savable(mine) < min(n_cold, len(mine)):
            unsaved = int((table.host[mine[:n_cold]] == NONE).sum())
            self._spare(unsaved * self._geometry.frame_bytes)
        savable = residency.lower.savable(mine)
        reach = residency.within_reach()
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
            cold, n_staged = self._cold_of(slot)
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

    def lies_badly(self, c: Conversation, *, prefill: bool) -> bool:
        """Whether a bound conversation's step would be much shorter if its cold pages were read in another way."""
        g, rates = self._geometry, self.settings.rates
        if c.slot is None or self.settings.mode != "auto" or not (self._stages_pay and g.zero_copy):
            return False
        cold, staged = self._cold_of(c.slot)
        full, hot = g.full_pages(c.length), c.n_pages - cold
        space = Space(
            pages=c.n_pages,
            least_hot=min(c.n_pages - full, hot),
            device_bytes=hot * g.frame_bytes + staged * g.stage_bytes,
            frame_bytes=g.frame_bytes,
            stage_bytes=g.stage_bytes,
            most_cold=full,
        )
        return gains_much(space, rates, (staged, cold - staged), prefill=prefill)

    def _cold_of(self, slot: int) -> tuple[int, int]:
        """How many pages of a slot's window are cold, and how many of these are staged."""
        stages = self._windows.stage.reshape(-1, self._geometry.n_pages)[slot]
        return int((self._windows.of(slot)[0] >= self._windows.first_host).sum()), int((stages != NONE).sum())

    def settle_in(self, c: Conversation, *, prefill: bool = False) -> FrameIds | None:
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
        if self._residency.lower.lost:
            return None
        shared = (table.device[c.pages] != NONE) & (table.pins[c.pages] > 0)  # hot for others, and so for us
        mine = c.pages[~shared]
        sealed = mine[table.index[mine] < self._geometry.full_pages(c.length)]
        resident = (table.device[mine] != NONE).sum()
        table.pins[mine] += 1
        reach = self._residency.within_reach()
        table.pins[mine] -= 1
        n_new = int(self._geometry.full_pages(c.length) == c.n_pages)  # the next token needs one more
        must = len(mine) - len(sealed)
        most_cold = min(self._residency.lower.capacity(sealed), len(sealed))
        mix = self._plan(int(reach + resident), len(sealed), must + n_new, most_cold, prefill=prefill)
        if mix is None:
            return None
        staged = self._arrange(c, sealed[: mix.cold], mine, mix.staged)
        if staged is None:
            return None
        stages = np.full(c.n_pages, NONE, np.int64)
        stages[table.index[sealed[: len(staged)]]] = staged
        return stages

    def _arrange(self, c: Conversation, cold: PageIds, mine: PageIds, n: int) -> FrameIds | None:
        """Take `n` stages, bring the pages that are not cold to the device, and the cold ones to the host.

        Answers the stages, which may be fewer; None when something did not fit.
        """
        table = self._table
        self._residency.demote(np.sort(cold[table.pins[cold] == 0]), to_host=True)
        if (table.device[cold] != NONE).any():
            return None
        table.pins[c.pages] += 1  # none of its own leave for the others, or sink
        staged = np.zeros(0, np.int64)
        done = False
        try:
            staged = self._stages.take(self._pay_for(n))
            # The hot ones first: then their frames of the host can be had for what comes from the disk.
            hot = np.setdiff1d(mine, cold, assume_unique=True)
            done = len(staged) == len(cold) or self._geometry.zero_copy
            done = done and self._residency.promote(hot) and self._residency.lower.lift(cold)
        finally:
            table.pins[c.pages] -= 1
            self._windows.left += [] if done else staged.tolist()
        if not done:
            return None
        self._residency.await_host(cold)
        return staged

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
