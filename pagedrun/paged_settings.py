"""How an engine uses pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """How pages are used.

    snapshot_interval: tokens of a prompt between snapshots, for models that cannot go back. max_tokens: what buffers
    outside the pages allow a conversation to have; buffer_bytes: what these take. write_back: full pages that are
    copied to the host during a step, in the background, so that they can leave without waiting. check: called before
    and after every step. watch: asked every watch_steps steps how many bytes of the device others need; so many less
    than none when they have given some back.
    """

    snapshot_interval: int
    max_tokens: int
    buffer_bytes: int = 0
    write_back: int = 4
    check: Callable[[], None] = lambda: None
    watch: Callable[[], int] = lambda: 0
    watch_steps: int = 16
