"""What the slots hold between and during requests: the scheduler's view of KV memory, paged or not.

    resume     a request takes over a slot, with as much of what is there as it can use
    room       before a step: space for tokens; with spill, what does not fit is read from the host at every step
    awake      whether a slot's tokens can be computed now
    expect     a paused request is going to be next: its pages may come ahead of it
    ready      before a step: everything is where it must be
    computed   after a step
    pause      a running request gives its place in memory up for a while; nothing is computed again
    rest       a request is done; what it computed stays for a follow-up, or goes
    drop       what rests in a slot goes: others need the room

Being short of memory is a value, False, and not an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pagedrun.errors import EngineError
from pagedrun.paged_settings import Others, PagedSettings
from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import ConversationId, KvStats, PageManager

__all__ = ["PagedSettings", "PagedSlots", "PlainSlots", "Slots"]

log = logging.getLogger(__name__)


class Slots(Protocol):
    """See the module."""

    @property
    def max_tokens(self) -> int:
        """How long a conversation can be, with all memory to itself."""
        ...

    def resume(self, slot: Slot, common: int) -> int:
        """Keep the first `common` tokens or fewer; returns how many. Without room the slot is as if it were paused."""
        ...

    def awake(self, slot: Slot) -> bool:
        """Whether the slot is not paused."""
        ...

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """Make room for that many tokens more. spill: at the price of slower steps."""
        ...

    def ready(self) -> None:
        """Wait until the step can run. Raises EngineError."""
        ...

    def computed(self, slot: Slot, n_tokens: int) -> None:
        """The step has run, and the slot holds `n_tokens` more."""
        ...

    def next_stop(self, length: int) -> int | None:
        """The length at which a prompt that is being read should stop for a moment; None: none."""
        ...

    def remember(self, slot: Slot) -> None:
        """This is a place to come back to: keep what is needed to go on from here."""
        ...

    def pause(self, slot: Slot) -> None:
        """Others may have the memory. `wake` brings everything back."""
        ...

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Take a paused slot up again; False while there is no room. spill: at the price of slower steps."""
        ...

    def expect(self, slot: Slot) -> None:
        """A paused slot is the next one to be taken up."""
        ...

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """The request is done. keep: what it computed may serve a follow-up."""
        ...

    def drop(self, slot: Slot) -> None:
        """Forget what rests in a slot."""
        ...

    def in_the_way(self, slot: Slot) -> bool:
        """Whether others have more room as soon as what rests in a slot is dropped."""
        ...

    def stats(self) -> KvStats | None:
        """Figures of the pages; None: there are none."""
        ...


class PlainSlots:
    """llama.cpp's own KV cache: each slot has its memory for good."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def max_tokens(self) -> int:
        """Whatever fits the context."""
        return self._runner.limits.max_seq_len

    def resume(self, slot: Slot, common: int) -> int:
        """As far back as the model can go."""
        return self._runner.trim(slot, common)

    def awake(self, slot: Slot) -> bool:
        """Always."""
        return True

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """There always is."""
        return True

    def ready(self) -> None:
        """Nothing to wait for."""

    def computed(self, slot: Slot, n_tokens: int) -> None:
        """Nothing to note."""

    def next_stop(self, length: int) -> int | None:
        """No stops."""
        return None

    def remember(self, slot: Slot) -> None:
        """Nothing is kept beside the slot itself."""

    def pause(self, slot: Slot) -> None:
        """Never needed."""

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Never asleep."""
        return True

    def expect(self, slot: Slot) -> None:
        """Never."""

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """What is not kept is forgotten at once."""
        if not keep:
            self._runner.trim(slot, 0)

    def drop(self, slot: Slot) -> None:
        """Forget it."""
        self._runner.trim(slot, 0)

    def in_the_way(self, slot: Slot) -> bool:
        """Never asked."""
        return True

    def stats(self) -> KvStats | None:
        """None."""
        return None


class PagedSlots:
    """Paged KV memory: each slot has a conversation of the page manager, whose pages come and go."""

    def __init__(self, runner: Runner, manager: PageManager, settings: PagedSettings) -> None:
        self._runner = runner
        self._manager = manager
        self._settings = settings
        self._failure: EngineError | None = None
        self._others = Others(manager, settings)
        self._of: dict[Slot, ConversationId] = {Slot(i): manager.open() for i in range(runner.limits.max_num_seqs)}

    @property
    def max_tokens(self) -> int:
        """As many as there are frames for."""
        return min(self._runner.limits.max_seq_len, self._settings.max_tokens, self._manager.max_tokens)

    def resume(self, slot: Slot, common: int) -> int:
        """As far as the model can go back: to any token, or to the last snapshot."""
        conversation = self._of[slot]
        kept = self._runner.trim(slot, common)
        if kept < common:
            kept = self._restore(slot, common)
        self._manager.truncate(conversation, kept)
        if self._manager.bind(conversation, slot) or self._manager.can_spill:
            return kept  # and if it is not bound, it waits: reading it is worth more than its place in the line
        self._runner.trim(slot, 0)  # its pages are on the host, and there is no room to bring them back
        self._manager.truncate(conversation, 0)
        self._manager.bind(conversation, slot)
        return 0

    def awake(self, slot: Slot) -> bool:
        """Whether its conversation is bound."""
        return self._manager.is_bound(self._of[slot])

    def room(self, slot: Slot, n_tokens: int, *, spill: bool = False) -> bool:
        """Frames for the tokens, which others' idle pages may have to leave; with spill, its own oldest ones too."""
        conversation = self._of[slot]
        if self._manager.append(conversation, n_tokens):
            return True
        if not spill or not self._manager.can_spill:
            return False
        spilled = self._twice(lambda: self._manager.spill(conversation, n_tokens))
        if spilled is None:
            return True  # `ready` says what went wrong; it was not for want of room
        return spilled and self._manager.append(conversation, n_tokens)

    def ready(self) -> None:
        """Carry out what was decided since the last step; meanwhile full pages are saved to the host."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._others.mind()
        self._manager.recall()
        self._manager.flush()
        self._settings.pace()
        try:
            self._manager.write_back(self._settings.write_back)
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
        self._manager.unbind(slot)

    def wake(self, slot: Slot, *, spill: bool = False) -> bool:
        """Bring them back; with spill, as many as there is room for."""
        conversation = self._of[slot]
        if self._manager.bind(conversation, slot):
            return True
        if not spill or not self._manager.can_spill:
            return False
        bound = self._twice(lambda: self._manager.bind(conversation, slot, spill=True))
        self._failure = None  # there is no step of its own that could say it
        return bool(bound)

    def expect(self, slot: Slot) -> None:
        """Bring pages of its conversation to frames that nobody needs."""
        conversation = self._of[slot]
        if not self._manager.is_bound(conversation):
            self._manager.prefetch(self._manager.pages(conversation))

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """The pages stay until somebody needs the room."""
        self._manager.unbind(slot)
        if not keep:
            self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """Give all frames back."""
        self._runner.trim(slot, 0)
        self._manager.truncate(self._of[slot], 0)

    def in_the_way(self, slot: Slot) -> bool:
        """Whether it has frames of the device; where nothing can spill, all that is kept counts."""
        return not self._manager.can_spill or self._manager.is_hot(self._of[slot])

    def stats(self) -> KvStats | None:
        """As the manager counts them, with the buffers."""
        return replace(self._manager.stats(), buffer_bytes=self._settings.buffer_bytes)

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

    def _restore(self, slot: Slot, common: int) -> int:
        snapshot = self._manager.snapshots.best(self._of[slot], common)
        if snapshot is None or not self._runner.restore(slot, snapshot.data, snapshot.position):
            self._runner.trim(slot, 0)
            return 0
        return snapshot.position
