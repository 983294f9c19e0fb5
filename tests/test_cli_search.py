"""`search`: the registry, the hub, what of it is here, and what is said where nothing is found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedrun.cli import main
from pagedrun.cli.models import missing
from pagedrun.memory import FreeMemory
from tests.fake_hub import FakeHub, Repo, model
from tests.hub_fakes import CONTENT


@pytest.fixture
def hub(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake_hub.repos["me/M-GGUF"] = Repo({"M-Q4_K_S.gguf": model(5000)}, downloads=1234)
    fake_hub.repos["me/big-GGUF"] = Repo({"Big-Q4_K_M.gguf": CONTENT}, commit="0" * 40)
    monkeypatch.setattr("pagedrun.machine.free_memory", lambda: FreeMemory(ram=1 << 30))
    return fake_hub


def test_search_shows_the_registry_first_and_then_the_hub(hub: FakeHub, capsys: Any) -> None:
    assert main.run(["search", "big"]) == 0
    captured = capsys.readouterr()
    title, first, second = captured.out.splitlines()
    assert title.split() == ["NAME", "SIZE", "FITS", "HERE", "WHAT"]
    assert first.split() == ["big", "10.0", "KiB", "RAM", "big"] and second.split() == [
        "hf:me/big-GGUF",
        "0",
        "downloads",
    ]
    assert captured.err == ""
    missing.find_or_pull("big", pull=True)
    capsys.readouterr()
    assert main.run(["search", "--registry", "BIG", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["source"], row["size"], row["fits"], row["here"]) == (
        "big",
        "registry",
        10244,
        "ram",
        True,
    )


def test_search_without_a_network_has_the_registry(hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main.run(["search", "big"]) == 0
    captured = capsys.readouterr()
    assert "big" in captured.out
    assert captured.err.splitlines()[-1] == "only the registry was searched: 127.0.0.1:9: connection refused"
    assert main.run(["search", "absent"]) == 1
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error == "error: nothing is called 'absent' in the registry" and "is there a network?" in hint


def test_search_says_which_repositories_are_here(hub: FakeHub, capsys: Any) -> None:
    missing.find_or_pull("hf:me/M-GGUF", pull=True)
    capsys.readouterr()
    assert main.run(["search", "gguf", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["here"] for row in rows if row["source"] == "hub"} == {
        "hf:me/M-GGUF": True,
        "hf:me/big-GGUF": False,
    }
    assert main.run(["search", "m-gguf"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["hf:me/M-GGUF", "yes", "1,234", "downloads"]


def test_search_that_finds_nothing_is_an_error(hub: FakeHub, capsys: Any) -> None:
    assert main.run(["search", "absent", "model"]) == 1
    assert "nothing is called 'absent model'\nhint:  fewer" in capsys.readouterr().err
    assert main.run(["search", "absent", "--json"]) == 1
    assert capsys.readouterr().out == "[]\n"
    assert main.run(["search", "absent", "--registry"]) == 1
    assert "without --registry" in capsys.readouterr().err
    assert main.run(["search", "big", "--limit", "0"]) == 2
