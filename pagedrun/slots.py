"""What the slots hold between and during requests: the scheduler's view of KV memory, paged or not.

    resume     a request takes over a slot, with as much of what is there as it can use
    room       before a step: space for tokens
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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pagedrun.errors import EngineError
from pagedrun.step import Runner, Slot

if TYPE_CHECKING:
    from pagedrun.kv import ConversationId, KvStats, PageManager

log = logging.getLogger(__name__)


class Slots(Protocol):
    """See the module."""

    @property
    def max_tokens(self) -> int:
        """How long a conversation can be, with all memory to itself."""
        ...

    def resume(self, slot: Slot, common: int) -> int:
        """Keep the first `common` tokens of what the slot holds, or fewer; returns how many."""
        ...

    def room(self, slot: Slot, n_tokens: int) -> bool:
        """Make room for that many tokens more."""
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

    def wake(self, slot: Slot) -> bool:
        """Take a paused slot up again; False while there is no room."""
        ...

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """The request is done. keep: what it computed may serve a follow-up."""
        ...

    def drop(self, slot: Slot) -> None:
        """Forget what rests in a slot."""
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

    def room(self, slot: Slot, n_tokens: int) -> bool:
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

    def wake(self, slot: Slot) -> bool:
        """Never asleep."""
        return True

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """What is not kept is forgotten at once."""
        if not keep:
            self._runner.trim(slot, 0)

    def drop(self, slot: Slot) -> None:
        """Forget it."""
        self._runner.trim(slot, 0)

    def stats(self) -> KvStats | None:
        """None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """How pages are used.

    snapshot_interval: tokens of a prompt between snapshots, for models that cannot go back. max_tokens: what buffers
    outside the pages allow a conversation to have; buffer_bytes: what these take. write_back: full pages that are
    copied to the host during a step, in the background, so that they can leave without waiting. check: called before
    and after every step.
    """

    snapshot_interval: int
    max_tokens: int
    buffer_bytes: int = 0
    write_back: int = 4
    check: Callable[[], None] = lambda: None


class PagedSlots:
    """Paged KV memory: each slot has a conversation of the page manager, whose pages come and go."""

    def __init__(self, runner: Runner, manager: PageManager, settings: PagedSettings) -> None:
        self._runner = runner
        self._manager = manager
        self._settings = settings
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
        if self._manager.bind(conversation, slot):
            return kept
        self._runner.trim(slot, 0)  # its pages are on the host, and there is no room to bring them back
        self._manager.truncate(conversation, 0)
        self._manager.bind(conversation, slot)
        return 0

    def room(self, slot: Slot, n_tokens: int) -> bool:
        """Frames for the tokens, which others' idle pages may have to leave."""
        return self._manager.append(self._of[slot], n_tokens)

    def ready(self) -> None:
        """Carry out what was decided since the last step; meanwhile full pages are saved to the host."""
        self._manager.flush()
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

    def wake(self, slot: Slot) -> bool:
        """Bring them back."""
        return self._manager.bind(self._of[slot], slot)

    def rest(self, slot: Slot, *, keep: bool) -> None:
        """The pages stay until somebody needs the room."""
        self._manager.unbind(slot)
        if not keep:
            self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """Give all frames back."""
        self._runner.trim(slot, 0)
        self._manager.truncate(self._of[slot], 0)

    def stats(self) -> KvStats | None:
        """As the manager counts them, with the buffers."""
        return replace(self._manager.stats(), buffer_bytes=self._settings.buffer_bytes)

    def _restore(self, slot: Slot, common: int) -> int:
        snapshot = self._manager.snapshots.best(self._of[slot], common)
        if snapshot is None or not self._runner.restore(slot, snapshot.data, snapshot.position):
            self._runner.trim(slot, 0)
            return 0
        return snapshot.position
