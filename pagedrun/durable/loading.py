"""One conversation from its file into pages: threads read and check pieces, the engine puts them where they belong.

threads   read, check | read, check | ...        around the page cache, several at once
engine    step | write to frames | step | ...    in order, up to the first page that is damaged, or has no room
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pagedrun.durable.buffers import Buffers
from pagedrun.durable.saving import Call
from pagedrun.durable.stored import Key
from pagedrun.errors import PagedrunError, SessionError
from pagedrun.kv import Adopted, PageManager
from pagedrun.kv.keeping import Bytes
from pagedrun.kv.store import FrameStore
from pagedrun.sessions import Identity, Mark, Session, SessionFolder, aligned
from pagedrun.sessions.places import ALIGN
from pagedrun.slots.plain import common_prefix

log = logging.getLogger(__name__)

READERS = 4
MOST = 64 << 20  # bytes of pieces that are read or wait for the engine, where pages are not larger
STATES = 2  # recurrent states that are brought back: where the conversation goes on, and one to go back to


class Loading:
    """A conversation that is coming. `done(self)` is called on the engine's thread; what came is in `adopted`.

    tokens: of the prompt that wants it, as many as can be used. memory: for pieces and states; where there is none,
    nothing comes. can_rewind: whether no recurrent state is needed.
    """

    def __init__(
        self,
        source: tuple[SessionFolder, Key, Identity],
        tokens: Sequence[int],
        pages: tuple[PageManager, FrameStore],
        memory: Buffers,
        call: Call,
        done: Callable[[Loading], None],
        *,
        can_rewind: bool,
    ) -> None:
        self._folder, self.key, self._identity = source
        self.tokens, self.can_rewind = tokens, can_rewind
        self.waiting: dict[int, Callable[[], None]] = {}  # what is to be done for whom when it is there
        self.adopted: Adopted | None = None
        self.states: list[tuple[int, bytearray]] = []
        self.mark: Mark | None = None
        self.error: PagedrunError | None = None
        self.n_bytes, self.seconds = 0, 0.0
        self._pages, self._call, self._done = pages, call, done
        self.memory = memory
        self._stopped = False
        self._buffers: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="pagedrun-load", daemon=True).start()

    def stop(self) -> bool:
        """On the engine's thread: others need the room. What came is gone; False: nothing had come."""
        self._stopped = True
        had = self.adopted is not None and self.adopted.id is not None
        if self.adopted is not None:
            self.adopted.drop()
        return had

    # on the thread

    def _run(self) -> None:
        began = time.perf_counter()
        kind, name = self.key
        try:
            with self._folder.open(name, self._identity, kind) as session:
                self._load(session)
                self.mark = session.index.mark.cut(_whole(session))
        except PagedrunError as e:
            self.error = e
        except Exception as e:
            log.exception("a conversation could not be restored")
            self.error = SessionError(f"{name} could not be restored: {e}", hint="this is a bug; -v shows more")
        self.seconds = time.perf_counter() - began
        self._call(lambda: self._done(self))

    def _load(self, session: Session) -> None:
        n = common_prefix(self.tokens, session.tokens.astype(np.int64).tolist())
        n = min(n, session.usable_tokens)
        if not n or not self._obtain(session, n):
            return
        if not self.can_rewind:
            n = self._read_states(session, n)
        if n:
            self._call(lambda: self._begin(n))
            self._read_pages(session, session.meta.identity.geometry.pages_for(n))
            if not self.can_rewind and session.usable_tokens < n:  # a page was damaged
                self._read_states(session, session.usable_tokens)

    def _obtain(self, session: Session, n_tokens: int) -> bool:
        """Memory for that, which the engine has to give."""
        states = [size for position, size in session.meta.snapshots if position <= n_tokens][-STATES:]
        frame, n_pages = self._identity.frame_bytes, session.meta.identity.geometry.pages_for(n_tokens)
        given: queue.SimpleQueue[bool] = queue.SimpleQueue()
        others = 0 if self.can_rewind else sum(states)
        self._call(lambda: given.put(self.memory.obtain(n_pages, frame, most=MOST, others=others)))
        there = given.get()
        if not there:
            log.info("%s is not restored: swap_space has no room for what is read", self.key[1])
        return there

    def _read_states(self, session: Session, n: int) -> int:
        """The newest states up to `n` tokens; answers where the first of them is."""
        self.states = []
        for position in sorted((p for p in session.usable_snapshots if p <= n), reverse=True):
            data = session.read_snapshot(position)
            if data is not None:
                self.states.append((position, data))
                self.n_bytes += len(data)
            if len(self.states) == STATES:
                break
        return self.states[0][0] if self.states else 0

    def _read_pages(self, session: Session, n_pages: int) -> None:
        frame = self._identity.frame_bytes
        n_buffers, step = self.memory.pieces(frame)
        firsts = range(0, n_pages, step)
        for _ in range(min(n_buffers, len(firsts))):
            self._buffers.put(aligned(step, frame))

        def read(first: int) -> tuple[Bytes, int, int] | None:
            buffer = self._buffers.get()
            if buffer is None or self._stopped:
                self._buffers.put(None)  # for the next one
                return None
            n = min(step, n_pages - first)
            return buffer, session.read_pages(first, buffer[:n]), n

        # A read that is not aligned goes through a buffer that the file has only one of.
        with ThreadPoolExecutor(READERS if frame % ALIGN == 0 else 1, "pagedrun-read") as pool:
            for piece in [pool.submit(read, first) for first in firsts]:
                came = piece.result()
                if came is None:
                    break
                self._hand_over(came[0], came[1])
                if came[1] < came[2]:
                    break
            self._buffers.put(None)  # nobody waits for a buffer any more

    def _hand_over(self, buffer: Bytes, n: int) -> None:
        self._call(lambda: self._put(buffer, n))

    # on the engine's thread

    def _begin(self, n_tokens: int) -> None:
        if not self._stopped:
            self.adopted = Adopted(*self._pages, n_tokens)

    def _put(self, buffer: Bytes, n: int) -> None:
        if self.adopted is not None and self.adopted.id is not None:
            if self.adopted.put(buffer[:n]) < n:
                self._stopped = True
            self.n_bytes += n * buffer.shape[1]
        self._buffers.put(buffer)


def _whole(session: Session) -> int:
    """How many tokens have pages and states that nobody found to be damaged."""
    n = session.usable_tokens
    bad = {position for position, _ in session.meta.snapshots} - set(session.usable_snapshots)
    return min([n, *(position - 1 for position in bad if 0 < position <= n)])
