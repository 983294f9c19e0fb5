"""The OpenAPI description, and requests that schemathesis makes from it: none is a defect."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.server_fakes import fake_server

schemathesis = pytest.importorskip("schemathesis")


def test_requests_made_from_the_description() -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    with fake_server("Hi") as fake, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # schemathesis' own
        schema = schemathesis.openapi.from_dict(fake.call("GET", "/openapi.json").json())
        operations = [result.ok() for result in schema.get_all_operations()]
        assert {"/v1/chat/completions", "/v1/completions", "/v1/messages"} <= {o.path for o in operations}
        modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
        strategies = [o.as_strategy(generation_mode=mode) for o in operations for mode in modes if o.body]
        for strategy in strategies:

            @seed(7)
            @settings(max_examples=4, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(strategy)
            def one(case: Any) -> None:
                more: dict[str, Any] = {}
                if not isinstance(case.body, type(schemathesis.core.NOT_SET)):
                    more = {"content": case.body} if isinstance(case.body, bytes) else {"json": case.body}
                answer = fake.call(case.method, case.formatted_path, **more)
                assert answer.status_code < 500, (case.body, answer.text)

            one()
        assert fake.chat().status_code == 200
