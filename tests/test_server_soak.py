"""Streams at once against a live server, of which some are left: a sample of what scripts/soak_server.py does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server_soak_runs import Crowd, Heard, Outcome, _compare, soak

pytestmark = pytest.mark.real


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_who_leaves_harms_nobody_and_leaves_nothing(model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(model)
    crowd = Crowd(answers=6, streams=10, slots=3, longest=192, fit=2, leave=0.5, threads=1, every=0.1)
    found = soak(path, tmp_path, crowd)
    assert not found.wrong
    assert len(found.heard) >= crowd.answers and found.left.total() and found.reasons["cancelled"]
    assert found.verdict is not None and found.verdict.good and found.verdict.tokens > 20
    assert found.resting["kv"]["pages"] and found.resting["kv"]["resting"]


def test_a_wrong_answer_is_found() -> None:
    class Watch:
        def records(self) -> list[dict[str, object]]:
            asked = "Tell me. [No. 1]"
            return [{"tasks": 1}, {"reason": "stop", "asked": asked, "text": "good", "tokens": [1], "prompt": [2]}]

    found = Outcome(heard={1: Heard("/v1/completions", "goo", True), 2: Heard("/v1/completions", "", True)})
    _compare(found, Watch())  # type: ignore[arg-type]
    assert len(found.wrong) == 2
    assert "'goo' was heard, 'good' computed" in found.wrong[0] and "request 2 has no answer" in found.wrong[1]
