"""One answer: send the prompt, show what comes, stop on Ctrl-C, and say how it ended.

    engine thread --events--> pump thread (parses) --deltas--> main thread (draws, watches for Ctrl-C)

The pump is there so that the main thread never blocks for long: clocks move, and Ctrl-C, which only sets a
flag, cannot interrupt the drawing in the middle of an escape sequence.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagedrun.cli.repl.prompt import silent_keyboard
from pagedrun.errors import EngineError, PagedrunError

if TYPE_CHECKING:
    from pagedrun.cli.generate import Answer, AnswerDelta
    from pagedrun.cli.repl.render import AnswerView
    from pagedrun.request import Finished

_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer amounts to. `error` is set when it failed; `finished` only then may be missing."""

    content: str
    reasoning: str
    finished: Finished | None
    error: PagedrunError | None = None
    interrupted: bool = False


def follow(answer: Answer, view: AnswerView) -> Said:
    """Show an answer until it ends. Ctrl-C cancels it, and what was said until then is kept."""
    arriving: queue.SimpleQueue[AnswerDelta | PagedrunError | None] = queue.SimpleQueue()
    pump = threading.Thread(target=_pump, args=(answer, arriving), name="pagedrun-answer", daemon=True)
    error = None
    with silent_keyboard(), _interrupts() as interrupted:
        pump.start()
        cancelled = False
        while True:
            if interrupted.is_set() and not cancelled:
                answer.cancel()
                view.stopping()
                cancelled = True
            try:
                arrived = arriving.get(timeout=_TICK_S)
            except queue.Empty:
                view.tick()
                continue
            if arrived is None:
                break
            if isinstance(arrived, PagedrunError):
                error = arrived
            else:
                view.add(arrived)
        pump.join()
        view.close()
    return Said(answer.content, answer.reasoning, answer.finished, error, interrupted=cancelled)


def _pump(answer: Answer, out: queue.SimpleQueue[AnswerDelta | PagedrunError | None]) -> None:
    try:
        for delta in answer:
            out.put(delta)
    except PagedrunError as e:
        out.put(e)
    except Exception as e:  # in a thread of its own it would be lost, and the main thread would wait for ever
        out.put(EngineError(f"the answer could not be read: {e}"))
    finally:
        out.put(None)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turns Ctrl-C into an event for the time of an answer."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
