"""swap_space is all that conversations take in RAM: pages, snapshots, the index, staging; and /proc says the same."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.cli.pages import report, rows
from pagedrun.config import EngineConfig
from pagedrun.kv import Account, Budget, ConversationId, PrefixCache, SwapStats
from pagedrun.load import load_service
from pagedrun.request import Finished, GenerationRequest
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from tests.own_memory import settled_memory
from tests.paged_fakes import PagedEngine

MIB = 1 << 20


@pytest.fixture
def all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a budget is."""
    monkeypatch.setattr("pagedrun.kv.budget.LEAST", 1)


def test_an_account_pays_for_what_it_takes() -> None:
    budget = Budget(4 * MIB)
    account = Account(budget)
    account.resize(3 * MIB)
    account.resize(MIB)
    assert (account.paid, budget.used) == (MIB, MIB)
    account.resize(5 * MIB)
    assert not account.settle()
    assert (account.paid, account.nbytes, budget.left) == (4 * MIB, 5 * MIB, 0)
    account.resize(2 * MIB)
    assert account.settle() and budget.used == 2 * MIB


def test_others_may_give_way_to_it() -> None:
    budget = Budget(2 * MIB, used=2 * MIB)
    account = Account(budget, budget.give_back)
    account.resize(MIB)
    assert account.settle() and (account.paid, budget.used) == (MIB, 2 * MIB)


def test_where_nothing_may_be_in_ram_the_index_is_not_refused() -> None:
    account = Account(Budget(0))
    account.resize(5000)
    assert account.settle() and account.paid == 0


def test_the_prefix_index_says_how_large_it_is() -> None:
    account = Account(Budget(10 * MIB))
    index, rng = PrefixCache(account), random.Random(1)
    for number in range(50):
        index.add(ConversationId(number), [rng.randrange(4) for _ in range(rng.randrange(1, 60))])
        assert account.paid == index.nbytes
    for number in rng.sample(range(50), 50):
        index.remove(ConversationId(number))
        assert account.paid == index.nbytes
    assert account.paid == 0


@pytest.mark.usefixtures("all_counts")
@pytest.mark.parametrize("can_rewind", [True, False])
def test_conversations_are_forgotten_when_the_index_has_no_room(can_rewind: bool) -> None:
    """Of 48 bytes a frame: the index of some conversations is larger than all else."""
    paged = PagedEngine(device=60, host=100, can_rewind=can_rewind)
    answers = [paged.ask(f"conversation {i}: hello there") for i in range(12)]
    swap = paged.manager.stats().swap
    assert 0 < len(paged.resting()) < 12
    assert swap.used <= swap.limit == 100 * 48
    assert swap.index == paged.slots.resting.index.nbytes > 0
    assert swap.used == swap.pages + swap.ahead + swap.snapshots + swap.index + swap.staging
    last = "conversation 11: hello there"
    before = paged.runner.computed
    paged.ask(last + answers[11] + " more")  # who came last is still there
    assert paged.runner.computed - before < len(last)
    paged.forget_all()
    swap = paged.manager.stats().swap
    assert (swap.index, swap.snapshots) == (0, 0)


@pytest.mark.usefixtures("all_counts")
def test_one_that_the_index_has_no_room_for_does_not_rest() -> None:
    paged = PagedEngine(device=20, host=10)
    for i in range(3):
        paged.ask(f"conversation {i}")
        assert paged.resting() == [] and paged.used() == (0, 0)


@pytest.mark.usefixtures("all_counts")
def test_pages_wanted_in_ram_win_over_old_conversations() -> None:
    """One conversation that needs all of both tiers: everybody who rests is forgotten, and it still ends."""
    paged = PagedEngine(device=4, host=60)
    for i in range(3):
        paged.ask(f"{i} short")
    paged.ask("x" * 20, 12)
    swap = paged.manager.stats().swap
    assert swap.used <= swap.limit


@pytest.mark.usefixtures("all_counts")
def test_a_page_on_its_way_to_the_disk_is_paid_for() -> None:
    assert PagedEngine(device=10, host=100, disk=5).manager.stats().swap.staging == 48
    assert PagedEngine(device=10, host=100).manager.stats().swap == SwapStats(limit=4800)


def test_people_and_programs_are_told() -> None:
    kv = PagedEngine(device=10).manager.stats()
    swap = SwapStats(limit=8 * MIB, used=6 * MIB, pages=4 * MIB, snapshots=MIB, index=MIB)
    assert "  swap space" not in dict(rows(kv, on_gpu=True))
    kv = replace(kv, swap=swap)
    assert dict(rows(kv, on_gpu=True))["  swap space"] == (
        "6.0 MiB of 8.0 MiB: pages 4.0 MiB, snapshots 1.0 MiB, index 1.0 MiB"
    )
    found = report(kv)
    assert found is not None
    parts = found["swap"]
    assert parts.pop("limit_bytes") == 8 * MIB
    assert parts.pop("bytes") == sum(parts.values()) == 6 * MIB


def ask(service: Service, prompt: tuple[int, ...]) -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for event in service.submit(GenerationRequest(prompt=prompt, sampling=sampling, max_tokens=2)):
        assert not isinstance(event, Finished) or event.error is None, event


@pytest.mark.real
@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_the_process_grows_by_what_is_said_to_be_taken(model: str, request: pytest.FixtureRequest) -> None:
    """By no more than 3 MiB and 5% beyond what pages on the device, which is RAM here, and swap_space grow by."""
    path: Path = request.getfixturevalue(model)
    rng = random.Random(1)
    length, settings = 160, {"max_seq_len": 512, "page_size": 32, "gpu_layers": 0, "snapshot_interval": 16}
    with load_service(path, EngineConfig(**settings)) as service:
        ask(service, tuple(rng.randrange(100, 30_000) for _ in range(length)))
        kv = service.stats.kv
        assert kv is not None
    memory = kv.buffer_bytes + 2 * kv.device.n_bytes
    swap = max(5 * kv.device.n_bytes + 40 * kv.snapshot_bytes, 2 * MIB)
    config = EngineConfig(**settings, gpu_memory=memory, swap_space=swap)
    with load_service(path, config) as service:
        ask(service, tuple(range(100, 100 + length)))
        seen = []
        for n in (0, 12):
            for _ in range(n):
                ask(service, tuple(rng.randrange(100, 30_000) for _ in range(length)))
            kv = service.stats.kv
            assert kv is not None and kv.swap.used <= kv.swap.limit == swap
            seen.append((kv.device.n_bytes + kv.swap.used, settled_memory()))
    said, grown = (later - earlier for earlier, later in zip(*seen, strict=True))
    assert said > (8 * MIB if model == "smollm2" else MIB)
    assert said // 2 < grown < said + 3 * MIB + said // 20, (said, grown)  # what earlier tests left may go meanwhile
