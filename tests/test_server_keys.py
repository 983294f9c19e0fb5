"""Keys: how they are compared; and that neither they nor prompts or answers are in a log."""

from __future__ import annotations

import hmac
from pathlib import Path

import httpx
import pytest

from pagedrun.cli.serve import ServerOptions
from pagedrun.running import OWNER
from tests.cli_fakes import folders
from tests.live_server import live_server
from tests.server_fakes import fake_server

CHAT = {"messages": [{"role": "user", "content": "my-secret-question"}]}
WRONG = ("", "a", "the-right-kez", "the-right-key-and-more", "x" * 10_000, "é")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """All pairs that were compared in constant time."""
    pairs: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def noting(a: bytes, b: bytes) -> bool:
        pairs.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    return pairs


def test_each_key_is_compared_in_constant_time(compared: list[tuple[bytes, bytes]]) -> None:
    with fake_server(keys=("the-right-key", "another", "third")) as fake:
        for given in (*WRONG, "the-right-key", "third"):
            compared.clear()
            headers = {"authorization": f"Bearer {given}".encode()}
            answer = fake.call("GET", "/v1/models", headers=headers)
            assert answer.status_code == (200 if given in ("the-right-key", "third") else 401)
            assert len(compared) == 3, "it goes on after the right one"
            assert {len(one) for pair in compared for one in pair} == {32}, "a digest says nothing of a key's length"
            assert all(b"right" not in one for pair in compared for one in pair)


def test_the_owners_secret_is_compared_in_constant_time(compared: list[tuple[bytes, bytes]]) -> None:
    with fake_server(secret="only its user knows") as fake:
        for given in ("", "x", "only its user knowz"):
            compared.clear()
            answer = fake.post("/v1/pagedrun/sessions/use", {"name": "one"}, headers={OWNER: given})
            assert answer.status_code == 403 and len(compared) == 1


def test_it_is_for_this_machine_unless_told() -> None:
    assert ServerOptions().host == "127.0.0.1"


@pytest.mark.parametrize("more", [(), ("-v",)])
def test_logs_have_neither_keys_nor_texts(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = folders(tmp_path, monkeypatch)
    key, says = "my-secret-key", "my-secret-answer"
    arguments = (str(model), "--api-key", key, *more)
    with live_server(tmp_path, *arguments, module="tests.cli_program", FAKE_SAYS=says) as live:
        for headers in ({"authorization": f"Bearer {key}"}, {"authorization": "Bearer my-secret-guess"}):
            for body in (
                CHAT,
                {**CHAT, "stream": True},
                {**CHAT, "my-secret-field": 1},
                {**CHAT, "model": "my-secret-model"},
            ):
                httpx.post(f"{live.url}/v1/chat/completions", json=body, headers=headers)
            httpx.post(f"{live.url}/v1/chat/completions", content=b'{"my-secret-body', headers=headers)
            httpx.get(f"{live.url}/my-secret-path?key=my-secret-query", headers=headers)
            httpx.get(f"{live.url}/v1/models/my-secret-model", headers=headers)
        metrics = httpx.get(f"{live.url}/metrics", headers={"x-api-key": key}).text
        live.stop()
        assert "secret" not in live.log + metrics
        assert ("/v1/chat/completions 200" in live.log) == bool(more)
