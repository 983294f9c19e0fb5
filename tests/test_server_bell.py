"""The bell that wakes event loops for the engine's thread."""

from __future__ import annotations

import asyncio
import threading

from pagedrun.server.bell import Bell


def test_what_is_rung_for_is_done_in_its_loop_and_in_order() -> None:
    bell, heard = Bell(), []

    async def listens() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def hear(n: int) -> None:
            assert asyncio.get_running_loop() is loop
            heard.append(n)
            if n == 99:
                done.set()

        def ring() -> None:
            for n in range(100):
                bell.ring(loop, lambda n=n: hear(n))  # type: ignore[misc]

        ringing = threading.Thread(target=ring)
        ringing.start()
        await asyncio.wait_for(done.wait(), 10)
        ringing.join()

    asyncio.run(listens())
    bell.close()
    assert heard == list(range(100))


def test_who_rings_does_not_wake_the_loop() -> None:
    """A system call, for which Python's lock is given up."""
    woken_by: list[str] = []

    class Loop:
        def call_soon_threadsafe(self, work: object) -> None:
            woken_by.append(threading.current_thread().name)

    bell = Bell()
    bell.ring(Loop(), lambda: None)  # type: ignore[arg-type]
    bell.close()
    assert woken_by == ["pagedrun-bell"]


def test_a_loop_that_has_ended_is_not_missed() -> None:
    bell, heard = Bell(), threading.Event()
    ended = asyncio.new_event_loop()
    ended.close()

    async def listens() -> None:
        bell.ring(ended, lambda: None)
        bell.ring(asyncio.get_running_loop(), heard.set)
        while not heard.is_set():
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(listens(), 10))
    bell.close()


def test_closing_passes_on_what_was_rung_for() -> None:
    heard: list[int] = []

    async def listens() -> None:
        bell, loop = Bell(), asyncio.get_running_loop()
        for n in range(100):
            bell.ring(loop, lambda n=n: heard.append(n))  # type: ignore[misc]
        bell.close()
        assert "pagedrun-bell" not in [thread.name for thread in threading.enumerate()]
        await asyncio.sleep(0)
        assert heard == list(range(100))

    asyncio.run(listens())
