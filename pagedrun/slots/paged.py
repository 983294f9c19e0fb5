"""The slots' KV memory in pages: conversations of the page manager, which have a slot while a request works on them.

    a slot's window           shows a conversation's pages, also for a while after it came to rest
    llama.cpp's own memory    of a slot: which positions it holds, and a recurrent state

Both may still be those of a conversation that rests, and then cost nothing to go on with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pagedrun.errors import EngineError
from pagedrun.slots.settings import Others, PagedSettings
from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import ConversationId, KvStats, PageManager, Place, SpillStats

log = logging.getLogger(__name__)


class PagedMemory:
    """Slots have conversations of the page manager, whose pages come and go. How they get them: PagedSlots."""

    def __init__(self, runner: Runner, manager: PageManager, settings: PagedSettings) -> None:
        from pagedrun.slots.resting import Resting  # NumPy, late
        from pagedrun.slots.stops import Stops

        self._runner = runner
        self._manager = manager
        self._settings = settings
        self._failure: EngineError | None = None
        self._others = Others(manager, settings)
        self._asked = 0  # tokens that the next step computes
        self._reading: dict[Slot, bool] = {}  # whether a slot reads a prompt, as its pages lie
        self._of: dict[Slot, ConversationId] = {}  # slots that requests have
        self._live: dict[Slot, ConversationId] = {}  # whose positions and state llama.cpp has there
        self.resting = Resting(manager, can_rewind=runner.can_rewind, worth=settings.worth)
        self._stops = Stops(
            manager.snapshots,
            interval=settings.snapshot_interval,
            apart=settings.snapshots_apart,
            is_control=runner.vocab.is_control,
        )

    @property
    def stride(self) -> int:
        """A page."""
        return max(int(self._manager.geometry.tokens_per_page), 1)

    @property
    def manager(self) -> PageManager:
        """Of its pages; for the engine's thread."""
        return self._manager

    @property
    def max_tokens(self) -> int:
        """As many as there are frames for."""
        return min(self._runner.limits.max_seq_len, self._settings.max_tokens, self._manager.max_tokens)

    def awake(self, slot: Slot) -> bool:
        """Whether its conversation is bound."""
        return self._manager.is_bound(self._of[slot])

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """Frames for the tokens, which others' idle pages may have to leave; with spill, its own oldest ones too."""
        there = self._room(slot, n_tokens, spill=spill)
        self._asked += n_tokens if there else 0
        return there

    def ready(self) -> None:
        """Carry out what was decided since the last step; in one that reads a prompt full pages are saved to the host.

        What makes frames of the host keeps the driver busy, which a step of a few tokens would wait for.
        """
        failure, self._failure = self._failure, None
        asked, self._asked = self._asked, 0
        if failure is not None:
            raise failure
        self._others.mind()
        self._manager.recall()
        self._manager.follow()
        self._manager.flush()
        self._settings.pace(decoding=asked <= self._settings.few)
        try:
            if self._manager.nearly_full:
                self._manager.write_back(self._settings.write_back * asked // self._runner.limits.max_batch_tokens)
        except EngineError as e:  # the step does not need it, and the next flush tries again
            log.warning("pages could not be saved: %s", e)
        self._settings.check()

    def computed(self, slot: Slot, n_tokens: int) -> None:
        """Note it; at a stop, with a snapshot."""
        length = self._manager.length(self._of[slot])
        stop = self.next_stop(slot, length)
        self._manager.commit(self._of[slot], n_tokens)
        if stop == length + n_tokens:
            self._keep_state(slot, self._stops.place(slot, stop))
        self._settings.check()

    def next_stop(self, slot: Slot, length: int) -> int | None:
        """Where a snapshot is taken, if the model needs any."""
        return None if self._runner.can_rewind else self._stops.after(slot, length)

    def part_at(self, slot: Slot, n_tokens: int) -> None:
        """A stop more, if the model needs any."""
        if not self._runner.can_rewind:
            self._stops.add(slot, n_tokens)

    def pause(self, slot: Slot) -> None:
        """Its pages may go to the host."""
        self._release(slot)

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Bring them back; with spill, as many as there is room for."""
        if self._comes(slot):
            return False
        if self._bind(slot):
            return True
        if not spill or not self._manager.can_spill:
            return False
        bound = self._twice(lambda: self._bind(slot, spill=True))
        self._failure = None  # there is no step of its own that could say it
        return bool(bound)

    def held(self, slot: Slot, n_tokens: int) -> int:
        """All, but where pages could not be read from the disk: those before them, as far as the model can go back."""
        there = self._manager.length(self._of[slot]) >= n_tokens
        return n_tokens if there else self._keep(slot, n_tokens)

    def expect(self, slots: Sequence[Slot]) -> None:
        """Bring pages of their conversations to frames that nobody needs, none of these at another's cost."""
        self._manager.expect([self._of[slot] for slot in slots])

    def rest(self, slot: Slot, tokens: Sequence[int], *, keep: bool) -> None:
        """The pages stay until somebody needs the room, for which some go to the disk now, while nobody waits."""
        conversation, keep = self._of[slot], keep and len(tokens) > 0
        if not keep:
            self.drop(slot)
        elif self._manager.length(conversation) == len(tokens):  # else pages were lost while it was paused
            self._keep_state(slot, "end")
        self._release(slot)
        self._stops.end(slot)
        del self._of[slot]
        self._manager.sink(self._settings.write_back)
        if keep:
            self.resting.add(conversation, tokens)
        else:
            self._manager.free(conversation)

    def drop(self, slot: Slot) -> None:
        """Give all frames back."""
        self._keep(slot, 0)

    def forget_one(self, *, all_of_it: bool = False) -> bool:
        """The oldest one with idle pages that cannot leave the device."""
        return self.resting.forget_one(all_of_it=all_of_it)

    def refusal(self) -> str:
        """What the store says where it cannot make frames that the budget allows."""
        return self._manager.refusal()

    def stats(self) -> KvStats | None:
        """As the manager counts them, with the buffers, and what rests."""
        index = self.resting.index
        return replace(
            self._manager.stats(),
            buffer_bytes=self._settings.buffer_bytes,
            resting=len(index),
            index_bytes=index.nbytes,
        )

    def spilled(self) -> SpillStats | None:
        """As the manager counts them."""
        return self._manager.spilled()

    def _keep_state(self, slot: Slot, place: Place) -> None:
        """Keep a snapshot, if the model needs one and there is room for it; others that lie close to it may go."""
        if self._runner.can_rewind:
            return
        conversation, settings, snapshots = self._of[slot], self._settings, self._manager.snapshots
        position = self._manager.length(conversation)
        new = snapshots.last_before(conversation, position) < position
        if new and (data := self._runner.snapshot(slot)):
            snapshots.add(conversation, position, data, len(data), place)
            snapshots.thin(conversation, least=settings.snapshots_apart, most=settings.snapshot_interval)

    def _room(self, slot: Slot, n_tokens: int, *, spill: bool) -> bool:
        if not self._suits(slot, prefill=n_tokens > self._settings.few):
            return True  # as below
        conversation = self._of[slot]
        if self._manager.append(conversation, n_tokens):
            return True
        if not spill or not self._manager.can_spill:
            return False
        spilled = self._twice(lambda: self._manager.spill(conversation, n_tokens))
        if spilled is None:
            return True  # `ready` says what went wrong; it was not for want of room
        return spilled and self._manager.append(conversation, n_tokens)

    def _suits(self, slot: Slot, *, prefill: bool) -> bool:
        """See that cold pages lie as suits what comes, prompt or answer. False: it failed, and `ready` says how."""
        if self._reading.get(slot) == prefill:
            return True
        self._reading[slot] = prefill
        conversation = self._of[slot]

        def rearrange() -> bool:
            if self.awake(slot):
                return self._manager.rearrange(conversation, prefill=prefill)
            return self._bind(slot, spill=True)

        done = self._twice(rearrange)
        if not done and self._failure is None:
            self._failure = EngineError("pages in RAM do not fit any more", hint="this is a bug; -v shows more")
        return bool(done)

    def _twice(self, operation: Callable[[], bool]) -> bool | None:
        """What an operation answers, tried again when the store fails; None: it failed again, which `ready` raises."""
        for _ in range(2):
            try:
                return operation()
            except EngineError as e:
                log.warning("pages could not be spilled: %s", e)
                failure = e
        self._failure = failure
        return None

    def _release(self, slot: Slot) -> None:
        self._reading.pop(slot, None)
        if self.awake(slot):  # else its pages could not be arranged anew
            self._manager.unbind(slot)

    def _comes(self, slot: Slot) -> bool:
        """Whether its pages are coming from the disk while others compute; if not, they are read when it is bound."""
        conversation = self._of[slot]
        n = self._manager.on_disk(conversation)
        if not n or not self._manager.any_bound:
            return False
        self.expect([slot])
        return 0 < self._manager.on_disk(conversation) < n

    def _bind(self, slot: Slot, *, spill: bool = False) -> bool:
        """Bind its conversation, if need be with fewer tokens: without those that the disk has lost."""
        conversation = self._of[slot]
        length = -1
        while length != self._manager.length(conversation):
            length = self._manager.length(conversation)
            if self._manager.bind(conversation, slot, spill=spill):
                return True
        return False

    def _keep(self, slot: Slot, n_tokens: int) -> int:
        """Keep the first tokens, or as many of them as are there and the model can go back to; answers how many."""
        conversation = self._of[slot]
        n_tokens = min(n_tokens, self._manager.length(conversation))
        there = n_tokens if self._live.get(slot) == conversation else 0
        kept = self._runner.trim(slot, there)
        if kept < n_tokens:
            kept = self._restore(slot, n_tokens)
        elif not self._runner.can_rewind:
            self._manager.snapshots.used(conversation, kept)
        # Elsewhere it may have been as well, and will be of other tokens from now on.
        self._live = {s: c for s, c in self._live.items() if c != conversation}
        self._live[slot] = conversation
        self._manager.truncate(conversation, kept)
        self._stops.again(slot)
        return kept

    def _restore(self, slot: Slot, n_tokens: int) -> int:
        """Tell llama.cpp what is in the slot's window; the rows are there."""
        if self._runner.can_rewind:
            return n_tokens if self._runner.restore(slot, b"", n_tokens) else 0
        snapshot = self._manager.snapshots.best(self._of[slot], n_tokens)
        if snapshot is None or not self._runner.restore(slot, snapshot.data, snapshot.position):
            self._runner.trim(slot, 0)
            return 0
        return snapshot.position
