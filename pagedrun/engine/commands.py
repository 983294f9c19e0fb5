"""What other threads ask of an engine. They put it into the engine's inbox, and it is done between two steps."""

from __future__ import annotations

import logging
import math
import queue
from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.request import Event, Finished, FinishReason, RequestId, Timings, Usage
from pagedrun.scheduling import Sequence

log = logging.getLogger(__name__)

Sink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Submit:
    """Start working on a sequence."""

    sequence: Sequence
    sink: Sink

    def refuse(self) -> None:
        """The engine takes no more."""
        usage = Usage(self.sequence.n_prompt, 0)
        self.sink(Finished(FinishReason.CANCELLED, usage, Timings(0.0, 0.0, 0.0)))


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop working on a request; unknown ids are ignored (it may just have finished)."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel everything and leave the loop. Conversations are saved for so many seconds; a later one may give less."""

    saving_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Call:
    """Do something between two steps. It must not fail."""

    work: Callable[[], None]

    def do(self) -> None:
        """Do it; what fails all the same is logged."""
        try:
            self.work()
        except Exception:
            log.exception("what was to be done between two steps failed")


Command = Submit | Cancel | Shutdown | Call
Inbox = queue.SimpleQueue[Command]
