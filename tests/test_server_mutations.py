"""Thousands of mutated requests: each is answered or refused, and nothing is left of any."""

from __future__ import annotations

import asyncio
import collections
from random import Random

import pytest

from tests.server_fakes import CHAT, Fake, eventually, fake_server, run
from tests.server_mutations import mutated

N = 600  # for each seed


@pytest.mark.parametrize("seed", range(5))
def test_no_request_is_a_defect(seed: int) -> None:
    async def scenario(fake: Fake) -> None:
        random, tasks = Random(seed), asyncio.all_tasks()
        statuses: collections.Counter[int] = collections.Counter()
        async with fake.client() as client:
            for _ in range(N):
                path, body = mutated(random)
                answer = await client.post(path, content=body)
                statuses[answer.status_code] += 1
                assert answer.status_code in (200, 400, 403, 404, 409), (path, body, answer.text)
                if answer.status_code != 200:
                    assert answer.json()["error"]["message"]
            assert statuses[200] > N / 20 and statuses[400] > N / 5
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await eventually(lambda: not fake.runner.requests and fake.serving.gate.inside == 0)
        assert not fake.serving.open_answers
        await eventually(lambda: asyncio.all_tasks() == tasks)

    with fake_server("Hi") as fake:
        run(scenario(fake))
