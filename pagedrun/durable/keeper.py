"""The engine's side of durable conversations: what is saved when, and what is restored for whom.

    comes to rest, with MIN_TOKENS or more      an automatic entry, in the background, one at a time; one that is there
                                                is brought up to date when a page's tokens are new, or at the end
    a prompt that begins like a file            waits until it is restored, if that is faster than computing it
    memory is short                             saves and restores under way give up theirs first
    the end                                     what is not saved yet is, as long as there is time

Everything here runs on the engine's thread; `call` brings work of other threads there. What is restored rests, and is
found by its tokens like all that rests: a file can make a prompt faster, and nothing else. One that is damaged, or of
another model, is of no use, and that is all.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagedrun.durable.buffers import LEAST, PIECE, Buffers
from pagedrun.durable.contents import Sources
from pagedrun.durable.loading import Loading
from pagedrun.durable.rates import Speeds
from pagedrun.durable.saving import Call, Saving
from pagedrun.durable.stored import Key, Stored, StoredIndex
from pagedrun.durable.wishes import Told, Wish
from pagedrun.kv import ConversationId, Held, PageManager
from pagedrun.kv.store import FrameStore
from pagedrun.sessions import Contents, Identity, Mark, NotSavedError, SessionFolder
from pagedrun.sessions.trouble import DamagedSessionError, OtherIdentityError, OtherVersionError, SessionNotFoundError
from pagedrun.slots.plain import common_prefix
from pagedrun.slots.resting import Resting

log = logging.getLogger(__name__)

MIN_TOKENS = 512  # of a conversation that gets an automatic entry
GAIN = 16  # tokens less to compute, for which a file is looked at

_USELESS = (SessionNotFoundError, DamagedSessionError, OtherVersionError, OtherIdentityError)


@dataclass(slots=True)
class KeeperStats:
    """Conversations and tokens since the start. skipped: restores that computing was faster than."""

    saved: int = 0
    failed: int = 0
    restored: int = 0
    restored_tokens: int = 0
    restored_bytes: int = 0
    restored_s: float = 0.0
    skipped: int = 0


@dataclass(slots=True, eq=False)
class Keeper:
    """See the module. automatic: whether entries are made that nobody asked for. model: its name, for people."""

    manager: PageManager
    store: FrameStore
    resting: Resting
    folder: SessionFolder
    identity: Identity
    call: Call
    can_rewind: bool
    model: str = ""
    automatic: bool = True
    budget: int = 0
    min_tokens: int = MIN_TOKENS
    speeds: Speeds = field(default_factory=Speeds)
    stats: KeeperStats = field(default_factory=KeeperStats)
    stored: StoredIndex = field(init=False)
    _sources: Sources = field(init=False)
    _wishes: list[Wish] = field(init=False, default_factory=list)
    _unsaved: dict[ConversationId, None] = field(init=False, default_factory=dict)
    _little: dict[ConversationId, None] = field(init=False, default_factory=dict)  # is new in these
    _closing: bool = field(init=False, default=False)
    _saving: Saving | None = field(init=False, default=None)
    _loading: dict[Key, Loading] = field(init=False, default_factory=dict)
    _told: str = field(init=False, default="")  # why saving failed
    _short: bool = field(init=False, default=False)  # of memory, since the last one came to rest

    def __post_init__(self) -> None:
        self.stored = StoredIndex(self.folder, self.identity)
        self._sources = Sources(self.manager, self.store, self.identity, self.model)
        if self.budget:
            self.folder.trim()
            self.stored.scan()
        self.resting.rested = self.rested
        self.resting.spare = self.spare

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return self._saving is not None or bool(self._loading) or bool(self._wishes)

    @property
    def unsaved(self) -> int:
        """Conversations that are still to be saved. From any thread."""
        return len(self._unsaved) + (self._saving is not None) + len(self._wishes)

    # saving

    def rested(self, conversation: ConversationId) -> None:
        """A conversation has come to rest."""
        self._unsaved.pop(conversation, None)
        self._little.pop(conversation, None)
        if self.automatic and self.budget and self.manager.length(conversation) >= self.min_tokens:
            self._unsaved[conversation] = None
        self._short = False
        self._next()

    def save(self, name: str, tokens: Sequence[int], note: str, told: Told) -> None:
        """Save what rests and begins with these tokens as a named session, with a text."""
        self._wishes.append(Wish(name, tokens, note, told))
        self._next()

    def close(self) -> None:
        """Save what is not saved yet, the newest first; restores are given up. It goes on while `busy`."""
        for load in self._loading.values():
            load.stop()
        self._short, self._closing = False, True
        self._unsaved = self._little | self._unsaved
        self._next()

    def give_up(self) -> None:
        """There is no time for automatic entries any more. One that is being written ends soon."""
        self._unsaved.clear()
        if self._saving is not None and self._saving.key[0] == "cache":
            self._saving.release()

    # restoring

    def register(self, key: Key, tokens: Sequence[int], snapshots: Sequence[int], mark: Mark) -> None:
        """A file that prompts may go on from, and that saves of this name go on in."""
        self.stored.add(key, tokens, snapshots, mark)

    def awaits(
        self, request: int, tokens: Sequence[int], ready: Callable[[], None], coming: Callable[[], int] = lambda: 0
    ) -> bool:
        """Whether a request should wait for a conversation that is on disk; `ready` is called when it need not.

        coming: how many of the tokens one that runs has, or is going to have.
        """
        found = self._find(tokens)
        if found is None:
            return False
        entry, common = found
        n = entry.usable(min(common, len(tokens) - 1), can_rewind=self.can_rewind)
        there = self.resting.find(tokens, ())
        gain = n - max(there.n if there else 0, coming())
        if gain < GAIN:
            return False
        if not self.speeds.pays(gain, self._sources.n_bytes(n)):
            self.stats.skipped += 1
            return False
        load = self._loading.get(entry.key)
        if load is None:
            source, pages = (self.folder, entry.key, self.identity), (self.manager, self.store)
            buffers, rewind = Buffers(self.manager.staging), self.can_rewind
            load = Loading(source, list(tokens[:n]), pages, buffers, self.call, self._loaded, can_rewind=rewind)
            self._loading[entry.key] = load
        load.waiting[request] = ready
        return True

    def forget(self, request: int) -> bool:
        """A request need not be served any more; whether it was waiting here."""
        return any(load.waiting.pop(request, None) is not None for load in list(self._loading.values()))

    def spare(self) -> bool:
        """Memory is short: give back what saves and restores keep others from using; whether there was any."""
        stopped = [load.stop() for load in self._loading.values()]  # each of them
        gave = any(stopped)
        if self._saving is not None and self._saving.held is not None and not self._saving.held.released:
            self._saving.release()
            self._short = gave = True
        return gave

    # inside

    def _next(self) -> None:
        while self._saving is None:
            if self._wishes:
                self._begin_named(self._wishes.pop(0))
            elif self._unsaved and not self._short:
                self._begin_automatic()
            else:
                return

    def _begin_named(self, wish: Wish) -> None:
        key: Key = ("named", wish.name)
        found, entry = None if wish.less else self.resting.index.find(wish.tokens), self.stored.get(key)
        n = 0 if found is None else min(found[1], self.manager.length(found[0]))
        kept = common_prefix(self.stored.tokens(key), list(wish.tokens)) if entry and not wish.text_alone else 0

        def done(saving: Saving) -> None:
            if wish.smaller(saving.error):
                self._begin_named(wish)
                return
            self._saved(saving, tokens)
            wish.ended(saving.error, len(tokens))

        held, mark = None, entry.mark if entry else None
        text = {"name": wish.name, "note": wish.note}
        tokens = list(wish.tokens[:n])
        if entry is not None and kept > n + 1:  # memory has less of it than the file; the last token is never computed
            tokens = list(wish.tokens[:kept])
            contents = self._sources.in_file(self.folder.path(wish.name), tokens, **text)
        elif found is not None and n:
            try:
                contents, held = self._sources.of(found[0], tokens, **text)
            except LookupError as e:
                wish.smaller(NotSavedError(f"{wish.name} was not saved: {e}"))
                self._begin_named(wish)
                return
        else:
            contents = self._sources.nothing(**text)
        if not self._begin(key, contents, held, mark, done):
            wish.smaller(NotSavedError(f"{wish.name} was not saved: swap_space has no room for copies of pages"))
            self._begin_named(wish)

    def _begin_automatic(self) -> None:
        conversation = next(reversed(self._unsaved) if self._closing else iter(self._unsaved))
        del self._unsaved[conversation]
        if conversation not in self.resting.index:
            return  # it goes on, or was forgotten
        tokens = self.resting.index.tokens(conversation)[: self.manager.length(conversation)]
        if len(tokens) < self.min_tokens or self._sources.n_bytes(len(tokens)) > self.budget:
            return
        there = self._find(tokens)
        if there is not None and there[1] == len(tokens):
            return  # all of it is on disk
        before = self.stored.continued_by(tokens)
        if before is not None and not self._closing and self.identity.geometry.full_pages(len(tokens) - before[1]) < 1:
            here = self.resting.index
            self._little = {c: None for c in self._little if c in here} | {conversation: None}
            return
        key: Key = before[0].key if before else ("cache", uuid.uuid4().hex)
        try:
            contents, held = self._sources.of(conversation, tokens)
        except LookupError:
            return
        mark = before[0].mark if before else None
        if not self._begin(key, contents, held, mark, lambda saving: self._saved(saving, tokens)):
            self._unsaved[conversation], self._short = None, True

    def _begin(
        self, key: Key, contents: Contents, held: Held | None, mark: Mark | None, done: Callable[[Saving], None]
    ) -> bool:
        """False: there is no memory to copy pages to."""
        buffers = Buffers(self.manager.staging)
        if held is not None and not buffers.obtain(held.n_pages, self.identity.frame_bytes, most=LEAST * PIECE):
            held.release()
            return False

        def ended(saving: Saving) -> None:
            saving.release()
            saving.memory.give_back()
            self._saving = None
            done(saving)
            self._next()

        self._saving = Saving(self.folder, key, contents, held, mark, buffers, self.call, ended)
        return True

    def _saved(self, saving: Saving, tokens: Sequence[int]) -> None:
        if saving.mark is None:
            self.stats.failed += 1
            why = str(saving.error).removeprefix(f"{saving.key[1]}.kv was not saved: ")  # not by its random name
            if saving.key[0] == "cache" and not saving.gave_way and why != self._told:
                self._told = why  # once, and not for every conversation
                log.warning("conversations are not kept on disk: %s", why)
            return
        self.stats.saved += 1
        self.stored.add(saving.key, tokens, [p for p, _ in saving.contents.snapshots], saving.mark)

    def _loaded(self, load: Loading) -> None:
        del self._loading[load.key]
        load.memory.give_back()
        try:
            conversation = load.adopted.end() if load.adopted is not None else None
            if conversation is not None:
                self._take_in(conversation, load)
            entry = self.stored.get(load.key)
            if entry is not None and load.mark is not None:
                entry.mark = load.mark
            if load.error is not None:
                log.info("%s is not used: %s", load.key[1], load.error.message)
                if isinstance(load.error, _USELESS):
                    self.stored.remove(load.key)
        finally:
            for ready in load.waiting.values():
                ready()

    def _take_in(self, conversation: ConversationId, load: Loading) -> None:
        manager, n = self.manager, self.manager.length(conversation)
        if not self.can_rewind:
            usable = [(p, data) for p, data in load.states if p <= n]
            n = max((p for p, _ in usable), default=0)
            manager.truncate(conversation, n)
            for position, data in usable:
                manager.snapshots.add(conversation, position, data, len(data))
            n = n if manager.snapshots.last_before(conversation, n) else 0
        if not n:
            manager.free(conversation)
            return
        self.stats.restored += 1
        self.stats.restored_tokens += n
        self.stats.restored_bytes += load.n_bytes
        self.stats.restored_s += load.seconds
        self.speeds.restored(load.n_bytes, load.seconds)
        self.resting.add(conversation, load.tokens[:n])

    def _find(self, tokens: Sequence[int]) -> tuple[Stored, int] | None:
        """What is on disk and begins like these tokens. Files may have left it."""
        while (found := self.stored.find(tokens)) is not None:
            kind, name = found[0].key
            if self.folder.path(name, kind).exists():
                return found
            self.stored.remove(found[0].key)
        return None
