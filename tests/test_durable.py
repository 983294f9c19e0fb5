"""Conversations that outlive the process, over a fake runner that computes from what its pages really hold."""

from __future__ import annotations

import functools
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.durable import Keeper
from pagedrun.engine import Call, Cancel, Shutdown, Submit
from pagedrun.engine.ending import save_the_rest
from pagedrun.kv import SpillSettings, validate
from pagedrun.request import Event, Finished, FinishReason, GenerationRequest, RequestId
from pagedrun.scheduling import Sequence
from pagedrun.sessions import Disk, Identity, Session, SessionFolder
from tests.paged_fakes import STAGED, PagedEngine, end, expected, reason, text

IDENTITY = Identity(model="m", kv_type_k="f16", kv_type_v="f16", page_bytes=24, row_bytes=4, n_stripes=2)
MANY = replace(IDENTITY, n_stripes=8)
LONG = "the quick brown fox jumps over "


class Durable(PagedEngine):
    """With a keeper. Calls of its threads are carried out between steps, as the engine's thread does it."""

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        identity: Identity = IDENTITY,
        budget: int = 1 << 20,
        **more: object,
    ) -> None:
        super().__init__(**{"device": 24, "host": 12} | more)  # type: ignore[arg-type]
        self.keeper = self.engine.keeper = Keeper(
            self.manager,
            self.store,
            self.slots.resting,
            SessionFolder(root, budget, disk=disk),
            identity,
            call=lambda work: self.engine.inbox.put(Call(work)),
            can_rewind=self.runner.can_rewind,
            budget=budget,
            min_tokens=12,
        )

    def check(self) -> None:
        validate(self.manager)

    def pump(self) -> None:
        """Until nothing is saved or restored any more."""
        while self.keeper.busy or not self.engine.inbox.empty():
            self.engine._carry_out(self.engine.inbox.get(timeout=20))
            self.check()

    def finish(self) -> None:
        self.pump()
        super().finish()

    def end(self) -> None:
        """As at the end of the engine's thread."""
        save_the_rest(self.keeper, self.engine.inbox, self.engine._save_until)
        validate(self.manager)

    def cached(self, prompt: str, n: int = 6) -> int:
        """What of a prompt did not have to be computed; the answer is right."""
        events = self.submit(prompt, n)
        self.finish()
        assert text(events) == expected(prompt, n)
        return end(events).usage.cached_tokens


@pytest.fixture(autouse=True)
def small_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.durable.keeper.GAIN", 4)
    monkeypatch.setattr("pagedrun.durable.buffers.PIECE", 100)


def files(root: Path) -> list[Path]:
    return sorted((root / "cache").glob("*.kv"))


@pytest.mark.parametrize("can_rewind", [True, False])
def test_a_conversation_goes_on_in_another_process(tmp_path: Path, can_rewind: bool) -> None:
    first = Durable(tmp_path, can_rewind=can_rewind)
    answer = first.ask(LONG)
    first.pump()
    assert len(files(tmp_path)) == 1
    second = Durable(tmp_path, can_rewind=can_rewind)
    assert second.cached(LONG + answer + "!?") == len(LONG + answer) - 1  # the answer's last token was not computed
    assert second.runner.computed == 3 + 5
    assert second.keeper.stats.restored == 1


@pytest.mark.parametrize("can_rewind", [True, False])
def test_what_goes_on_is_appended_to_its_file(tmp_path: Path, can_rewind: bool) -> None:
    engine = Durable(tmp_path, can_rewind=can_rewind)
    history = LONG
    for _ in range(3):
        history += engine.ask(history) + " so"
        engine.pump()
    assert len(files(tmp_path)) == 1 and engine.keeper.stats.saved == 3
    with Session(files(tmp_path)[0]) as session:
        assert bytes(session.tokens.tolist()).decode() == history[: session.meta.n_tokens]
        assert session.meta.n_tokens == len(history) - 4
    again = Durable(tmp_path, can_rewind=can_rewind)
    assert again.cached(history, 2) == len(history) - 4


def test_a_prompt_that_branches_off_gets_what_they_have_in_common(tmp_path: Path) -> None:
    first = Durable(tmp_path)
    first.ask(LONG)
    first.end()
    second = Durable(tmp_path)
    assert second.cached(LONG[:20] + "another way") == 20
    second.end()
    assert len(files(tmp_path)) == 2


def test_the_end_saves_what_is_not_saved(tmp_path: Path) -> None:
    engine = Durable(tmp_path)
    engine.keeper.automatic = False
    engine.ask(LONG)
    engine.keeper.automatic = True
    for prompt in ("abcdefghijklmnop", "0123456789012345", "short"):
        engine.submit(prompt)
    while not engine.scheduler.idle:
        engine.turn()
    engine.end()
    assert len(files(tmp_path)) == 2  # not the short one
    again = Durable(tmp_path)
    assert again.cached("abcdefghijklmnop?") == 16
    assert again.cached("0123456789012345?") == 16


def test_who_asks_while_the_rest_is_saved_does_not_wait_for_it(tmp_path: Path) -> None:
    engine = Durable(tmp_path)
    events: list[Event] = []
    saved: list[int] = []

    def sink(event: Event) -> None:
        events.append(event)
        saved.append(engine.keeper.stats.saved)

    request = GenerationRequest(prompt=tuple(LONG.encode()))
    engine.engine.inbox.put(Submit(Sequence(RequestId(9), request), sink))  # before any of the save's calls
    engine.submit(LONG)
    while not engine.scheduler.idle:
        engine.turn()
    engine.end()
    assert reason(events) is FinishReason.CANCELLED and saved == [0] and engine.keeper.stats.saved == 1


@pytest.mark.parametrize("end", [[Shutdown(0)], [Shutdown(), Shutdown(0)]])
def test_the_end_has_a_bound(tmp_path: Path, end: list[Shutdown]) -> None:
    """One is being copied when the time is over: neither it nor the others are saved, and nothing is left of it."""
    engine = Durable(tmp_path, device=60)
    for prompt in (LONG, LONG.upper(), LONG[::-1]):
        engine.submit(prompt)
    while not engine.scheduler.idle:
        engine.turn()
    assert engine.keeper.unsaved == 3 and not files(tmp_path)
    for command in end:
        engine.engine.inbox.put(command)
    while engine.engine._take_commands():
        pass
    engine.end()
    assert engine.keeper.unsaved == 0 and not engine.keeper.busy
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pagedrun.engine.ending._UNDER_WAY_S", 0.1)
    gate = threading.Event()

    class Hanging(Disk):
        def sync(self, fd: int) -> None:
            assert gate.wait(20)

    engine = Durable(tmp_path, disk=Hanging())
    engine.submit(LONG)
    while not engine.scheduler.idle:
        engine.turn()
    engine.engine._carry_out(Shutdown(0.1))
    engine.end()
    assert "the disk does not answer" in caplog.text
    gate.set()
    engine.pump()


def test_others_go_on_while_one_is_saved(tmp_path: Path) -> None:
    """The writer is stopped in the middle: conversations are computed, and the saved one is cut and goes on."""
    gate = threading.Event()

    class Slow(Disk):
        def sync(self, fd: int) -> None:
            assert gate.wait(20)

    engine = Durable(tmp_path, disk=Slow())
    answer = engine.ask(LONG)
    assert engine.keeper.busy
    follow_up = LONG + answer[:3] + " other"
    events = [engine.submit("something else"), engine.submit(follow_up)]
    while not engine.scheduler.idle:
        engine.turn()
        with_calls(engine)
    assert [text(e) for e in events] == [expected("something else"), expected(follow_up)]
    gate.set()
    engine.pump()
    found = {bytes(Session(path).tokens.tolist()).decode() for path in files(tmp_path)}
    assert any(f.startswith(LONG) for f in found)
    for tokens in found:  # whatever was saved is right
        again = Durable(tmp_path)
        assert again.cached(tokens + "?") == len(tokens)


def with_calls(engine: Durable) -> None:
    while True:
        try:
            engine.engine._carry_out(engine.engine.inbox.get_nowait())
        except queue.Empty:
            return


def damage(path: Path, page: int) -> None:
    with Session(path) as session:
        offset = int(session.index.pages["offset"][page])
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("can_rewind", [True, False])
@pytest.mark.parametrize("page", [0, 3, 5])
def test_a_damaged_page_and_what_follows_it_is_computed_again(tmp_path: Path, page: int, can_rewind: bool) -> None:
    first = Durable(tmp_path, can_rewind=can_rewind)
    answer = first.ask(LONG)
    first.end()
    damage(files(tmp_path)[0], page)
    second = Durable(tmp_path, can_rewind=can_rewind)
    cached = second.cached(LONG + answer + "!")
    assert cached == page * 6 if can_rewind else cached <= page * 6
    second.end()
    third = Durable(tmp_path, can_rewind=can_rewind)
    whole = LONG + answer + "!"
    assert third.cached(whole + expected(whole)[:-1] + "?") == len(whole) + 5  # the file is whole again


@pytest.mark.parametrize("how", ["gone", "truncated", "other model", "other version", "nonsense"])
def test_a_file_of_no_use_costs_nothing_but_computing(tmp_path: Path, how: str) -> None:
    first = Durable(tmp_path)
    first.ask(LONG)
    first.end()
    (path,) = files(tmp_path)
    before = path.read_bytes()
    identity = IDENTITY
    if how == "truncated":
        path.write_bytes(before[: len(before) // 2])
    elif how == "nonsense":
        path.write_bytes(bytes(len(before)))
    elif how == "other model":
        identity = Identity(**IDENTITY.to_json() | {"model": "another"})  # type: ignore[arg-type]
    second = Durable(tmp_path, identity=identity)
    if how == "gone":
        path.unlink()
    elif how == "other version":
        path.write_bytes(b"PgdRunKV" + bytes(len(before)))
    assert second.cached(LONG + "?") == 0


def test_what_is_faster_to_compute_is_not_restored(tmp_path: Path) -> None:
    first = Durable(tmp_path)
    first.ask(LONG)
    first.end()
    second = Durable(tmp_path)
    second.keeper.speeds.read, second.keeper.speeds.prompt = 1.0, 1e6
    assert second.cached(LONG + "?") == 0
    assert second.keeper.stats.skipped == 1
    second.forget_all()
    second.keeper.speeds.prompt = 0.01
    assert second.cached(LONG + "?") > 30


def test_a_request_can_be_cancelled_while_its_conversation_comes(tmp_path: Path) -> None:
    first = Durable(tmp_path)
    first.ask(LONG)
    first.end()
    second = Durable(tmp_path)
    events = second.submit(LONG + "?")
    assert second.scheduler.idle and second.keeper.busy
    second.engine._carry_out(Cancel(RequestId(0)))
    assert reason(events) is FinishReason.CANCELLED
    second.pump()
    assert second.scheduler.idle
    assert second.cached(LONG + "?") > 30  # it came all the same


def test_two_that_wait_for_the_same(tmp_path: Path) -> None:
    first = Durable(tmp_path)
    first.ask(LONG)
    first.end()
    second = Durable(tmp_path)
    events = [second.submit(LONG + "?"), second.submit(LONG + "!")]
    second.finish()
    assert [text(e) for e in events] == [expected(LONG + "?"), expected(LONG + "!")]
    assert second.keeper.stats.restored == 1
    assert max(end(e).usage.cached_tokens for e in events) == 31


@pytest.mark.parametrize(("device", "host"), [(6, 0), (4, 2), (4, 8)])
@pytest.mark.parametrize("can_rewind", [True, False])
def test_little_memory(tmp_path: Path, device: int, host: int, can_rewind: bool) -> None:
    """Saves and restores where there is hardly room for one conversation: answers are right, whatever is kept."""
    prompts = ["abcdefghijklm", "nopqrstuvwxyz", "abcdefghijklmNOP", "0123456789"]
    for _ in range(3):
        engine = Durable(tmp_path, device=device, host=host, can_rewind=can_rewind)
        for prompt in prompts:
            engine.cached(prompt, 4)
        engine.end()
        assert engine.used()[0] <= device


@pytest.mark.parametrize("seed", range(8))
def test_copies_that_are_late(tmp_path: Path, seed: int) -> None:
    """The store copies and clears frames when it likes, and nobody reads or writes one before."""
    for can_rewind in (True, False):
        root = tmp_path / str(can_rewind)
        for _ in range(2):
            engine = Durable(root, device=8, host=6, can_rewind=can_rewind, seed=seed)
            for prompt in ("abcdefghijklmnopq", "ABCDEFGHIJKLMNOPQ", "abcdefghijklmnopq and so", "xyzxyzxyzxyzxyz"):
                engine.cached(prompt, 5)
            engine.end()


def test_named(tmp_path: Path) -> None:
    """A text, and the conversation that belongs to it; saved again where memory has less of it than the file."""
    engine = Durable(tmp_path)
    engine.keeper.automatic = False
    answer = engine.ask(LONG)
    told: list[object] = []
    save = functools.partial(engine.keeper.save, "one", list((LONG + answer).encode()))
    save("note 1", told.append)
    engine.pump()
    assert told == [None] and not files(tmp_path)
    path = tmp_path / "named" / "one.kv"
    with Session(path, IDENTITY) as session:
        assert (session.meta.note, session.meta.n_tokens) == ("note 1", len(LONG) + 5)
    engine.forget_all()
    save("note 2", told.append)
    engine.pump()
    with Session(path, IDENTITY) as session:
        assert (session.meta.note, session.meta.n_tokens) == ("note 2", len(LONG) + 5)
        assert session.check().whole
        index = session.index
    again = Durable(tmp_path)
    again.keeper.automatic = False
    again.keeper.register(("named", "one"), index.tokens.astype(int).tolist(), (), index.mark)
    assert again.cached(LONG + answer + "?") == len(LONG) + 5
    assert told == [None, None]


def test_a_named_session_that_cannot_be_saved_says_so(tmp_path: Path) -> None:
    class Full(Disk):
        def write(self, fd: int, data: memoryview, offset: int) -> None:
            raise OSError(28, "No space left on device")

    engine = Durable(tmp_path, disk=Full())
    engine.ask(LONG)
    told: list[Callable[..., object]] = []
    engine.keeper.save("one", list(LONG.encode()), "", told.append)  # type: ignore[arg-type]
    engine.pump()
    assert "the disk is full" in str(told[0])
    assert not list((tmp_path / "named").iterdir())
    assert engine.cached(LONG + "?") == 31


class Small(Disk):
    """Files can have so many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most

    def truncate(self, fd: int, n_bytes: int) -> None:
        if n_bytes > self.most:
            raise OSError(28, "No space left on device")
        super().truncate(fd, n_bytes)


def test_what_was_said_is_saved_where_there_is_no_room_for_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Small(4 * 4096)
    engine = Durable(tmp_path, disk=disk)
    engine.keeper.automatic = False
    told: list[object] = []
    path = tmp_path / "named" / "one.kv"

    def saved(prompt: str, note: str) -> int:
        answer = engine.ask(prompt)
        caplog.clear()
        engine.keeper.save("one", list((prompt + answer).encode()), note, told.append)
        engine.pump()
        with Session(path, IDENTITY) as session:
            assert session.meta.note == note and session.check().whole
            return session.meta.n_tokens

    assert saved(LONG, "note 1") == 0
    assert "the disk is full; what was said is kept, and 37 tokens will be read again" in caplog.text
    disk.most = 1 << 20
    n = saved(LONG, "note 2")
    assert n > len(LONG) and "read again" not in caplog.text
    disk.most = path.stat().st_size + 4096
    assert saved(LONG + "and on and on", "note 3") == len(LONG), "what is the same in the file stays"
    assert "the disk is full; what was said is kept" in caplog.text
    assert told == [None, None, None]


def test_a_session_that_cannot_be_written_at_all_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Durable(tmp_path, disk=Small(0))
    engine.keeper.automatic = False
    answer = engine.ask(LONG)
    told: list[Exception] = []
    engine.keeper.save("one", list((LONG + answer).encode()), "note", told.append)  # type: ignore[arg-type]
    engine.pump()
    assert [e.hint for e in told] == ["free some space; what was there before still is"]  # type: ignore[attr-defined]
    assert engine.keeper.stats.failed == 1 and not caplog.text
    assert not list((tmp_path / "named").iterdir())


def test_what_does_not_fit_the_device_begins_on_the_host(tmp_path: Path) -> None:
    """A conversation of six pages, and five frames: as it will lie when it goes on, so that little is moved."""
    spill = SpillSettings(mode="staged", batch=1)
    first = Durable(tmp_path, device=6, host=12, geometry=STAGED, spill=spill, identity=MANY)
    answer = first.ask(LONG)
    first.end()
    second = Durable(tmp_path, device=6, host=12, geometry=STAGED, spill=spill, identity=MANY)
    events = second.submit(LONG + answer + "!")
    second.pump()
    (conversation,) = second.slots.resting.index
    pages = second.manager.pages(conversation)
    on_device = second.manager.table.device[pages] >= 0
    assert not on_device[:2].any() and on_device[2:].all()
    second.finish()
    assert text(events) == expected(LONG + answer + "!")
    assert end(events).usage.cached_tokens == len(LONG + answer) - 1


def test_what_was_asked_for_before_the_end_is_saved(tmp_path: Path) -> None:
    engine = Durable(tmp_path)
    engine.keeper.automatic = False
    answer = engine.ask(LONG)
    told: list[object] = []
    tokens = list((LONG + answer).encode())
    engine.engine.inbox.put(Call(lambda: engine.keeper.save("one", tokens, "note", told.append)))
    engine.end()
    assert told == [None]
    with Session(tmp_path / "named" / "one.kv", IDENTITY) as session:
        assert session.meta.n_tokens == len(LONG) + 5


def test_a_call_that_fails_ends_nothing(tmp_path: Path) -> None:
    engine = Durable(tmp_path)
    engine.engine.inbox.put(Call(lambda: 1 / 0))
    engine.pump()
    assert engine.cached(LONG) == 0


@pytest.mark.parametrize("can_rewind", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_anything_at_any_time(tmp_path: Path, seed: int, can_rewind: bool) -> None:
    """Requests, cancels, named saves, forgetting and restarts, while saves and restores go on: answers are right."""
    rng = random.Random(seed)
    heads = ["abcdefghijklmno", "abcdefghijkXYZ01234", "0123456789abcdefgh"]
    device, host, disk = rng.choice([(24, 12, 0), (9, 4, 0), (9, 9, 6), (12, 0, 0)])
    for _ in range(3):
        engine = Durable(tmp_path, device=device, host=host, disk=disk, can_rewind=can_rewind, seed=seed)
        asked: list[tuple[str, int, list[Event]]] = []
        told: list[object] = []
        for _ in range(60):
            what = rng.random()
            if what < 0.25 and sum(not ended(e) for _, _, e in asked) < 4:
                done = [prompt + text(e) for prompt, _, e in asked if ended(e)]
                prompt = rng.choice([*heads, *done[-4:]])[: rng.randrange(8, 36)] + rng.choice(["", "!", " so"])
                n = rng.randrange(1, 5)
                asked.append((prompt, n, engine.submit(prompt, n)))
            elif what < 0.3 and asked:
                engine.engine._carry_out(Cancel(RequestId(rng.randrange(len(asked)))))
            elif what < 0.35:
                engine.keeper.save(rng.choice("xy"), list(rng.choice(heads).encode()), "note", told.append)
            elif what < 0.38:
                engine.forget_all()
            elif what < 0.7:
                with_calls(engine)
            else:
                engine.engine.step()
            engine.check()
        engine.finish()
        for prompt, n, events in asked:
            if reason(events) is FinishReason.LENGTH:
                assert text(events) == expected(prompt, n)
            else:
                assert reason(events) in (FinishReason.CANCELLED, FinishReason.CONTEXT)
        engine.end()
        engine.forget_all()
        assert engine.used() == (0, 0)


def ended(events: list[Event]) -> bool:
    return bool(events) and isinstance(events[-1], Finished)


def test_what_is_beyond_a_lower_budget_leaves_at_the_start(tmp_path: Path) -> None:
    first = Durable(tmp_path)
    for prompt in (LONG, LONG[::-1]):
        first.cached(prompt)
    first.end()
    assert len(files(tmp_path)) == 2
    budget = max(f.stat().st_size for f in files(tmp_path))
    second = Durable(tmp_path, budget=budget)
    assert len(files(tmp_path)) == 1 and len(second.keeper.stored) == 1


def test_a_full_disk_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Disk):
        def write(self, fd: int, data: memoryview, offset: int) -> None:
            raise OSError(28, "No space left on device")

    engine = Durable(tmp_path, disk=Full())
    for prompt in (LONG, LONG[::-1], "something else that is long"):
        engine.cached(prompt)
    engine.pump()
    said = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert engine.keeper.stats.failed == 3
    assert len(said) == 1 and "conversations are not kept on disk" in said[0] and "the disk is full" in said[0]


@pytest.mark.parametrize("can_rewind", [True, False])
def test_less_of_a_session_is_saved_without_its_pages_in_memory(
    tmp_path: Path, can_rewind: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By writing the file anew from itself; damage is not copied."""
    engine = Durable(tmp_path, can_rewind=can_rewind, interval=4)
    engine.keeper.automatic = False
    answer = engine.ask(LONG + "the lazy dog")
    told: list[object] = []
    whole = LONG + "the lazy dog" + answer
    path = tmp_path / "named" / "one.kv"
    engine.keeper.save("one", list(whole.encode()), "1", told.append)
    engine.pump()
    before = path.stat().st_size
    engine.forget_all()

    def save(n: int, note: str) -> None:
        with Session(path, IDENTITY):  # somebody reads it, so that it is not appended to
            engine.keeper.save("one", list(whole[:n].encode()), note, told.append)
            engine.pump()

    save(13, "2")
    assert told == [None, None] and path.stat().st_size < before
    with Session(path, IDENTITY) as session:
        assert (session.meta.note, session.meta.n_tokens, session.check().whole) == ("2", 13, True)
        assert bool(session.meta.snapshots) == (not can_rewind)
    damage(path, 0)
    save(9, "3")
    assert told[2] is None and "one: page 0 of one.kv is damaged; what was said is kept" in caplog.text
    with Session(path, IDENTITY) as session:
        assert (session.meta.note, session.meta.n_tokens) == ("3", 0)
    assert engine.cached(whole[:13] + "?") == 0


def test_a_file_is_not_written_for_less_than_a_page(tmp_path: Path) -> None:
    """Until the end."""
    engine = Durable(tmp_path)
    history = LONG + engine.ask(LONG)
    engine.pump()
    for _ in range(2):
        history += "." + engine.ask(history + ".", 1)
        engine.pump()
    assert engine.keeper.stats.saved == 1
    history += "." + engine.ask(history + ".", 1)
    engine.pump()
    assert engine.keeper.stats.saved == 2
    history += "." + engine.ask(history + ".", 1)
    engine.pump()
    assert engine.keeper.stats.saved == 2
    engine.end()
    assert engine.keeper.stats.saved == 3
    with Session(files(tmp_path)[0]) as session:
        assert session.meta.n_tokens == len(history) - 1


def test_what_left_the_disk_is_saved_again(tmp_path: Path) -> None:
    engine = Durable(tmp_path)
    answer = engine.ask(LONG)
    engine.pump()
    files(tmp_path)[0].unlink()
    assert engine.cached(LONG + answer, 1) == len(LONG) + 5  # from memory
    engine.end()
    assert len(files(tmp_path)) == 1
    engine.forget_all()
    files(tmp_path)[0].unlink()
    assert not engine.keeper.awaits(99, list(LONG.encode()), lambda: None)
