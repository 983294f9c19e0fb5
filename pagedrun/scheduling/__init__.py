"""Which tokens are computed next.

scheduler   waiting and running sequences -> the next step
following   who begins like one that is being read, and waits for it
pausing     who gives its memory up, and who gets it back
line        who waits, in which order, and how often somebody may be overtaken
stall       how many tokens of prompts a step may have
sequence    a request that is being worked on

Each imports from those below it only, and nothing here knows a model: slots are asked.
"""

from __future__ import annotations

from pagedrun.scheduling.scheduler import NO_MEMORY, Scheduler
from pagedrun.scheduling.sequence import Sequence

__all__ = ["NO_MEMORY", "Scheduler", "Sequence"]
