"""The config file's [serve]: what it sets, who wins, and what is refused."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli import main
from tests.cli_fakes import Fake, folders


class Serve:
    """Runs `pagedrun serve` up to the point where it would serve; keeps what it would serve with."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.model = folders(root, monkeypatch)
        self.file = root / "serve.toml"
        self.err = ""
        self._capsys = capsys
        self._got: list[Any] = []
        monkeypatch.delenv("PAGEDRUN_API_KEY", raising=False)
        monkeypatch.setattr("pagedrun.server.run.serve", self._serve)
        monkeypatch.setattr("pagedrun.server.run.bind", self._bind)
        self.fake = Fake()
        self.fake.install(monkeypatch.setattr)
        self.bound: tuple[str, int] = ("", 0)

    def __call__(self, text: str, *args: str, model: bool = True, usual: bool = False) -> int:
        self.file.write_text(text)
        more = [] if usual else ["--config", str(self.file)]
        code = main.run(["serve", *([str(self.model)] if model else []), *more, *args])
        self.err = self._capsys.readouterr().err
        return code

    @property
    def models(self) -> Any:
        return self._got[-1]

    @property
    def how(self) -> Any:
        """The settings of the server."""
        return self._got[-1].settings

    def _serve(self, models: Any, sock: Any, on_start: Any, *more: Any) -> None:
        self._got.append(models)

    def _bind(self, host: str, port: int) -> socket.socket:
        self.bound = (host, port)
        sock = socket.socket()
        sock.bind((host, 0))
        return sock


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Serve:
    return Serve(tmp_path, monkeypatch, capsys)


ALL = """
max_seq_len = 100

[serve]
host = "0.0.0.0"
port = 8080
api_key_file = "keys"
cors = ["http://localhost:3000", "https://chat.example"]
allowed_host = "Box.lan"
served_model_name = ["gpt-4", "it"]
max_queue = 3
max_body = "1MiB"
keep_alive_interval = 2
grace = 0.5
saving_time = 2
keep_responses = false
system = "Be brief."
think = false
"""


def test_the_readme_has_all_names(serve: Serve) -> None:
    assert serve("[serve]\nx = 1\n") == 2
    known = re.search(r"known: (.*)", serve.err)
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    said = re.search(r"table `\[serve\]`.*?Its names are ([^;]*);", readme, re.DOTALL)
    assert known and said and re.findall(r"`(\w+)`", said[1]) == known[1].split(", ")


def test_everything_that_a_server_has(serve: Serve) -> None:
    (serve.file.parent / "keys").write_text("k3y\n")
    assert serve(ALL) == 0, serve.err
    assert serve.bound == ("0.0.0.0", 8080)
    how = serve.how
    assert how.keys == ("k3y",) and how.names == ("gpt-4", "it")
    assert how.cors == ("http://localhost:3000", "https://chat.example")
    assert (how.max_queue, how.max_body, how.keep_alive_s, how.grace_s) == (3, 1 << 20, 2.0, 0.5)
    assert (how.saving_s, how.responses) == (2.0, None)
    assert (how.system, how.think, how.hosts) == ("Be brief.", False, ())
    assert serve.fake.loads[0]["config"].max_seq_len == 100


def test_the_command_line_wins_also_with_what_is_the_default(serve: Serve) -> None:
    text = '[serve]\nport = 8080\nhost = "0.0.0.0"\nmax_queue = 3\nserved_model_name = "it"\nthink = true\n'
    assert serve(text, "--port", "7243", "--served-model-name", "that", "--no-think") == 0, serve.err
    assert serve.bound == ("0.0.0.0", 7243)
    assert (serve.how.names, serve.how.max_queue, serve.how.think) == (("that",), 3, False)


def test_without_the_table_all_is_as_it_was(serve: Serve) -> None:
    assert serve("max_seq_len = 50\n") == 0
    assert serve.bound == ("127.0.0.1", 7243) and serve.how.max_queue == 64


def test_the_usual_file_is_read_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_CONFIG", str(serve.file.parent))
    serve.file = serve.file.with_name("config.toml")
    assert serve("[serve]\nport = 8081\n", usual=True) == 0, serve.err
    assert serve.bound[1] == 8081


def test_which_model(serve: Serve) -> None:
    assert serve(f'[serve]\nmodel = "{serve.model}"\n', model=False) == 0, serve.err
    assert serve.fake.loads[-1]["path"] == serve.model
    assert serve('[serve]\nmodel = "nobody"\n') == 0, serve.err
    assert serve.fake.loads[-1]["path"] == serve.model


def test_several_models_and_how_long_they_stay(serve: Serve) -> None:
    other = serve.model.with_name("other.gguf")
    other.write_bytes(serve.model.read_bytes())
    assert serve(f'[serve]\nmodel = ["{serve.model}", "{other}"]\nkeep_alive = "10m"\n', model=False) == 0, serve.err
    assert [one.name for one in serve.models.all] == ["model", "other"] and serve.models.mover.keep_s == 600
    assert len(serve.fake.loads) == 1
    assert serve("[serve]\nkeep_alive = -1\nany_installed = true\n") == 0, serve.err
    assert serve.models.mover.keep_s is None and serve.models.installed is not None
    assert serve('[serve]\nkeep_alive = "soon"\n') == 2
    assert "[serve] keep_alive must be a duration" in serve.err


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("[serve]\nprot = 1\n", "serve.toml: [serve] prot: there is no such setting", "did you mean port?"),
        ("[serve]\nx = 1\n", "[serve] x: there is no such setting", "known: allowed_host, any_installed, api_key_file"),
        ("[serve]\nmax_seq_len = 1\n", "[serve] max_seq_len: there is no such setting", "put it above [serve]"),
        ('[serve]\napi_key = ["k"]\n', "[serve] api_key: there is no such setting", "api_key_file"),
        ("port = 8080\n", "serve.toml: port: there is no such setting", "under [serve]"),
        ("serve = 1\n", "serve.toml: serve is no table", "[serve]"),
        ('[serve]\nport = "8080"\n', "[serve] port must be a whole number, not '8080'", ""),
        ("[serve]\nport = 1.5\n", "[serve] port must be a whole number", ""),
        ("[serve]\nport = true\n", "[serve] port cannot be True", ""),
        ("[serve]\nport = 70000\n", "[serve] port must be 65535 or less, not 70000", ""),
        ("[serve]\nmax_queue = -1\n", "[serve] max_queue must be 0 or more, not -1", ""),
        ("[serve]\ngrace = inf\n", "[serve] grace must be a number", ""),
        ("[serve]\ncors = 5\n", "[serve] cors must be a text or a list of texts, not 5", ""),
        ("[serve]\ncors = []\n", "[serve] cors must be a text or a list of texts", ""),
        ('[serve]\ncors = "localhost"\n', "[serve] cors 'localhost' is not an origin", ""),
        ('[serve]\nthink = "yes"\n', "[serve] think must be true or false, not 'yes'", ""),
        ('[serve]\nmax_body = "much"\n', "[serve] max_body must be a size", ""),
        ("[serve]\nhost = []\n", "[serve] host must be a text", ""),
        ("[serve]\napi_key_file = 1\n", "[serve] api_key_file must be the name of a file", ""),
        ('[serve]\napi_key_file = "nowhere"\n', "[serve] api_key_file: cannot read", ""),
        ("[serve\n", "is not valid TOML", ""),
    ],
)
def test_what_is_refused(serve: Serve, text: str, says: str, hint: str) -> None:
    assert serve(text) == 2
    assert says in serve.err and hint in serve.err, serve.err
    assert not serve.fake.loads


def test_a_wrong_value_is_refused_also_where_the_command_line_wins(serve: Serve) -> None:
    assert serve("[serve]\nport = 70000\n", "--port", "0") == 2


def test_other_commands_leave_the_table_alone(serve: Serve) -> None:
    serve.file.write_text("max_seq_len = 100\n[serve]\nport = 8080\n")
    assert main.run(["complete", "-m", str(serve.model), "--config", str(serve.file), "hi"]) == 0
    assert serve.fake.loads[0]["config"].max_seq_len == 100
