"""Far more conversations than there is memory for: a sample of what scripts/overload.py does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.overload_runs import Crowd, Run, judge, overload

pytestmark = pytest.mark.real

CROWD = Crowd(n=12, fit=2, slots=5, prompt=48, answer=6, debug=True)


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_all_end_in_turn_and_as_if_alone(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    run = overload(path, CROWD)
    assert not run.failed and [len(a) for a in run.answers] == [CROWD.answer] * CROWD.n
    assert sorted(run.admitted) == sorted(run.ended) == list(range(CROWD.n))
    assert run.overtaken <= CROWD.slots
    assert run.kv is not None and (run.pauses or run.kv.evictions)
    assert run.kv.device.n_bytes + run.kv.buffer_bytes <= run.budget
    verdict = judge(path, run.prompts, run.answers)
    assert verdict.good and verdict.differ > 0, verdict
    assert verdict.swapped > 0.8


def test_what_answers_are_judged_by_finds_fault(smollm2: Path) -> None:
    run = overload(smollm2, replace(CROWD, n=4, slots=2))
    assert judge(smollm2, run.prompts, run.answers).good
    wrong = [run.answers[0], run.answers[0], *run.answers[2:]]
    assert not judge(smollm2, run.prompts, wrong).good


def test_who_is_overtaken() -> None:
    run = Run([], admitted=[0, 3, 1, 4, 2], ended=list(range(5)))
    assert (run.overtaken, run.ended_after) == (2, 0)
    assert Run([]).overtaken == 0
