"""Restore or recompute: whichever is faster, by what was measured."""

from __future__ import annotations

from dataclasses import dataclass

ASSUMED_READ = 1e9  # bytes a second of a disk that nobody has measured
FEW = 32  # tokens of a step, from which on it tells how fast prompts are read
_NEWEST = 0.3  # weight of the newest figure


@dataclass(slots=True)
class Speeds:
    """read: bytes a second from a file into pages. prompt: tokens a second; 0: not known yet."""

    read: float = ASSUMED_READ
    prompt: float = 0.0

    def pays(self, n_tokens: int, n_bytes: int) -> bool:
        """Whether reading so many bytes is faster than computing so many tokens. Where nobody knows, it is."""
        return not self.prompt or n_bytes / self.read < n_tokens / self.prompt

    def computed(self, n_tokens: int, seconds: float) -> None:
        """A step took so long."""
        if n_tokens >= FEW and seconds > 0:
            rate = n_tokens / seconds
            self.prompt = rate if not self.prompt else self.prompt + _NEWEST * (rate - self.prompt)

    def restored(self, n_bytes: int, seconds: float) -> None:
        """So many bytes were brought into pages."""
        if seconds > 0:
            self.read = n_bytes / seconds
