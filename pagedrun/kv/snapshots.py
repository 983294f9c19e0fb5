"""States of recurrent layers, kept so that a conversation can be resumed where they were taken.

    conversation 1    tokens 0 ------ 512 ------ 1024 ---- 1310
                               snapshot   snapshot     snapshot

A recurrent state cannot be cut back: to go on at token n, one takes the last snapshot at or before n and computes the
rest again. A snapshot's size does not depend on its position, and a fork shares what lies before it.

Where they are taken    right before an answer, at its end, where two prompts part, and an interval after the last one
Which are kept          `thin`: where two lie close for where they are, one goes. An edit so far from the end costs so
                        many tokens anyway, and a quarter more at most, never more than an interval:

                        | interval | interval |     |     |  |  | || end

                        where bytes are short, the one of least value goes: tokens that are computed again without it,
                        times how likely it is to be asked for, over the time since it was used. A long conversation
                        then keeps its end and ever fewer before it; one that several branch off from stays.

How likely: as snapshots of its kind of place have been so far (chats whose thinking is stripped from the history go on
from before their answers, others from the end of these), and more where it was gone on from more than once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias, get_args

from pagedrun.kv.budget import Budget
from pagedrun.kv.ids import ConversationId

_position = attrgetter("position")

SHARE = 4  # snapshots may be a quarter as far apart as they are from the end
RECENT = 16  # events: who used none of its snapshots since then does not keep others from thinning what it shares
_MOST_HITS = 8  # that count
_REGENERATED = 1 / 4  # of answers, at least: nobody has done it until somebody does
_MEMORY = 128  # snapshots of a kind, after which older ones count half


#: Why a snapshot is where it is: so many tokens after the last one; right before an answer; where a conversation came
#: to rest; where two prompts part.
Place: TypeAlias = Literal["interval", "prompt", "end", "branch"]


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state after the first `position` tokens. data: what the runner gave, nbytes long. holders: who shares it.

    used: when it was last taken or resumed from, counted in such events; hits: how often it was resumed from.
    """

    position: int
    data: Any
    nbytes: int
    place: Place = "interval"
    holders: set[ConversationId] = field(default_factory=set)
    used: int = 0
    hits: int = 0

    @property
    def refs(self) -> int:
        """Of how many conversations it is."""
        return len(self.holders)


@dataclass(slots=True)
class _Seen:
    """How many snapshots of a kind were taken, and how many of them were resumed from."""

    taken: float = 0.0
    hit: float = 0.0

    @property
    def rate(self) -> float:
        return (self.hit + 1) / (self.taken + 2)

    def take(self) -> None:
        if self.taken >= _MEMORY:
            self.taken, self.hit = self.taken / 2, self.hit / 2
        self.taken += 1


class SnapshotStore:
    """Snapshots by conversation. `make_room(n_bytes)` may give bytes back to the budget, if others can spare them.

    evicted: how many went for want of bytes; thinned: because others lay close.
    """

    def __init__(self, budget: Budget, make_room: Callable[[int], None]) -> None:
        self._budget = budget
        self._make_room = make_room
        self._of: dict[ConversationId, list[Snapshot]] = {}
        self._all: dict[Snapshot, None] = {}
        self._used: dict[ConversationId, int] = {}  # when a conversation last took or used one
        self._seen = {place: _Seen() for place in get_args(Place)}
        self._events = 0
        self.evicted = 0
        self.thinned = 0

    def __iter__(self) -> Iterator[Snapshot]:
        """Every snapshot once."""
        return iter(self._all)

    @property
    def nbytes(self) -> int:
        """What all snapshots take."""
        return sum(s.nbytes for s in self)

    def of(self, conversation: ConversationId) -> tuple[Snapshot, ...]:
        """A conversation's snapshots, by position."""
        return tuple(self._of.get(conversation, ()))

    def add(
        self, conversation: ConversationId, position: int, data: Any, nbytes: int, place: Place = "interval"
    ) -> bool:
        """Keep a state; False when there is no room for it, even with others gone."""
        if (present := self._at(conversation, position)) is not None:  # the same tokens lead to the same state
            self._events += 1
            present.used = self._used[conversation] = self._events
            return True
        if not self._take(nbytes):
            return False
        self._events += 1
        self._seen[place].take()
        snapshot = Snapshot(position, data, nbytes, place, {conversation}, self._events)
        of = self._of.setdefault(conversation, [])
        of.insert(bisect_left(of, position, key=_position), snapshot)
        self._all[snapshot] = None
        self._used[conversation] = self._events
        return True

    def best(self, conversation: ConversationId, n_tokens: int) -> Snapshot | None:
        """The last snapshot at or before `n_tokens`; None when there is none, and all has to be computed again."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        if at == 0:
            return None
        self.used(conversation, of[at - 1].position)
        return of[at - 1]

    def used(self, conversation: ConversationId, position: int) -> None:
        """Somebody goes on from there, be it from this snapshot or from the state itself."""
        snapshot = self._at(conversation, position)
        if snapshot is None:
            return
        self._events += 1
        self._seen[snapshot.place].hit += not snapshot.hits
        snapshot.hits += 1
        snapshot.used = self._used[conversation] = self._events

    def last_before(self, conversation: ConversationId, n_tokens: int) -> int:
        """Where `best` would be; 0 when there is none."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        return of[at - 1].position if at else 0

    def fork(self, parent: ConversationId, child: ConversationId, n_tokens: int) -> None:
        """A new conversation has the first tokens of another, and so the snapshots in them."""
        shared = [s for s in self._of.get(parent, []) if s.position <= n_tokens]
        for snapshot in shared:
            snapshot.holders.add(child)
        if shared:
            self._of[child] = shared
            self._used[child] = self._used.get(parent, 0)

    def truncate(self, conversation: ConversationId, n_tokens: int) -> None:
        """A conversation keeps its first tokens only."""
        of = self._of.get(conversation, [])
        at = bisect_right(of, n_tokens, key=_position)
        for snapshot in of[at:]:
            snapshot.holders.remove(conversation)
            if not snapshot.holders:
                self._lose(snapshot)
        del of[at:]
        if not of:
            self._of.pop(conversation, None)

    def free(self, conversation: ConversationId) -> None:
        """A conversation is gone."""
        self.truncate(conversation, -1)
        self._used.pop(conversation, None)

    def thin(self, conversation: ConversationId, *, least: int, most: int) -> None:
        """Of a conversation's snapshots some go: see the module. least, most: tokens that those left are apart.

        What was resumed from more than once stays, and what others need for whom it is not far from the end.
        """
        of, at = self._of.get(conversation, []), 0
        while at < len(of) - 1:
            s = of[at]
            if s.hits < 2 and all(self._can_lack(c, s, least, most) for c in (conversation, *s.holders)):
                self._evict(s)
                self.thinned += 1
            else:
                at += 1

    def spare(self, n_bytes: int) -> None:
        """Give bytes of the budget to pages: those of least value go, but none that is somebody's newest."""
        while self._budget.left < n_bytes:
            victim = self._worst(but=_newest(self._of.values()))
            if victim is None:
                return
            self._evict(victim)
            self.evicted += 1

    def needed_bytes(self, conversations: Iterable[ConversationId]) -> int:
        """What those of some conversations take that `spare` leaves alone."""
        return sum(s.nbytes for s in _newest(self._of[c] for c in conversations if c in self._of))

    # inside

    def _at(self, conversation: ConversationId, position: int) -> Snapshot | None:
        of = self._of.get(conversation, [])
        at = bisect_left(of, position, key=_position)
        return of[at] if at < len(of) and of[at].position == position else None

    def _take(self, nbytes: int) -> bool:
        """Take bytes from the budget, for which those of least value may have to go."""
        if self._budget.take(nbytes):
            return True
        self._make_room(nbytes - self._budget.left)
        if nbytes > self._budget.left + self.nbytes:
            return False
        while nbytes > self._budget.left and (victim := self._worst()) is not None:
            self._evict(victim)
            self.evicted += 1
        return self._budget.take(nbytes)

    def _worst(self, but: Iterable[Snapshot] = ()) -> Snapshot | None:
        """The one of least value."""
        newest = set(but)
        return min((s for s in self._all if s not in newest), key=self._value, default=None)

    def _value(self, s: Snapshot) -> float:
        of = self._of[next(iter(s.holders))]  # before it they have the same ones
        at = bisect_left(of, s.position, key=_position)
        gap = s.position - (of[at - 1].position if at else 0)
        return gap * self._likely(s) / (self._events - s.used + 1)

    def _likely(self, s: Snapshot) -> float:
        likely = max(self._seen[s.place].rate, _REGENERATED if s.place == "prompt" else 0)
        return likely + min(max(s.hits - 1, 0), _MOST_HITS)

    def _can_lack(self, conversation: ConversationId, s: Snapshot, least: int, most: int) -> bool:
        """Whether those before and after it are close enough; for who has not used any for a while, within `most`."""
        of = self._of[conversation]
        at = bisect_left(of, s.position, key=_position)
        if at + 1 == len(of):
            return False
        recent = self._used.get(conversation, 0) >= self._events - RECENT
        apart = min(max((of[-1].position - s.position) // SHARE, least), most) if recent else most
        return of[at + 1].position - (of[at - 1].position if at else 0) <= apart

    def _evict(self, victim: Snapshot) -> None:
        for conversation in victim.holders:
            of = self._of[conversation]
            of.remove(victim)
            if not of:
                del self._of[conversation]
        victim.holders.clear()
        self._lose(victim)

    def _lose(self, snapshot: Snapshot) -> None:
        del self._all[snapshot]
        self._budget.give_back(snapshot.nbytes)


def _newest(lists: Iterable[list[Snapshot]]) -> set[Snapshot]:
    """The last one of each conversation."""
    return {of[-1] for of in lists}
