"""One account of bytes that several things are paid from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """A hard limit in bytes: swap_space pays for frames of the host, ordered ones too, and for snapshots."""

    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        """Bytes that nobody has taken."""
        return self.limit - self.used

    def take(self, n_bytes: int) -> bool:
        """Take bytes, or take nothing when there are not so many."""
        if n_bytes > self.left:
            return False
        self.used += n_bytes
        return True

    def give_back(self, n_bytes: int) -> None:
        """Return what was taken."""
        self.used -= n_bytes
