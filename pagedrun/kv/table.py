"""Pages and the conversations that have them.

    conversation 1   | page 0 | page 1 | page 4 |         length in tokens, in the middle of page 4
    conversation 2   | page 0 | page 1 | page 7 |         a fork: the full pages are shared

A page is one piece of a conversation's KV, wherever its contents are: in a frame of the device, in one of the host, in
a slot of the spill file, or in several of them (then it is clean, and leaves the upper ones without a copy). It has the
same index in every conversation, so it can only be shown at one place of a window.

    sealed     full: never written to again, and may be shared
    unsealed   belongs to one conversation, whose next tokens are written to it; it is in one place only
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pagedrun.kv.ids import NONE, ConversationId, Mask, PageIds


class PageTable:
    """Arrays by page number. device, host: frames; disk: slots of the file.

    refs: conversations that have it; pins: of them, those bound to a slot. ahead: brought to the device before anybody
    needed it, and not used since.
    """

    def __init__(self, capacity: int) -> None:
        self.top = 0  # no page has had a number from here on
        self.index = np.full(capacity, NONE, np.int64)
        self.device = np.full(capacity, NONE, np.int64)
        self.host = np.full(capacity, NONE, np.int64)
        self.disk = np.full(capacity, NONE, np.int64)
        self.refs = np.zeros(capacity, np.int64)
        self.pins = np.zeros(capacity, np.int64)
        self.sealed = np.zeros(capacity, bool)
        self.ahead = np.zeros(capacity, bool)
        self._unused: list[int] = []

    def __len__(self) -> int:
        return self.top - len(self._unused)

    def add(self, indices: PageIds) -> PageIds:
        """New pages of these indices, with one reference and nothing else."""
        n = len(indices)
        again = self._unused[max(len(self._unused) - n, 0) :]
        del self._unused[len(self._unused) - len(again) :]
        pages = np.array([*again, *range(self.top, self.top + n - len(again))], np.int64)
        self.top += n - len(again)
        self.index[pages] = indices
        self.refs[pages] = 1
        return pages

    def remove(self, pages: PageIds) -> None:
        """These pages are gone, and their numbers can be used again."""
        for column in (self.index, self.device, self.host, self.disk):
            column[pages] = NONE
        self.sealed[pages] = self.ahead[pages] = False
        self._unused += pages.tolist()

    def resident(self) -> Mask:
        """Which pages are on the device, of length `top`."""
        there: Mask = self.device[: self.top] != NONE
        return there

    def pinned(self) -> Mask:
        """Which pages a slot is bound to, of length `top`."""
        return self.pins[: self.top] > 0

    def copied(self) -> Mask:
        """Which pages have a frame of the host, of length `top`."""
        there: Mask = self.host[: self.top] != NONE
        return there


@dataclass(slots=True, eq=False)
class Conversation:
    """One address space. length: tokens that were computed; its pages may have room for more.

    n_sealed: how many of its pages, from the first on, are sealed. slot: whose window shows it; it need not be bound
    to it any more.
    """

    id: ConversationId
    length: int = 0
    n_sealed: int = 0
    slot: int | None = None
    bound: bool = False
    n_pages: int = 0
    _pages: PageIds = field(default_factory=lambda: np.zeros(4, np.int64))

    @property
    def pages(self) -> PageIds:
        """Its pages in order, a view."""
        return self._pages[: self.n_pages]

    def extend(self, pages: PageIds) -> None:
        """Add pages at the end."""
        n = self.n_pages + len(pages)
        if n > len(self._pages):
            self._pages = np.concatenate([self.pages, np.zeros(max(n, 2 * self.n_pages) - self.n_pages, np.int64)])
        self._pages[self.n_pages : n] = pages
        self.n_pages = n

    def cut(self, n_pages: int) -> PageIds:
        """Keep the first pages; answers the others."""
        gone: PageIds = self.pages[n_pages:].copy()
        self.n_pages = n_pages
        self.n_sealed = min(self.n_sealed, n_pages)
        return gone
