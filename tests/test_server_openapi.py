"""The OpenAPI description, and requests that schemathesis makes from it: none is a defect."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from pagedrun.server.docs import _MORE
from tests.server_fakes import CHAT, Fake, fake_server

schemathesis = pytest.importorskip("schemathesis")


def test_requests_made_from_the_description() -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    with fake_server("Hi") as fake, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # schemathesis' own
        schema = schemathesis.openapi.from_dict(fake.call("GET", "/openapi.json").json())
        operations = [result.ok() for result in schema.get_all_operations()]
        assert {"/v1/chat/completions", "/v1/completions", "/v1/messages"} <= {o.path for o in operations}
        right, wrong = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
        strategies = [o.as_strategy(generation_mode=right) for o in operations]
        strategies += [o.as_strategy(generation_mode=wrong) for o in operations if o.body]
        for strategy in strategies:

            @seed(7)
            @settings(max_examples=4, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(strategy)
            def one(case: Any) -> None:
                more: dict[str, Any] = {}
                if not isinstance(case.body, type(schemathesis.core.NOT_SET)):
                    more = {"content": case.body} if isinstance(case.body, bytes) else {"json": case.body}
                answer = fake.call(case.method, case.formatted_path, params=case.query, **more)
                assert answer.status_code < 500, (case.body, answer.text)
                assert str(answer.status_code) in case.operation.definition.raw["responses"], answer.text

            one()
        assert fake.chat().status_code == 200


def declared(fake: Fake, path: str, method: str = "post") -> dict[str, Any]:
    return fake.call("GET", "/openapi.json").json()["paths"][path][method]["responses"]


def test_errors_that_need_a_certain_server() -> None:
    with fake_server(keys=("k3y",), max_queue=0, max_body=1000) as fake:
        seen = []
        for headers, data in (({}, CHAT), ({"origin": "http://x"}, CHAT), ({}, {"x": "y" * 2000})):
            seen.append(fake.post("/v1/chat/completions", data, headers=headers).status_code)
            fake.headers = {"x-api-key": "k3y"}
        fake.serving.gate.stopping = True
        seen.append(fake.chat().status_code)
        fake.models.stopping = True
        seen += [fake.chat().status_code, fake.call("GET", "/ready").status_code]
        assert seen == [401, 403, 413, 503, 503, 503]
        assert {"401", "403", "413", "503"} <= declared(fake, "/v1/chat/completions").keys()
        assert declared(fake, "/ready", "get").keys() == {"200", "403", "503"}


@pytest.mark.parametrize("view", ["plan", "memory", "stats", "properties"])
def test_a_model_that_is_not_loaded(view: str) -> None:
    with fake_server() as fake:
        said = declared(fake, f"/v1/pagedrun/{view}", "get")
        assert "model_not_loaded" in said["404"]["description"] and said.keys() == {"200", "401", "403", "404"}
        answer = fake.call("GET", f"/v1/pagedrun/{view}?model=other")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert "model_not_loaded" in fake.call("GET", "/docs").text


def test_errors_have_the_shape_of_their_api() -> None:
    with fake_server() as fake:
        for path, name in (("/v1/messages", "AnthropicError"), ("/v1/responses", "Error")):
            answer = fake.post(path, {"nonsense": 1})
            said = declared(fake, path)[str(answer.status_code)]["content"]["application/json"]["schema"]
            schema = fake.call("GET", "/openapi.json").json()["components"]["schemas"][name]
            assert said == {"$ref": f"#/components/schemas/{name}"}
            assert set(schema["required"]) <= answer.json().keys()
            assert set(schema["properties"]["error"]["required"]) <= answer.json()["error"].keys()


def test_what_is_said_of_a_path_is_of_one_that_there_is() -> None:
    with fake_server() as fake:
        assert _MORE.keys() <= fake.call("GET", "/openapi.json").json()["paths"].keys()
