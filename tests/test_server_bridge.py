"""Events come into the event loop once a step, however many answers have some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pagedrun.request import TextDelta
from pagedrun.server.bridge import Bridge, Wakes


def delta(text: str) -> TextDelta:
    return TextDelta(text, (), ())


def test_the_loop_is_woken_once_for_all() -> None:
    async def run() -> None:
        loop, woken = asyncio.get_running_loop(), []
        call = loop.call_soon_threadsafe

        def counted(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
            woken.append(work)
            return call(work, *args, **more)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        wakes, accounted = Wakes(), []
        bridges = [Bridge(lambda index, event: accounted.append(index), wakes) for _ in range(3)]
        for text in ("a", "b"):
            for index, bridge in enumerate(bridges):
                bridge.put(index, delta(text))
        assert not woken  # the engine is between two steps
        wakes.tell()
        wakes.tell()
        assert len(woken) == 1
        taken = [await bridge.take(10) for bridge in bridges]
        assert taken == [[(i, delta("a")), (i, delta("b"))] for i in range(3)]
        assert sorted(accounted) == [0, 0, 1, 1, 2, 2]
        bridges[1].put(1, delta("c"))
        wakes.tell()
        assert await bridges[1].take(10) == [(1, delta("c"))]
        assert await bridges[0].take(0.001) == []

    asyncio.run(run())


def test_a_loop_that_has_ended_is_no_error() -> None:
    async def run() -> tuple[Wakes, Bridge]:
        wakes = Wakes()
        return wakes, Bridge(lambda index, event: None, wakes)

    wakes, bridge = asyncio.run(run())
    bridge.put(0, delta("a"))
    wakes.tell()
