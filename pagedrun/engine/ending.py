"""The end of an engine: what is to outlive the process is saved, as long as there is time; who asks then is refused."""

from __future__ import annotations

import logging
import queue
import time
from typing import TYPE_CHECKING

from pagedrun.engine.commands import Call, Inbox, Shutdown, Submit

if TYPE_CHECKING:
    from pagedrun.durable import Keeper

log = logging.getLogger(__name__)

_LOOK_S = 3600.0  # a wait that has no end is made of such
_UNDER_WAY_S = 5.0  # for a write that was given up, to be gone


def save_the_rest(keeper: Keeper, inbox: Inbox, until: float) -> None:
    """Save until then (seconds, monotonic clock); a further `Shutdown` may set an earlier end."""
    keeper.close()
    gave_up = 0.0
    while keeper.busy or not inbox.empty():  # what was asked for before the end is done
        now = time.monotonic()
        if now >= until and not gave_up:
            keeper.give_up()
            gave_up = now
            continue
        last = until if not gave_up else gave_up + _UNDER_WAY_S
        if now >= last and inbox.empty():
            log.warning("a conversation is not saved: the disk does not answer")
            break
        try:
            command = inbox.get(timeout=min(max(last - now, 0.0), _LOOK_S))
        except queue.Empty:
            continue
        if isinstance(command, Call):
            command.do()
        elif isinstance(command, Shutdown):
            until = min(until, time.monotonic() + command.saving_s)
        elif isinstance(command, Submit):
            command.refuse()


def refuse_the_rest(inbox: Inbox) -> None:
    """Tell those who asked too late."""
    while not inbox.empty():
        command = inbox.get()
        if isinstance(command, Submit):
            command.refuse()
