"""The slots' KV memory in pages: each slot has a conversation of the page manager, whose pages come and go.

See `pagedrun.slots` for what is asked of it.
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
    from pagedrun.kv import ConversationId, KvStats, PageManager

log = logging.getLogger(__name__)


class PagedSlots:
    """Paged KV memory: each slot has a conversation of the page manager, whose pages come and go."""

    def __init__(self, runner: Runner, manager: PageManager, settings: PagedSettings) -> None:
        self._runner = runner
        self._manager = manager
        self._settings = settings
        self._failure: EngineError | None = None
        self._others = Others(manager, settings)
        self._asked = 0  # tokens that the next step computes
        self._reading: dict[Slot, bool] = {}  # whether a slot reads a prompt, as its pages lie
        self._of: dict[Slot, ConversationId] = {Slot(i): manager.open() for i in range(runner.limits.max_num_seqs)}

    @property
    def max_tokens(self) -> int:
        """As many as there are frames for."""
        return min(self._runner.limits.max_seq_len, self._settings.max_tokens, self._manager.max_tokens)

    def resume(self, slot: Slot, common: int) -> int:
        """As far as the model can go back: to any token, or to the last snapshot."""
        kept = self._keep(slot, common)
        coming = self._comes(slot)
        bound = not coming and self._bind(slot)
        kept = self.held(slot, kept)
        if bound or coming or self._manager.can_spill:
            return kept  # and if it is not bound, it waits: reading it is worth more than its place in the line
        self._keep(slot, 0)  # its pages are on the host, and there is no room to bring them back
        self._bind(slot)
        return 0

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
        """Note it."""
        self._manager.commit(self._of[slot], n_tokens)
        self._settings.check()

    def next_stop(self, length: int) -> int | None:
        """The next multiple of the interval, where a snapshot is needed at all."""
        interval = self._settings.snapshot_interval
        return None if self._runner.can_rewind else (length // interval + 1) * interval

    def remember(self, slot: Slot) -> None:
        """Keep a snapshot, if the model needs one and there is room for it."""
        if self._runner.can_rewind:
            return
        conversation = self._of[slot]
        position = self._manager.length(conversation)
        if position and (data := self._runner.snapshot(slot)):
            self._manager.snapshots.add(conversation, position, data, len(data))

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

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """The pages stay until somebody needs the room, for which some go to the disk now, while nobody waits."""
        self._release(slot)
        self._manager.sink(self._settings.write_back)
        if not keep:
            self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """Give all frames back."""
        self._keep(slot, 0)

    def in_the_way(self, slot: Slot) -> bool:
        """Whether idle pages cannot leave the device, and it has some there; where nothing can spill, or anywhere."""
        if not self._manager.is_crowded:
            return False
        return not self._manager.can_spill or self._manager.is_hot(self._of[slot])

    def stats(self) -> KvStats | None:
        """As the manager counts them, with the buffers."""
        return replace(self._manager.stats(), buffer_bytes=self._settings.buffer_bytes)

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
        kept = self._runner.trim(slot, n_tokens)
        if kept < n_tokens:
            kept = self._restore(slot, n_tokens)
        self._manager.truncate(conversation, kept)
        return kept

    def _restore(self, slot: Slot, common: int) -> int:
        snapshot = self._manager.snapshots.best(self._of[slot], common)
        if snapshot is None or not self._runner.restore(slot, snapshot.data, snapshot.position):
            self._runner.trim(slot, 0)
            return 0
        return snapshot.position
