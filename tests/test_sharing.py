"""What the next model may have beside those that are loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun import machine, sharing
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.memory import FreeMemory, Holds
from pagedrun.plan import rules
from pagedrun.planning import plan_model
from pagedrun.sharing import SharedMemory
from tests.plan_models import GIB, write_hollow

CARD = machine.Gpu(0, "a card", 24 * GIB, 24 * GIB, "86")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the machine has; tests change it."""
    found: dict[str, Any] = {"ram": 32 * GIB, "vram": 24 * GIB, "gpus": [CARD]}
    offload = SimpleNamespace(llama_supports_gpu_offload=lambda: True)
    monkeypatch.setattr(sharing, "load", lambda: SimpleNamespace(llama=offload))
    monkeypatch.setattr(machine, "gpus", lambda: found["gpus"])
    vram = lambda: found["vram"] if found["gpus"] else 0  # noqa: E731
    monkeypatch.setattr(machine, "free_memory", lambda gpus=None: FreeMemory(found["ram"], vram()))
    return found


def test_the_first_has_all_but_the_others_swap_space(free: dict[str, Any]) -> None:
    memory = SharedMemory(EngineConfig(swap_space=6 * GIB, disk_space=9 * GIB), 3)
    share = memory.share([])
    assert share is not None
    assert share.config == EngineConfig(swap_space=2 * GIB, disk_space=3 * GIB)
    assert share.free == FreeMemory(32 * GIB, 24 * GIB)
    assert not share.warm and share.cuda == rules.CUDA_CONTEXT


def test_cuda_counts_once(free: dict[str, Any]) -> None:
    """What is free is without it when it is there; a limit that somebody gave is with it."""
    for limit, cuda in ((0, 0), (12 * GIB, rules.CUDA_CONTEXT)):
        memory = SharedMemory(EngineConfig(gpu_memory=limit), 2)
        memory.share([])
        free["vram"] = 23 * GIB
        again = memory.share([])
        assert again is not None and again.warm and again.cuda == cuda


def test_the_next_has_what_is_left_of_the_gpu(free: dict[str, Any]) -> None:
    """Also of what the first has not taken yet: its pages."""
    memory = SharedMemory(EngineConfig(), 2)
    memory.share([])
    free["vram"] = 20 * GIB  # of the 10 that the first may take
    share = memory.share([Holds(vram=10 * GIB, ram=5 * GIB)])
    assert share is not None and share.warm
    assert share.config.gpu_memory == 24 * GIB - rules.VRAM_MARGIN - 10 * GIB
    assert share.free == FreeMemory(27 * GIB, 20 * GIB)


def test_gpu_memory_is_for_all_of_them(free: dict[str, Any]) -> None:
    memory = SharedMemory(EngineConfig(gpu_memory=12 * GIB), 3)
    memory.share([])
    held = [Holds(vram=5 * GIB), Holds(vram=4 * GIB)]
    share = memory.share(held)
    assert share is not None and share.config.gpu_memory == 3 * GIB
    assert memory.share([Holds(vram=12 * GIB)]) is None
    assert memory.share([*held, Holds()]) is None, "swap_space is divided by three"


def test_without_a_gpu_it_is_what_buffers_and_pages_take(free: dict[str, Any]) -> None:
    free["gpus"] = []
    memory = SharedMemory(EngineConfig(gpu_memory=4 * GIB), 2)
    memory.share([])
    share = memory.share([Holds(ram=10 * GIB, context=1 * GIB)])
    assert share is not None and share.config.gpu_memory == 3 * GIB and share.free.ram == 22 * GIB
    assert memory.share([Holds(ram=40 * GIB)]) is None
    unlimited = SharedMemory(EngineConfig(), 2)
    unlimited.share([])
    share = unlimited.share([Holds(ram=10 * GIB, context=5 * GIB)])
    assert share is not None and share.config.gpu_memory == 0, "half of what is left, as ever"


def test_what_is_mapped_and_not_counted_by_the_system_counts(free: dict[str, Any]) -> None:
    free["gpus"] = []
    memory = SharedMemory(EngineConfig(), 2)
    memory.share([])
    share = memory.share([Holds(ram=20 * GIB)])  # weights of a file: the system says that 32 are free still
    assert share is not None and share.free.ram == 12 * GIB
    free["ram"] = 3 * GIB  # others took some
    share = memory.share([Holds(ram=20 * GIB)])
    assert share is not None and share.free.ram == 3 * GIB


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dense 8B, of which llama.cpp is asked nothing."""
    monkeypatch.setattr(sharing, "plan_model", lambda facts, config, found, library: plan_model(facts, config, found))
    return write_hollow(tmp_path / "8b.gguf", dense=True)


def test_there_is_room_where_it_is_as_good_as_alone(free: dict[str, Any], small: Path) -> None:
    memory = SharedMemory(EngineConfig(max_seq_len=8192), 2)
    memory.share([])
    assert memory.fits(small, [Holds(vram=4 * GIB)])
    assert not memory.fits(small, [Holds(vram=22 * GIB)]), "its layers would be in RAM"
    assert not memory.fits(small, [Holds(ram=32 * GIB)])


def test_a_conversation_that_would_spill_much_more_has_no_room(free: dict[str, Any], small: Path) -> None:
    free["vram"], free["ram"] = 40 * GIB, 100 * GIB
    memory = SharedMemory(EngineConfig(max_seq_len=131_072, swap_space=60 * GIB), 2)
    memory.share([])
    assert memory.fits(small, [Holds(vram=12 * GIB)])
    assert not memory.fits(small, [Holds(vram=29 * GIB)]), "the layers fit, and few tokens beside them"


def test_what_would_not_fit_alone_makes_nobody_leave(free: dict[str, Any], small: Path) -> None:
    free["vram"], free["ram"] = 2 * GIB, 2 * GIB
    memory = SharedMemory(EngineConfig(), 2)
    memory.share([])
    with pytest.raises(NotEnoughMemoryError, match="it does not fit"):
        memory.fits(small, [Holds(ram=GIB)])


def test_without_a_gpu_too(free: dict[str, Any], small: Path) -> None:
    free["gpus"] = []
    memory = SharedMemory(EngineConfig(max_seq_len=4096), 2)
    memory.share([])
    assert memory.fits(small, [Holds(ram=6 * GIB)])
    assert not memory.fits(small, [Holds(ram=30 * GIB)])
