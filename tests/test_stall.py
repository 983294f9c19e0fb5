"""How many tokens of a prompt a step reads, by what steps took."""

from __future__ import annotations

import pytest

from pagedrun.scheduling.stall import AIM, FIRST, LEAST, Chunks
from pagedrun.step import Chunk, Slot, StepPlan


def plan(n: int, answers: int = 1) -> StepPlan:
    """A step of so many tokens of a prompt, and some answers."""
    chunks = [Chunk(Slot(i), 5, (1,), True) for i in range(answers)]
    return StepPlan((*chunks, *([Chunk(Slot(answers), 0, (1,) * n, False)] if n else [])))


def settled(*, fixed_s: float, token_s: float, max_stall: float = 0.1, most: int = 2048) -> Chunks:
    """After some steps, by turns of answers and with a chunk."""
    chunks = Chunks(0, most, max_stall)
    chunks.took(plan(most, 0), fixed_s + most * token_s)
    for _ in range(40):
        chunks.took(plan(0), fixed_s)
        chunks.took(plan(chunks.size), fixed_s + chunks.size * token_s)
    return chunks


def test_a_chunk_that_was_asked_for_stays() -> None:
    chunks = Chunks(100, 2048, 0.1)
    chunks.took(plan(100), 50.0)
    assert chunks.size == 100
    assert Chunks(100, 64, 0.1).size == 64


@pytest.mark.parametrize("token_s", [0.00005, 0.0001, 0.0005, 0.001])
def test_a_step_ends_within_the_stall(token_s: float) -> None:
    chunks = settled(fixed_s=0.02, token_s=token_s)
    for_reading = AIM * 0.1 - 0.02
    assert for_reading - LEAST * token_s <= chunks.size * token_s <= for_reading * 1.01


def test_where_all_is_too_slow_a_little_is_read() -> None:
    assert settled(fixed_s=0.01, token_s=0.1).size == LEAST


def test_a_step_reads_no_more_than_it_can() -> None:
    assert settled(fixed_s=0.001, token_s=1e-6).size == 2048


@pytest.mark.parametrize("before", [(), (2048, 1024), (256,), (32, 32)])
def test_where_the_fixed_part_is_most_of_it_smaller_chunks_would_not_help(before: tuple[int, ...]) -> None:
    """Experts are copied for every chunk: one of 32 tokens takes 0.5 s, and one of 1,024 twice that."""
    chunks = Chunks(0, 2048, 0.1)
    for n in before:
        chunks.took(plan(n, 0), 0.5 + n * 0.0005)
    for _ in range(40):
        chunks.took(plan(0), 0.03)
        chunks.took(plan(chunks.size), 0.5 + chunks.size * 0.0005)
    assert 900 <= chunks.size <= 1024


def test_it_follows_as_a_conversation_grows() -> None:
    chunks = settled(fixed_s=0.01, token_s=0.0001)
    before = chunks.size
    for _ in range(60):
        chunks.took(plan(chunks.size), 0.01 + chunks.size * 0.0004)
    assert 0.8 * before / 4 <= chunks.size <= 1.2 * before / 4


def test_until_something_is_known() -> None:
    chunks = Chunks(0, 2048, 0.1)
    chunks.took(plan(0), 0.01)
    assert chunks.size == FIRST
    chunks.took(plan(FIRST), 1e-4)
    assert chunks.size == 2 * FIRST  # no leaps
