"""How an engine uses pages, and how it minds others that need the device's memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedrun.kv import PageManager

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedSettings:
    """How pages are used.

    snapshot_interval, snapshots_apart: tokens between snapshots, for models that cannot go back: at most so many where
    there is memory for them, and none for so few. max_tokens: what buffers
    outside the pages allow a conversation to have; buffer_bytes: what these take. write_back: full pages that are
    copied to the host while a whole batch is computed, in the background, so that they can leave without waiting; fewer
    in smaller steps, and only once the device is nearly full. check: called before and after every step. watch: asked
    every watch_steps steps how many bytes of the device others need; so many less than none when they have given some
    back. pace: called before every step, with whether it only decodes: few tokens at
    most, for which attention reads a cold page about once, and not again and again. worth: tokens for which it pays to
    share pages, or to keep the end of a conversation that another branches off from.
    """

    snapshot_interval: int
    snapshots_apart: int = 32
    max_tokens: int
    buffer_bytes: int = 0
    write_back: int = 4
    check: Callable[[], None] = lambda: None
    watch: Callable[[], int] = lambda: 0
    watch_steps: int = 16
    few: int = 32
    worth: int = 8
    pace: Callable[..., None] = lambda decoding: None


class Others:
    """Gives memory of the device to others while they need it."""

    def __init__(self, manager: PageManager, settings: PagedSettings) -> None:
        self._manager = manager
        self._settings = settings
        self._steps = 0

    def mind(self) -> None:
        """Ask, every so many steps; give back, or take up again. Raises EngineError."""
        self._steps += 1
        if self._steps % self._settings.watch_steps:
            return
        wanted = self._settings.watch()
        if wanted > 0:
            log.info("gave %d bytes of the device back", self._manager.shrink(wanted))
        elif wanted < 0:
            self._manager.grow(-wanted)
