"""Memory that saves and restores have while they last, paid from swap_space: for pieces of pages, and for states."""

from __future__ import annotations

from dataclasses import dataclass

from pagedrun.kv import Account

PIECE = 8 << 20  # bytes of pages that are copied, read or written at once
LEAST = 3  # pieces that are on their way at the same time: one is filled, one waits, one is emptied


@dataclass(slots=True)
class Buffers:
    """What one save or restore has. For the engine's thread, but `pieces`."""

    account: Account
    n_bytes: int = 0
    others: int = 0  # bytes of these that are not for pages

    def obtain(self, pages: int, frame: int, *, most: int, others: int = 0) -> bool:
        """Take memory for so many pages of `frame` bytes, at most for `most` bytes of them; False: there is none."""
        self.others = others
        self.n_bytes = self.account.obtain(
            min(pages * frame, max(most, LEAST * frame)) + others, LEAST * frame + others
        )
        return self.n_bytes > 0

    def pieces(self, frame: int) -> tuple[int, int]:
        """(pieces, pages in each)."""
        left = self.n_bytes - self.others
        step = max(min(PIECE, left // LEAST) // frame, 1)
        return max(left // (step * frame), LEAST), step

    def give_back(self) -> None:
        """Others may have it."""
        self.account.give_back(self.n_bytes)
        self.n_bytes = 0
