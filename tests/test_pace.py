"""How many blocks copy: a machine of known rates, whose attention waits when they are too few."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pagedrun.slots.pace import BLOCKS, EVERY, LITTLE, MUCH, Pace

GB = 10**9


@dataclass
class Machine:
    """Its blocks copy `each` bytes a second, up to 50 GB/s; a step takes 20 ms beside waiting."""

    each: float
    cold: int = 0
    blocks: int = 16
    chosen: list[int] = field(default_factory=list)

    def choose(self, blocks: int) -> None:
        self.blocks = blocks
        self.chosen.append(blocks)

    @property
    def share(self) -> float:
        """Of its time that attention waits."""
        wait = max(self.cold / min(self.each * self.blocks, 50 * GB) - 0.02, 0.0)
        return wait / (0.02 + wait)

    def pace(self, **more: float) -> Pace:
        return Pace(lambda: self.cold, lambda: 0.0, self.choose, **({"rate_of_4": 0.0, "rate": 50 * GB} | more))


def settle(machine: Machine, pace: Pace, looks: int = 20) -> None:
    """So many looks at the machine, with the share of waiting that its blocks lead to."""
    for _ in range(looks):
        pace.adjust(machine.share, machine.cold)
        pace._tell(machine.cold)


@pytest.mark.parametrize("cold", [GB // 10, GB // 4, GB // 2, GB * 9 // 10])
def test_blocks_are_as_few_as_nobody_waits_for(cold: int) -> None:
    machine = Machine(each=5 * GB, cold=cold)
    pace = machine.pace()
    settle(machine, pace)
    found = set()
    for _ in range(6):  # it may go to and fro between two neighbours
        settle(machine, pace, 1)
        found.add(machine.blocks)
        assert machine.share < 0.35
    fewer = [b for b in BLOCKS if cold / (5 * GB * b) <= 0.02]
    best = min(fewer, default=16)
    assert all(abs(BLOCKS.index(b) - BLOCKS.index(best)) <= 1 for b in found)


def test_more_than_the_bus_can_do_takes_all_blocks() -> None:
    machine = Machine(each=5 * GB, cold=3 * GB)
    settle(machine, machine.pace())
    assert machine.blocks in BLOCKS[-2:]


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_no_more_blocks_copy_than_may(most: int) -> None:
    machine = Machine(each=5 * GB, cold=3 * GB)
    pace = machine.pace(most=most)
    settle(machine, pace)
    assert machine.blocks == most
    machine.cold = GB // 50
    settle(machine, pace, 40)
    assert machine.blocks == min(most, 2)  # nobody waits for the fewest either


def test_the_first_guess_is_by_what_was_measured() -> None:
    machine = Machine(each=5 * GB, cold=GB // 4)
    machine.pace(rate_of_4=20 * GB, step_s=0.02)._tell(machine.cold)
    assert machine.chosen == [3]  # 0.25 GB in 20 ms are 12.5 GB/s, and a little more


def test_it_looks_now_and_then_only_and_starts_anew_when_nothing_is_cold() -> None:
    machine = Machine(each=5 * GB, cold=GB // 4)
    asked: list[int] = []
    pace = Pace(lambda: machine.cold, lambda: float(asked.append(1) or 0), machine.choose, 20 * GB, 50 * GB)
    for _ in range(4 * EVERY):
        pace()
    assert len(asked) == 4 and machine.chosen == [16, 12, 8, 6]  # nobody waited; the first look only begins
    machine.cold = 0
    for _ in range(EVERY):
        pace()
    machine.cold = GB // 4
    for _ in range(EVERY):
        pace()
    assert machine.chosen[-1] == 12


def test_prompts_say_nothing_of_the_steps_that_come_then() -> None:
    machine = Machine(each=5 * GB, cold=GB // 4)
    waited = [0.0]
    pace = Pace(lambda: machine.cold, lambda: waited.pop() if waited else 0.0, machine.choose, 20 * GB, 50 * GB, 0.02)
    pace(decoding=True)
    assert machine.chosen == [3]
    for _ in range(4 * EVERY):
        pace(decoding=False)
    waited += [1e9]  # while prompts were read
    pace(decoding=True)
    assert machine.chosen == [3] and not waited
    for _ in range(EVERY - 1):
        pace(decoding=True)
    assert machine.chosen == [3]
    pace(decoding=True)  # now it was seen that nobody waits
    assert machine.chosen == [3, 2]


def test_the_marks_leave_room_between() -> None:
    assert 0 < LITTLE < MUCH < 0.2
