"""One save on a thread of its own: the engine copies pages, a piece between two steps, and this thread writes them.

engine   step | copy 8 MiB | step | copy 8 MiB | ...        others wait for the copy only
thread                     | checksum, write  | ...
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from pagedrun.durable.buffers import Buffers
from pagedrun.durable.stored import Key
from pagedrun.errors import PagedrunError, SessionError
from pagedrun.kv import Held
from pagedrun.kv.keeping import Bytes
from pagedrun.sessions import Contents, Mark, NotSavedError, SessionFolder

log = logging.getLogger(__name__)

#: Has something done on the engine's thread.
Call = Callable[[Callable[[], None]], None]


class Saving:
    """A save under way. `done(self)` is called on the engine's thread; then `mark` is there, or `error`.

    held: its pages; None: `contents` gives them, on the thread. memory: for copies of pages. gave_way: it failed
    because its pages were needed for something else.
    """

    def __init__(
        self,
        folder: SessionFolder,
        key: Key,
        contents: Contents,
        held: Held | None,
        since: Mark | None,
        memory: Buffers,
        call: Call,
        done: Callable[[Saving], None],
    ) -> None:
        self.key, self.held = key, held
        self.contents = contents if held is None else replace(contents, page=self._page, ahead=self._announced)
        self.mark: Mark | None = None
        self.error: PagedrunError | None = None
        self.gave_way = False
        self.memory = memory
        self._folder, self._since, self._call, self._done = folder, since, call, done
        self._step = memory.pieces(contents.identity.frame_bytes)[1]
        self._wanted: deque[int] = deque()
        self._given: queue.SimpleQueue[dict[int, Bytes] | Exception] = queue.SimpleQueue()
        self._there: dict[int, Bytes] = {}
        threading.Thread(target=self._run, name="pagedrun-save", daemon=True).start()

    def release(self) -> None:
        """On the engine's thread: others need the pages. The save fails, unless it has copied all."""
        if self.held is not None:
            self.held.release()

    # on the thread

    def _run(self) -> None:
        kind, name = self.key
        try:
            if kind == "named":
                self.mark = self._folder.save(name, self.contents, self._since)
            else:
                self.mark = self._folder.cache(name, self.contents, self._since)
                self.error = None if self.mark else SessionError(self._folder.refused)
        except PagedrunError as e:
            self.error = e
        except Exception as e:
            log.exception("a conversation could not be saved")
            self.error = SessionError(f"{name} was not saved: {e}", hint="this is a bug; -v shows more")
        self._call(lambda: self._done(self))

    def _announced(self, numbers: Sequence[int]) -> None:
        self._wanted = deque(numbers)
        for _ in range(2):  # one is copied while another is written
            self._ask()

    def _ask(self) -> None:
        numbers = [self._wanted.popleft() for _ in range(min(self._step, len(self._wanted)))]
        if numbers:
            self._call(lambda: self._give(numbers))

    def _page(self, number: int) -> Bytes:
        while number not in self._there:
            given = self._given.get()
            if isinstance(given, Exception):
                raise NotSavedError(f"{self.key[1]} was not saved: {given}") from given
            self._there |= given
            self._ask()
        return self._there.pop(number)

    # on the engine's thread

    def _give(self, numbers: Sequence[int]) -> None:
        try:
            assert self.held is not None  # or nobody would ask
            self._given.put({number: self.held.page(number) for number in numbers})
        except LookupError as e:
            self.gave_way = True
            self._given.put(e)
