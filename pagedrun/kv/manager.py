"""The page manager: what a scheduler asks of the KV memory. It decides, and the frame store obeys.

    conversation = manager.open()
    manager.bind(conversation, slot)            its pages are on the device and in the slot's window
    manager.append(conversation, n)             there are pages for n more tokens
    manager.flush()                             the store was told, and what the step needs has arrived
        ... the step computes n tokens ...
    manager.commit(conversation, n)             they are there; full pages are sealed
    manager.unbind(slot)                        its pages stay mapped, until others need the room

Being short of frames is a value: bind, append, fork and promote then answer False or None, and nothing was changed.
After append said no, `spill` may make room, and so may bind(..., spill=True): pages that are bound become cold.
"""

from __future__ import annotations

import numpy as np

from pagedrun.errors import ContextLengthError
from pagedrun.kv.ids import NONE, ConversationId, FrameIds
from pagedrun.kv.memory import PageMemory
from pagedrun.kv.stats import KvStats, SpillStats, collect, spilled
from pagedrun.kv.table import Conversation


class PageManager(PageMemory):
    """All conversations of one frame store. gpu_memory pays for frames of the device and for stages; swap_space for
    all that is in RAM; disk: for what has no room there. Not thread-safe: the engine thread owns it.

    A page that cannot be read from the disk is lost, and every conversation that has it ends before it: `length` is
    less than it was. That is found, and answered with False or None, by bind, fork, promote and prefetch.

    A FrameError out of `flush`, `write_back`, `poll`, `spill` or `bind` means that the store failed. What was decided
    stands, and the next `flush` tries again what was not carried out; a step that needs it must not run before one has
    succeeded.
    """

    # conversations

    def open(self) -> ConversationId:
        """A new, empty conversation."""
        number = ConversationId(self._opened)
        self._opened += 1
        self.conversations[number] = Conversation(number)
        self.active.add(number)
        return number

    def lay_down(self, conversation: ConversationId) -> None:
        """A conversation rests: it can be forgotten, so that its snapshots are in nobody's way."""
        self.active.discard(conversation)

    def rouse(self, conversation: ConversationId) -> None:
        """It rests no longer."""
        self.active.add(conversation)

    def free(self, conversation: ConversationId) -> None:
        """Forget a conversation. What nobody shares with it is free."""
        c = self.conversations.pop(conversation)
        self.active.discard(conversation)
        self._drop(c, 0)
        if c.slot is not None:
            self.shown[c.slot] = None
        self.snapshots.free(conversation)

    def length(self, conversation: ConversationId) -> int:
        """How many tokens were computed."""
        return self.conversations[conversation].length

    def is_bound(self, conversation: ConversationId) -> bool:
        """Whether it is in a slot's window, and stays there."""
        return self.conversations[conversation].bound

    def slot_of(self, conversation: ConversationId) -> int | None:
        """The slot whose window shows it."""
        return self.conversations[conversation].slot

    @property
    def is_crowded(self) -> bool:
        """Whether idle pages are on the device for which there is no room below it: forgetting some makes room."""
        return self.residency.stuck > 0

    @property
    def can_spill(self) -> bool:
        """Whether a bound conversation can have pages on the host alone."""
        return self.spilling.possible

    @property
    def max_tokens(self) -> int:
        """How long a conversation can be, with the device to itself, and with the host for what spills."""
        host_frames = 0
        if self.can_spill:
            needed = self.snapshots.needed_bytes(self.active)
            host_frames = (self.swap_bytes - self.staging.paid - needed) // self.geometry.frame_bytes
        n_pages = min(self.spilling.most_pages(host_frames), self.geometry.n_pages)
        return n_pages * self.geometry.page_bytes // self.geometry.row_bytes

    def append(self, conversation: ConversationId, n_tokens: int) -> bool:
        """Room for that many tokens more than the conversation's length. It must be bound.

        Raises ContextLengthError when they are more than a window holds.
        """
        c = self._bound(conversation)
        edge = self.geometry.full_pages(c.length)
        reopen = c.n_sealed > edge
        n_new, n_edge = self._frames_for(c, n_tokens)
        if not n_new and not reopen:
            return True
        frames = self.residency.obtain(n_new + n_edge)
        if frames is None:
            return False
        if reopen:
            self._reopen(c, edge, frames[:n_edge])
        self._extend(c, frames[n_edge:])
        return True

    def spill(self, conversation: ConversationId, n_tokens: int) -> bool:
        """Make room for `append`, after it said no: pages of this conversation become cold, and are read from the host.

        False when that is not enough; pages may be cold then all the same. Raises FrameError.
        """
        c = self._bound(conversation)
        n_frames = sum(self._frames_for(c, n_tokens))
        return self.spilling.make_room(c, n_frames, prefill=n_tokens > 1)

    def commit(self, conversation: ConversationId, n_tokens: int) -> None:
        """Tokens were computed into room that `append` made."""
        c = self._bound(conversation)
        full = self.geometry.full_pages(c.length + n_tokens)
        if self.geometry.pages_for(c.length + n_tokens) > c.n_pages:
            raise ValueError(f"conversation {c.id} has no room for {n_tokens} tokens")
        c.length += n_tokens
        if full > c.n_sealed:
            self.residency.sealed(c.pages[c.n_sealed : full])
            c.n_sealed = full

    def fork(self, conversation: ConversationId, n_tokens: int) -> ConversationId | None:
        """A new conversation that begins with the first tokens of another; None when frames are short.

        Full pages are shared; the one at the boundary is copied.
        """
        c = self.conversations[conversation]
        if not 0 <= n_tokens <= c.length:
            raise ValueError(f"conversation {c.id} has {c.length} tokens, and not {n_tokens} to share")
        full = self.geometry.full_pages(n_tokens)
        boundary = c.pages[full : self.geometry.pages_for(n_tokens)]
        if not self.lower.lift(boundary):
            self._cut_lost()
            return None
        self.table.pins[boundary] += 1  # it must not sink again
        frames = self.residency.obtain(len(boundary))
        self.table.pins[boundary] -= 1
        if frames is None:
            return None
        child = self.conversations[self.open()]
        child.length, child.n_sealed = n_tokens, full
        child.extend(c.pages[:full])
        self.table.refs[child.pages] += 1
        if c.slot is not None:
            self.windows.protect(c.slot, full)
        if boundary.size:
            child.extend(self.residency.place_copy(int(boundary[0]), frames))
        self.snapshots.fork(conversation, child.id, n_tokens)
        return child.id

    # slots

    def bind(self, conversation: ConversationId, slot: int, *, spill: bool = False, prefill: bool = False) -> bool:
        """Bring a conversation to the device and into a slot's window, and keep it there; False when frames are short.

        spill: as much of it as fits, the rest is read from the host; when that is refused too, pages may have moved.
        prefill: in the way that suits reading a prompt. Costs nothing where the slot still shows it. Raises FrameError.
        """
        c = self.conversations[conversation]
        shown = self.shown[slot]
        if c.bound or (shown is not None and shown.bound):
            raise ValueError(f"conversation {c.id} is bound already, or slot {slot} is taken")
        stages = None
        if not self.residency.promote(c.pages):
            stages = self.spilling.settle_in(c, prefill=prefill) if spill and not self.lower.lost else None
            self._cut_lost()
            if stages is None:
                return False
        if shown not in (None, c):
            shown.slot = None
        if c.slot not in (None, slot):
            self.windows.hide(c.slot)
            self.shown[c.slot] = None
        c.slot, c.bound, self.shown[slot] = slot, True, c
        self.table.pins[c.pages] += 1
        self.residency.policy.touch(c.pages)
        self.prefetching.used(c.pages)
        self._show(c, slot, stages)
        return True

    def unbind(self, slot: int) -> None:
        """Let a slot's conversation go. It stays in the window as long as nobody needs the slot or the frames."""
        c = self.shown[slot]
        if c is None or not c.bound:
            raise ValueError(f"slot {slot} is not bound")
        c.bound = False
        self.conversations[c.id] = self.conversations.pop(c.id)
        self.table.pins[c.pages] -= 1
        self.residency.policy.touch(c.pages)
        if self.windows.n_cold:
            self.windows.hide_cold(slot)

    def rearrange(self, conversation: ConversationId, *, prefill: bool) -> bool:
        """Have cold pages of a bound conversation read in the way that suits what it does next, where that gains much.

        False: it is not bound any more, and pages may have moved, as when `bind` fails. Raises FrameError.
        """
        c = self._bound(conversation)
        if c.slot is None or not self.spilling.lies_badly(c, prefill=prefill):
            return True
        slot = c.slot
        self.unbind(slot)
        return self.bind(conversation, slot, spill=True, prefill=prefill)

    def stats(self) -> KvStats:
        """Figures for people and for metrics."""
        return collect(self)

    def refusal(self) -> str:
        """What the store says where it cannot make frames that the budget allows; empty where it can."""
        pools = (self.residency.device, self.residency.lower.pool)
        return next((p.refused for p in pools if p.failing and p.obtainable > p.available), "")

    def spilled(self) -> SpillStats:
        """Of these, what is about pages of running conversations that are not on the device; quick."""
        return spilled(self)

    # inside

    def _bound(self, conversation: ConversationId) -> Conversation:
        c = self.conversations[conversation]
        if not c.bound:
            raise ValueError(f"conversation {conversation} is not bound to a slot")
        return c

    def _extend(self, c: Conversation, frames: FrameIds) -> None:
        """New pages at the end of a bound conversation, in these frames."""
        if frames.size and c.slot is not None:
            pages = self.residency.place(np.arange(c.n_pages, c.n_pages + len(frames)), frames)
            self.table.pins[pages] = 1
            self.windows.show(c.slot, c.n_pages, frames, True)
            c.extend(pages)

    def _frames_for(self, c: Conversation, n_tokens: int) -> tuple[int, int]:
        """Frames that more tokens need: for new pages, and for the one that they begin in, if it was full.

        It was if the conversation was cut. It needs one where it is shared, and where it is cold.
        """
        edge = self.geometry.full_pages(c.length)
        need = self.geometry.pages_for(c.length + n_tokens)
        if need > self.geometry.n_pages:
            raise ContextLengthError(c.length + n_tokens, self.geometry.max_tokens)
        n_edge = 0
        if c.n_sealed > edge:
            page = c.pages[edge]
            n_edge = int(self.table.refs[page] > 1 or self.table.device[page] == NONE)
        return max(need - c.n_pages, 0), n_edge

    def _reopen(self, c: Conversation, edge: int, frames: FrameIds) -> None:
        """Make the full page that the next token goes to one that can be written to: in a new frame if it is shared."""
        page = int(c.pages[edge])
        if self.table.refs[page] > 1:
            copy = self.residency.place_copy(page, frames)
            self.table.pins[copy] = 1
            self.table.pins[page] -= 1
            self.table.refs[page] -= 1
            c.pages[edge] = copy[0]
        else:
            if frames.size:
                self.residency.arrive(np.array([page]), frames)
            self.residency.unseal(page)
        c.n_sealed = edge
        if c.slot is not None:
            self.windows.show(c.slot, edge, self.table.device[c.pages[edge : edge + 1]], True)

    def _show(self, c: Conversation, slot: int, stages: FrameIds | None) -> None:
        """Everything that a conversation has, in a slot's window; read only what is full or shared."""
        frames = self.table.device[c.pages]
        shown, writable = self.windows.of(slot)
        # A page that became full while it was writable stays so, unless it is shared: changing it costs a mapping.
        as_it_is = (shown[: c.n_pages] == frames) & writable[: c.n_pages]
        unshared = self.table.refs[c.pages] == 1
        self.windows.show(slot, 0, frames, unshared & (as_it_is | ~self.table.sealed[c.pages]))
        self.windows.hide(slot, c.n_pages)
        if stages is not None:
            cold = np.flatnonzero(frames == NONE)
            self.windows.show_cold(slot, cold, self.table.host[c.pages[cold]], stages[cold])
