"""`pull`, and what other commands do about a model that is not here, as a user meets them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pagedrun import hub as library
from pagedrun.cli import console, generate, main
from pagedrun.cli.models import missing
from pagedrun.errors import DownloadError, ModelError, ModelNotFoundError
from pagedrun.memory import FreeMemory
from tests.fake_hub import COMMIT, FakeHub, Fault, Repo, model
from tests.hub_fakes import CONTENT
from tests.repl_terminal import ENTER, Terminal

SMALL, LARGE = model(5000), model(9000, seed=1)


@pytest.fixture
def hub(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake_hub.repos["me/M-GGUF"] = Repo({"M-Q4_K_S.gguf": SMALL, "M-Q8_0.gguf": LARGE}, downloads=1234)
    fake_hub.repos["me/big-GGUF"] = Repo({"Big-Q4_K_M.gguf": CONTENT}, commit="0" * 40)
    monkeypatch.setattr("pagedrun.machine.free_memory", lambda: FreeMemory(ram=1 << 30))
    return fake_hub


def models() -> Path:
    return Path(os.environ["PAGEDRUN_MODELS"])


def test_pull_says_what_comes_and_prints_where_it_is(hub: FakeHub, capsys: Any) -> None:
    assert main.run(["pull", "hf:me/M-GGUF"]) == 0
    captured = capsys.readouterr()
    path = models() / "me" / "M-GGUF" / "M-Q4_K_S.gguf"
    assert captured.out == f"{path}\n" and path.read_bytes() == SMALL
    first, remark, last = captured.err.splitlines()  # quiet where nobody watches
    assert first.startswith("M-GGUF Q4_K_S · 4.9 KiB · apache-2.0 · fits RAM, from hf:me/M-GGUF@")
    assert remark == "warning: it has no Q4_K_M; Q4_K_S is the nearest"
    assert last.startswith("fetched M-GGUF Q4_K_S in ")
    assert main.run(["pull", "hf:me/M-GGUF"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{path}\n" and captured.err == "M-GGUF Q4_K_S is here already\n"


def test_pull_takes_several_names_and_prints_json(hub: FakeHub, capsys: Any) -> None:
    assert main.run(["pull", "--json", "hf:me/M-GGUF:Q8_0", "big"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], first["size"]) == ("hf:me/M-GGUF:Q8_0", 9000)
    assert first["files"] == [{"path": first["path"], "size": 9000, "sha256": first["files"][0]["sha256"]}]
    assert second["name"] == "big" and Path(second["path"]).read_bytes() == CONTENT
    assert library.locate("big").path == Path(second["path"])


def test_pull_ends_with_an_error_in_two_lines(hub: FakeHub, capsys: Any) -> None:
    assert main.run(["pull", "hf:me/M-GGUF:Q5_K_M"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: me/M-GGUF has no Q5_K_M\nhint:  there is: Q4_K_S (4.9 KiB), Q8_0 (8.8 KiB)\n"
    assert main.run(["pull", "./m.gguf"]) == 2
    assert main.run(["pull"]) == 2


def test_pull_warns_of_what_will_not_fit_and_fetches_it(
    hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedrun.machine.free_memory", lambda: FreeMemory(ram=1 << 20))
    assert main.run(["pull", "hf:me/M-GGUF"]) == 0
    assert "warning: it will not fit the memory of this machine" in capsys.readouterr().err


def test_pull_interrupted_says_how_it_goes_on(hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pagedrun.hub.transfer._Transfer.run", interrupted)
        assert main.run(["pull", "hf:me/M-GGUF"]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err


def test_names_from_outside_cannot_drive_the_terminal(hub: FakeHub, capsys: Any) -> None:
    hub.repos["me/M-GGUF"] = Repo({"\x1b[31mM-Q4_K_M.gguf": LARGE, "M-Q8_0.gguf": SMALL}, license="\x1b]0;owned\x07")
    assert main.run(["pull", "hf:me/M-GGUF"]) == 0
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err and "M-Q8_0.gguf" in captured.out
    assert main.run(["pull", "http://127.0.0.1:9/%1b[31mm.gguf"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_model_in_another_programs_folder_is_not_fetched(
    hub: FakeHub, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    there = tmp_path / ".lmstudio" / "models" / "me" / "big-GGUF" / "Big-Q4_K_M.gguf"
    there.parent.mkdir(parents=True)
    there.write_bytes(CONTENT)
    assert main.run(["pull", "big"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{there}\n" and "is here already" in captured.err


@pytest.mark.parametrize(
    "name", ["hf:me/M-GGUF", "hf:me/M-GGUF:Q4_K_S", f"hf:me/M-GGUF@{COMMIT}", "hf:me/M-GGUF/M-Q4_K_S.gguf", "mine"]
)
def test_offline_what_is_here_is_said_to_be(
    hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    own = Path(os.environ["PAGEDRUN_CONFIG"]) / "models.toml"
    own.write_text(own.read_text() + '\n[models.mine]\nsource = "hf:me/M-GGUF"\nfile = "M-Q4_K_S.gguf"\n')
    hub.repos["me/M-GGUF"].files["M-Q4_K_S.gguf"] = CONTENT
    assert main.run(["pull", "hf:me/M-GGUF"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main.run(["pull", "--json", name]) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith("is here already (the hub must not be asked: HF_HUB_OFFLINE is set)\n")
    (row,) = json.loads(captured.out)
    assert row["path"] == str(models() / "me" / "M-GGUF" / "M-Q4_K_S.gguf")
    assert row["source"] == f"hf:me/M-GGUF@{COMMIT}" and row["size"] == len(CONTENT)
    assert main.run(["pull", "hf:me/M-GGUF:Q8_0"]) == 1
    assert main.run(["pull", "--projector", name]) == 1


def test_without_a_network_one_model_at_one_commit_is_here(
    hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["me/M-GGUF"].files["M-Q4_K_S.gguf"] = CONTENT
    assert main.run(["pull", "hf:me/M-GGUF:Q4_K_S"]) == 0
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main.run(["pull", f"hf:me/M-GGUF@{COMMIT}:Q4_K_S"]) == 0
    assert "is here already (127.0.0.1:9: connection refused)" in capsys.readouterr().err
    assert main.run(["pull", "hf:me/M-GGUF:Q4_K_S"]) == 1  # there may be a newer one
    path = models() / "me" / "M-GGUF" / "M-Q4_K_S.gguf"
    path.write_bytes(CONTENT[:-1])
    assert main.run(["pull", f"hf:me/M-GGUF@{COMMIT}:Q4_K_S"]) == 1  # damaged


def test_what_came_under_another_revision_is_not_offered_again(hub: FakeHub, terminal: list[str]) -> None:
    terminal.append("no")
    path = missing.find_or_pull("hf:me/M-GGUF", pull=True).path
    assert missing.find_or_pull("hf:me/M-GGUF@main", pull=False).path == path
    assert missing.find_or_pull("hf:me/M-GGUF@main:Q4_K_S", pull=False).path == path
    assert terminal == ["no"]


# --- a model that is not here ---


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody to ask, who says what the list holds; the questions go into it too."""
    said: list[str] = []
    monkeypatch.setattr(console, "can_ask", lambda: True)

    def confirm(question: str, *, default: bool) -> bool:
        said.append(question)
        return said[0] == "yes"

    monkeypatch.setattr(console, "confirm", confirm)
    return said


def test_in_a_pipe_an_absent_model_is_an_error_with_the_command(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=r"big .* is not on this machine") as caught:
        missing.find_or_pull("big", pull=False)
    assert caught.value.hint == "get it with: pagedrun pull big (or add --pull)"
    with pytest.raises(ModelNotFoundError) as caught:
        missing.find_or_pull("hf:me/M-GGUF:Q8_0", pull=False)
    assert "pagedrun pull hf:me/M-GGUF:Q8_0 (or add --pull)" in caught.value.hint
    for name in ("hf:me/M-GGUF/My Model.gguf", "https://example.org/m.gguf?a=1&b=2"):
        with pytest.raises(ModelNotFoundError) as caught:
            missing.find_or_pull(name, pull=False)
        assert f"pagedrun pull '{name}' (or add --pull)" in caught.value.hint  # as a shell takes it
    assert hub.requests == []


def test_pull_given_an_absent_model_is_fetched_without_asking(hub: FakeHub) -> None:
    assert missing.find_or_pull("big", pull=True).path.read_bytes() == CONTENT
    found = missing.find_or_pull("hf:me/M-GGUF", pull=True)
    assert found.path.read_bytes() == SMALL
    hub.files["m.gguf"] = LARGE
    address = hub.file_url("m.gguf") + "?signature=1"
    assert missing.find_or_pull(address, pull=True).path.read_bytes() == LARGE
    asked = len(hub.requests)
    assert missing.find_or_pull(address, pull=True).path.read_bytes() == LARGE
    assert len(hub.requests) == asked


def test_at_a_terminal_an_absent_model_is_offered(hub: FakeHub, terminal: list[str], capsys: Any) -> None:
    terminal.append("no")
    with pytest.raises(ModelNotFoundError, match="is not on this machine"):
        missing.find_or_pull("big", pull=False)
    assert "big · 10.0 KiB · fits RAM" in capsys.readouterr().err
    assert not (models() / "me").exists()
    terminal[:] = ["yes"]
    assert missing.find_or_pull("big", pull=False).path.read_bytes() == CONTENT
    assert terminal == ["yes", "Download?"]


def test_what_cannot_be_fetched_is_not_offered(hub: FakeHub, terminal: list[str]) -> None:
    terminal.append("yes")
    for name in ("./absent.gguf", "bigg", "ollama:absent"):
        with pytest.raises(ModelError):
            missing.find_or_pull(name, pull=True)
    assert terminal == ["yes"] and hub.requests == []


def test_a_failed_fetch_is_its_own_error(hub: FakeHub) -> None:
    hub.faults = [Fault("cdn", "html", None)]
    with pytest.raises(DownloadError, match="web page"):
        missing.find_or_pull("big", pull=True)


def test_a_model_that_does_not_generate_is_refused_before_it_is_fetched(hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="does not generate text"):
        generate.find_model("nomic-embed-text-v1.5", pull=True)
    assert hub.requests == []


def test_complete_and_chat_take_pull(hub: FakeHub, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for args in (["complete", "-m", "big", "hi"], ["chat", "big"]):
        assert main.run(args) == 1
        assert "hint:  get it with: pagedrun pull big (or add --pull)" in capsys.readouterr().err
    monkeypatch.setattr("pagedrun.first_run.ensure_runtime", lambda: (_ for _ in ()).throw(ModelError("so far")))
    assert main.run(["complete", "--pull", "-m", "big", "hi"]) == 1
    assert "error: so far" in capsys.readouterr().err
    assert (models() / "me" / "big-GGUF" / "Big-Q4_K_M.gguf").read_bytes() == CONTENT


# --- at a real terminal ---


def test_a_newcomer_is_asked_and_gets_there(hub: FakeHub, tmp_path: Path) -> None:
    names = ("PAGEDRUN_CONFIG", "PAGEDRUN_MODELS", "PAGEDRUN_STATE", "HF_ENDPOINT")
    env = {name: os.environ[name] for name in names} | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    terminal = Terminal("-m", "pagedrun", "path", "hf:me/M-GGUF", env=env, cols=200)
    try:
        terminal.wait_for(r"M-GGUF Q4_K_S · 4.9 KiB · apache-2.0 · fits")
        terminal.wait_for(r"Download\? \[Y/n\]")
        terminal.send(ENTER)
        terminal.wait_for("^fetched M-GGUF Q4_K_S in ")
        terminal.wait_for(r"M-GGUF/M-Q4_K_S\.gguf$")
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.close()
    assert (models() / "me" / "M-GGUF" / "M-Q4_K_S.gguf").read_bytes() == SMALL


def test_ctrl_c_at_the_question_ends_its_line(hub: FakeHub) -> None:
    names = ("PAGEDRUN_CONFIG", "PAGEDRUN_MODELS", "PAGEDRUN_STATE", "HF_ENDPOINT")
    env = {name: os.environ[name] for name in names} | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    terminal = Terminal("-m", "pagedrun", "path", "hf:me/M-GGUF", env=env, cols=200)
    try:
        terminal.wait_for(r"Download\? \[Y/n\]")
        terminal.send("\x03")
        assert terminal.wait_for_exit() == 130
        assert terminal.screen.cursor.x == 0
    finally:
        terminal.close()
