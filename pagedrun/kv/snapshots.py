"""States of recurrent layers, kept so that a conversation can be resumed where they were taken.

    conversation 1    tokens 0 ------ 512 ------ 1024 ---- 1310
                               snapshot   snapshot     snapshot

A recurrent state cannot be cut back: to go on at token n, one takes the last snapshot at or before n and computes the
rest again. A snapshot's size does not depend on its position, and a fork shares what lies before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pagedrun.kv.budget import Budget
from pagedrun.kv.ids import ConversationId

_position = attrgetter("position")


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state after the first `position` tokens. data: what the runner gave, nbytes long. refs: of conversations.

    used: when it was last taken or resumed from, counted in such events.
    """

    position: int
    data: Any
    nbytes: int
    refs: int = 1
    used: int = 0


class SnapshotStore:
    """Snapshots by conversation. `make_room(n_bytes)` may give bytes back to the budget, if others can spare them."""

    def __init__(self, budget: Budget, make_room: Callable[[int], None]) -> None:
        self._budget = budget
        self._make_room = make_room
        self._of: dict[ConversationId, list[Snapshot]] = {}
        self._events = 0
        self.evicted = 0

    def __iter__(self) -> Iterator[Snapshot]:
        """Every snapshot once."""
        return iter({id(s): s for of in self._of.values() for s in of}.values())

    @property
    def nbytes(self) -> int:
        """What all snapshots take."""
        return sum(s.nbytes for s in self)

    def of(self, conversation: ConversationId) -> tuple[Snapshot, ...]:
        """A conversation's snapshots, by position."""
        return tuple(self._of.get(conversation, ()))

    def add(self, conversation: ConversationId, position: int, data: Any, nbytes: int) -> bool:
        """Keep a state; False when there is no room for it, even with others gone."""
        present = self._of.get(conversation, [])
        at = bisect_left(present, position, key=_position)
        if at < len(present) and present[at].position == position:
            self._use(present[at])  # the same tokens lead to the same state
            return True
        if not self._take(nbytes):
            return False
        snapshot = Snapshot(position, data, nbytes)
        self._use(snapshot)
        of = self._of.setdefault(conversation, [])
        of.insert(bisect_left(of, position, key=_position), snapshot)
        return True

    def best(self, conversation: ConversationId, n_tokens: int) -> Snapshot | None:
        """The last snapshot at or before `n_tokens`; None when there is none, and all has to be computed again."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        if at == 0:
            return None
        self._use(of[at - 1])
        return of[at - 1]

    def last_before(self, conversation: ConversationId, n_tokens: int) -> int:
        """Where `best` would be; 0 when there is none."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        return of[at - 1].position if at else 0

    def fork(self, parent: ConversationId, child: ConversationId, n_tokens: int) -> None:
        """A new conversation has the first tokens of another, and so the snapshots in them."""
        shared = [s for s in self._of.get(parent, []) if s.position <= n_tokens]
        for snapshot in shared:
            snapshot.refs += 1
        if shared:
            self._of[child] = shared

    def truncate(self, conversation: ConversationId, n_tokens: int) -> None:
        """A conversation keeps its first tokens only."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        for snapshot in of[at:]:
            self._let_go(snapshot)
        del of[at:]
        if not of:
            self._of.pop(conversation, None)

    def free(self, conversation: ConversationId) -> None:
        """A conversation is gone."""
        self.truncate(conversation, -1)

    def spare(self, n_bytes: int) -> None:
        """Give bytes of the budget to pages: the least useful snapshots go, but none that is somebody's newest."""
        needed = _needed(self._of.values())
        for victim in self._by_use():
            if self._budget.left >= n_bytes or victim in needed:
                return
            self._evict(victim)

    def needed_bytes(self, conversations: Iterable[ConversationId]) -> int:
        """What those of some conversations take that `spare` leaves alone."""
        of = [self._of[c] for c in conversations if c in self._of]
        return sum(s.nbytes for s in _needed(of))

    def _use(self, snapshot: Snapshot) -> None:
        self._events += 1
        snapshot.used = self._events

    def _let_go(self, snapshot: Snapshot) -> None:
        snapshot.refs -= 1
        if snapshot.refs == 0:
            self._budget.give_back(snapshot.nbytes)

    def _take(self, nbytes: int) -> bool:
        """Take bytes from the budget, for which the least useful snapshots may have to go."""
        if self._budget.take(nbytes):
            return True
        self._make_room(nbytes - self._budget.left)
        victims = self._by_use()
        if nbytes > self._budget.left + sum(s.nbytes for s in victims):
            return False
        for victim in victims:
            if nbytes <= self._budget.left:
                break
            self._evict(victim)
        return self._budget.take(nbytes)

    def _by_use(self) -> list[Snapshot]:
        """The least useful first. A conversation goes on from its newest one, and a shared one serves several."""
        newest = {id(of[-1]) for of in self._of.values()}
        return sorted(self, key=lambda s: (s.refs > 1 or id(s) in newest, s.used))

    def _evict(self, victim: Snapshot) -> None:
        for conversation, of in list(self._of.items()):
            if victim in of:
                of.remove(victim)
                self._let_go(victim)
            if not of:
                del self._of[conversation]
        self.evicted += 1


def _needed(lists: Iterable[list[Snapshot]]) -> set[Snapshot]:
    """Each conversation's newest one, and those that several share."""
    return {s for of in lists for s in of if s is of[-1] or s.refs > 1}
