"""The end of a server: what is said while conversations are saved, and what a further signal does."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pagedrun.server import ending
from pagedrun.server.ending import Ending
from pagedrun.server.serving import Serving
from tests.server_fakes import run


class Saver:
    """Saves `unsaved` conversations until it is told that there is no time."""

    def __init__(self, unsaved: int) -> None:
        self.unsaved = unsaved
        self.alive = True
        self.ends: list[float] = []

    def end(self, saving_s: float = math.inf) -> None:
        self.ends.append(saving_s)
        if saving_s == 0 or not self.unsaved:
            self.alive = False


def serving(service: Saver) -> Any:
    made = object.__new__(Serving)
    made.service, made.prepare = service, ThreadPoolExecutor(1)  # type: ignore[assignment]
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_QUIET_S", 0.0)
    monkeypatch.setattr(ending, "_LOOK_S", 0.001)


def test_a_further_signal_skips_it() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        services = [Saver(2), Saver(1), Saver(0)]
        end = Ending([serving(s) for s in services], 60, said.append)
        waiting = asyncio.create_task(end.wait())
        while not said:
            await asyncio.sleep(0.001)
        assert not waiting.done() and [s.ends for s in services] == [[60], [60], [60]]
        end.skip()
        await waiting
        return said

    said = run(scenario())
    assert said[0] == "saving 3 conversations (Ctrl-C skips it)" and said[1].startswith("3 conversations may not be")


def test_what_is_fast_is_not_mentioned() -> None:
    said: list[str] = []
    run(Ending([serving(Saver(0))], 60, said.append).wait())
    assert said == []


def test_time_that_is_over_is_mentioned() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        service = Saver(1)
        end = Ending([serving(service)], 0.05, said.append)
        waiting = asyncio.create_task(end.wait())
        await asyncio.sleep(0.2)
        service.alive = False  # the engine has given up by itself
        await waiting
        return said

    assert run(scenario())[-1].startswith("1 conversation may not be saved")
