"""The `pagedrun` command with somebody who watches: `python -m tests.watched_server serve ARGS`.

Lines of JSON go to the file that PAGEDRUN_WATCH names; times are seconds of the monotonic clock, which all processes
share. An answer's end: {"prompt", "asked", "tokens", "text", "reason", "at", "steps"}: tokens and their texts, and when
the last steps began. SIGUSR1: what is there now, {"tasks", "threads", "bytes", "kv"}, or {"wrong"}; SIGUSR2: the same
after all that rests was forgotten.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import threading
import time
from collections import deque
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pagedrun.cli.main import main
from pagedrun.engine import Engine
from pagedrun.kv import validate
from pagedrun.service import Service
from tests.own_memory import settled_memory

KEPT_STEPS = 16


class Watch:
    """One for the process. The engine's thread writes, between two steps."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)
        self._service: Any = None

    def install(self) -> None:
        step, end, opened = Engine.step, Engine._end, Service.__init__

        def watched_step(engine: Engine) -> None:
            self._steps.append(time.monotonic())
            step(engine)

        def watched_end(engine: Engine, answer: Any, reason: Any, **more: Any) -> None:
            end(engine, answer, reason, **more)
            sequence, vocab = answer.sequence, engine.runner.vocab
            tokens = list(sequence.tokens)
            prompt, answered = tokens[: sequence.n_prompt], tokens[sequence.n_prompt :]
            asked, text = (_text(b"".join(map(vocab.piece, part))) for part in (prompt, answered))
            self._say(
                prompt=prompt,
                asked=asked,
                tokens=answered,
                text=text,
                reason=reason.value,
                at=time.monotonic(),
                steps=list(self._steps),
            )

        def watched_open(service: Any, *args: Any, **more: Any) -> None:
            opened(service, *args, **more)
            self._service = service

        Engine.step, Engine._end = watched_step, watched_end  # type: ignore[method-assign]
        Service.__init__ = watched_open  # type: ignore[method-assign]
        for number, forget in ((signal.SIGUSR1, False), (signal.SIGUSR2, True)):
            signal.signal(number, partial(self._asked, forget))

    def _asked(self, forget: bool, *_: object) -> None:
        tasks = len(asyncio.all_tasks())  # the signal comes to the thread of the event loop
        self._service.call(partial(self._try_to_look, tasks, forget))

    def _try_to_look(self, tasks: int, forget: bool) -> None:
        try:
            self._look(tasks, forget)
        except Exception as e:
            self._say(wrong=repr(e))

    def _look(self, tasks: int, forget: bool) -> None:
        engine = self._service._engine
        slots = engine._slots
        if forget:
            while slots.forget_one(all_of_it=True):
                pass
            slots._manager.trim()
        validate(slots._manager)
        kv = slots.stats()
        assert engine._scheduler.idle and not engine._answers
        self._say(
            tasks=tasks,
            threads=sorted(thread.name for thread in threading.enumerate()),
            bytes=settled_memory(),
            kv=asdict(kv),
        )

    def _say(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")


def _text(data: bytes) -> str:
    """Without a character that is not complete at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


if __name__ == "__main__":
    Watch(Path(os.environ["PAGEDRUN_WATCH"])).install()
    main()
