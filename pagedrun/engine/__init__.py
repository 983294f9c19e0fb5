"""Requests over a model: plan, run, commit, on one thread that owns the model's context.

engine     the loop
ending     what is saved at the end, and who is refused
answer     an answer in the making
stats      what is counted
commands   what other threads ask for

Each imports from those below it only. What is computed next is `scheduling`'s affair, and the memory `slots`'.
"""

from __future__ import annotations

from pagedrun.engine.commands import Call, Cancel, Command, Shutdown, Sink, Submit
from pagedrun.engine.engine import Engine, start
from pagedrun.engine.stats import EngineStats

__all__ = ["Call", "Cancel", "Command", "Engine", "EngineStats", "Shutdown", "Sink", "Submit", "start"]
