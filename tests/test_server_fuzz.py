"""Mutated requests against a live server with a real model: a sample of what scripts/fuzz_server.py does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server_fuzz_runs import fuzz

pytestmark = pytest.mark.real


@pytest.mark.parametrize("model", ["smollm2", "tiny_hybrid"])
def test_no_request_is_a_defect(model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = fuzz(request.getfixturevalue(model), tmp_path, 200, seed=77_000)
    assert not found.wrong
    assert not found.missing, "tests/server_mutations.py has no request for these routes"
    assert found.sent == 200 and found.served == 3
    assert sum(counter[200] for counter in found.statuses.values()) > 10
    assert sum(counter[400] for counter in found.statuses.values()) > 40
