"""Saves and restores pay for what they copy from swap_space, and do without where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.kv import Account, Budget
from pagedrun.sessions import SessionFolder
from tests.test_durable import LONG, Durable, files

FRAME = 48  # bytes, of these engines
PIECES = 100
FOR_INDEX = 3000  # bytes: more than it takes, less than so many pieces


@pytest.fixture(autouse=True)
def hard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny budgets are as hard as large ones."""
    monkeypatch.setattr("pagedrun.kv.budget.LEAST", 1)
    monkeypatch.setattr("pagedrun.durable.buffers.PIECE", FRAME)
    monkeypatch.setattr("pagedrun.durable.buffers.LEAST", PIECES)
    monkeypatch.setattr("pagedrun.durable.keeper.GAIN", 4)


@pytest.mark.parametrize(
    ("wanted", "got", "left"), [(400, 400, 600), (1000, 1000, 0), (1800, 900, 100), (5000, 625, 375)]
)
def test_as_much_as_can_be_paid(wanted: int, got: int, left: int) -> None:
    account = Account(budget := Budget(1000))
    assert account.obtain(wanted, 100) == got
    assert budget.left == left
    account.give_back(got)
    assert budget.left == 1000 and account.nbytes == account.paid == 0


def test_less_than_is_needed_is_nothing() -> None:
    account = Account(budget := Budget(99))
    assert account.obtain(1000, 100) == 0
    assert budget.left == 99 and account.nbytes == account.paid == 0


@pytest.mark.parametrize("can_rewind", [True, False])
def test_they_are_paid_while_they_last(tmp_path: Path, can_rewind: bool) -> None:
    first = roomy(tmp_path, can_rewind=can_rewind)
    account = first.manager.staging
    before, most = account.paid, [0]

    def look(engine: Durable) -> None:
        account = engine.manager.staging
        most[0] = max(most[0], account.paid)
        assert account.paid == account.nbytes

    first.check = lambda: look(first)  # type: ignore[method-assign]
    answer = first.ask(LONG)
    first.pump()
    assert most[0] >= before + PIECES * FRAME  # by the save
    assert account.paid == before and len(files(tmp_path)) == 1
    second, most[0] = roomy(tmp_path, can_rewind=can_rewind), 0
    second.check = lambda: look(second)  # type: ignore[method-assign]
    assert second.cached(LONG + answer + "!?") > len(LONG) - 8
    second.pump()
    assert most[0] >= before + PIECES * FRAME and second.manager.staging.paid == before


def test_without_room_a_conversation_is_saved_later(tmp_path: Path) -> None:
    engine = roomy(tmp_path)
    held = take_room(engine)
    answer = engine.ask(LONG)
    engine.pump()
    assert not files(tmp_path) and engine.keeper.stats.failed == 0
    engine.manager.staging.give_back(held)
    engine.cached(LONG + answer)
    engine.pump()
    assert len(files(tmp_path)) == 1


def test_without_room_a_named_session_keeps_what_was_said(tmp_path: Path) -> None:
    engine = roomy(tmp_path)
    engine.keeper.automatic = False
    answer = engine.ask(LONG)
    take_room(engine)
    told: list[object] = []
    engine.keeper.save("a", list((LONG + answer).encode()), "what was said", told.append)
    engine.pump()
    assert told == [None]
    with SessionFolder(tmp_path, 0).open("a", engine.keeper.identity) as session:
        assert session.meta.note == "what was said" and session.meta.n_tokens == 0


def test_without_room_a_prompt_is_computed(tmp_path: Path) -> None:
    first = roomy(tmp_path)
    answer = first.ask(LONG)
    first.end()
    second = roomy(tmp_path)
    held = take_room(second)
    assert second.cached(LONG + answer) == 0
    second.forget_all()
    second.manager.staging.give_back(held)
    assert second.cached(LONG + answer) == len(LONG + answer) - 1


def test_who_begins_like_a_running_one_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    first = roomy(tmp_path)
    first.ask(LONG)
    first.end()
    second = roomy(tmp_path)
    second.submit(LONG + "a", 6)
    second.pump()
    second.turn()  # it runs, with what was restored
    assert second.keeper.stats.restored == 1
    second.submit(LONG + "b", 6)
    second.turn()
    assert not second.keeper.busy
    second.finish()
    assert second.keeper.stats.restored == 1


def roomy(root: Path, *, can_rewind: bool = True) -> Durable:
    """With room for pieces."""
    return Durable(root, can_rewind=can_rewind, host=400)


def take_room(engine: Durable) -> int:
    """Something else that is on its way has all but what the index needs; answers how many bytes."""
    staging = engine.manager.staging
    n = staging.budget.left - FOR_INDEX
    staging.resize(staging.nbytes + n)
    return n
