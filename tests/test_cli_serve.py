"""`pagedrun serve`: its options, what it says, and how it ends, over the fake service."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pagedrun import hub
from pagedrun.cli import main
from pagedrun.cli.options import TemplateOptions
from pagedrun.cli.serve import ServingEngineOptions
from pagedrun.cli.serve_models import ServedModelOptions, seconds
from pagedrun.cli.sources import Loader, LocalSource
from pagedrun.errors import EngineError, UsageError
from pagedrun.server.serving import ServeSettings
from tests.bert_models import write_bert
from tests.cli_fakes import Boundless, Fake, folders
from tests.gguf_models import shape_of, write_gguf
from tests.live_server import live_server

CHAT = {"messages": [{"role": "user", "content": "a secret"}]}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PAGEDRUN_API_KEY", raising=False)
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_it_serves_and_stops(model: Path, tmp_path: Path) -> None:
    with live_server(tmp_path, str(model), module="tests.cli_program") as live:
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello!" and answer.json()["model"] == "model"
        assert live.url.startswith("http://127.0.0.1:")
        assert live.stop(signal.SIGTERM) == 0
        assert live.log.endswith("stopped\n") and "secret" not in live.log


def test_a_second_ctrl_c_ends_what_runs(model: Path, tmp_path: Path) -> None:
    fake = {"FAKE_SAYS": "x" * 4000, "FAKE_STEP_S": "0.01"}
    with live_server(tmp_path, str(model), module="tests.cli_program", **fake) as live:
        with httpx.stream("POST", f"{live.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            live.process.send_signal(signal.SIGINT)
            while not (line := next(lines)).startswith("data: "):
                pass
            live.process.send_signal(signal.SIGINT)
            assert "error" in line or "the server is stopping" in "".join(lines)
        assert live.process.wait(20) == 0


def test_while_it_stops_it_says_so(model: Path, tmp_path: Path) -> None:
    fake = {"FAKE_SAYS": "x" * 4000, "FAKE_STEP_S": "0.01"}
    with live_server(tmp_path, str(model), module="tests.cli_program", **fake) as live:
        with httpx.stream("POST", f"{live.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            lines = answer.iter_lines()  # without it the stream would be closed
            next(lines)
            live.process.send_signal(signal.SIGINT)
            while (ready := httpx.get(f"{live.url}/ready")).status_code == 200:
                pass
            assert ready.status_code == 503 and ready.headers["retry-after"]
            refused = httpx.post(f"{live.url}/v1/chat/completions", json=CHAT)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert "the server is stopping" in refused.json()["error"]["message"]
            assert httpx.get(f"{live.url}/health").status_code == 200
            live.process.send_signal(signal.SIGINT)
        assert live.process.wait(20) == 0


def test_an_answer_may_end_after_a_signal(model: Path, tmp_path: Path) -> None:
    fake = {"FAKE_SAYS": "x" * 100, "FAKE_STEP_S": "0.01"}
    with live_server(tmp_path, str(model), module="tests.cli_program", **fake) as live:
        with httpx.stream("POST", f"{live.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            live.process.send_signal(signal.SIGTERM)
            text = "".join(lines)
        assert '"finish_reason":"stop"' in text.replace(": ", ":") and "[DONE]" in text
        assert live.process.wait(20) == 0


def test_keys_of_file_and_environment(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfrom-file\n\n")
    arguments = (str(model), "--api-key-file", str(keys), "--served-model-name", "it", "-v")
    with live_server(tmp_path, *arguments, module="tests.cli_program", PAGEDRUN_API_KEY="from-env") as live:
        for key, status in (("from-file", 200), ("from-env", 200), ("# ours", 401), ("other", 401)):
            answer = httpx.get(f"{live.url}/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status
        assert httpx.get(f"{live.url}/v1/models", headers={"x-api-key": "from-env"}).json()["data"][0]["id"] == "it"
        assert live.stop(signal.SIGINT) == 0
        assert "from-" not in live.log and "/v1/models 401" in live.log


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.2", "127.1", "Localhost"])
def test_on_loopback_however_it_is_written_names_of_others_are_refused(model: Path, tmp_path: Path, host: str) -> None:
    with live_server(tmp_path, str(model), "--host", host, module="tests.cli_program") as live:
        assert httpx.get(f"{live.url}/v1/models").status_code == 200
        assert httpx.get(f"{live.url}/v1/models", headers={"host": f"{host}:1"}).status_code == 200
        assert httpx.get(f"{live.url}/v1/models", headers={"host": "elsewhere.example"}).status_code == 403
        assert "there is no API key" not in live.log


def test_all_addresses_without_a_key_are_warned_of(model: Path, tmp_path: Path) -> None:
    with live_server(tmp_path, str(model), "--host", "0.0.0.0", module="tests.cli_program") as live:
        assert "there is no API key" in live.log
        port = live.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/health", headers={"host": "box.lan"}).status_code == 200


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str) -> str:
    fake = Fake()
    fake.install(monkeypatch.setattr)
    assert main.run(["serve", *args]) == 2
    assert not fake.loads
    return capsys.readouterr().err


def test_a_key_of_the_environment_that_is_empty_is_none_at_all(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDRUN_API_KEY", " ")
    said = refused(capsys, monkeypatch, str(model), "--port", "0")
    assert "PAGEDRUN_API_KEY is empty" in said and "hint:  unset it" in said


def test_a_port_that_is_taken(
    model: Path, taken: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refused(capsys, monkeypatch, str(model), "--port", str(taken))
    assert f"port {taken} of 127.0.0.1 is in use" in said and "hint:  another one: --port" in said


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--cors", "localhost"), "is not an origin"),
        (("--api-key", ""), "an API key is empty"),
        (("--api-key-file", "nowhere"), "--api-key-file: cannot read nowhere"),
        (("--max-body", "much"), "--max-body must be a size"),
        (("--max-num-seqs", "0"), "--max-num-seqs must be 1 or more"),
        (("--port", "70000"), "'--port'"),
        (("--host", "no such host"), "cannot listen on no such host"),
        (
            ("--host", ""),
            "cannot listen on '', port 7243: Name or service not known\nhint:  an address of this machine",
        ),
        (("--max-body", "0"), "--max-body must be 1 or more, not 0"),
        (("--api-key", "schlüssel"), "an API key is empty, or has other characters than printable ones of ASCII"),
        (("--served-model-name", ""), "--served-model-name '' is no name"),
        (("--served-model-name", "a\x1b[31mb"), "is no name"),
        (("--allowed-host", "https://chat.example"), "--allowed-host 'https://chat.example' is not the name"),
        (("--allowed-host", "chat.example:443"), "is not the name of a machine"),
        (("--allowed-host", ""), "is not the name of a machine"),
        (("--grace", "inf"), "'--grace'"),
        (("--saving-time", "1e400"), "'--saving-time'"),
        (("--keep-alive-interval", "inf"), "'--keep-alive-interval'"),
        (("-c", "1"), "--max-seq-len must be 2 or more, not 1"),
        (("-m", "other", "--served-model-name", "it"), "--served-model-name is for one model, and 2 are named"),
        (("--keep-alive", "soon"), "--keep-alive must be a duration"),
    ],
)
def test_options_that_make_no_sense(
    model: Path, args: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert says in refused(capsys, monkeypatch, str(model), *args)


def test_an_address_may_be_written_as_in_a_url() -> None:
    from pagedrun.server.run import address_of, bind

    with bind("[127.0.0.1]", 0) as sock:
        assert address_of(sock).startswith("http://127.0.0.1:")


def test_llama_cpps_log_is_for_vv(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedrun.server.run.serve", lambda serving, sock, on_start, *more: on_start())
    monkeypatch.setattr("pagedrun.cli.serve._log", lambda: None)
    for args, shown in (((), False), (("-v",), False), (("-vv",), True), (("-v", "-v"), True)):
        monkeypatch.setattr("pagedrun.cli.console.verbose", 0)
        fake = Fake()
        fake.install(monkeypatch.setattr)
        assert main.run(["serve", str(model), "--port", "0", *args]) == 0
        assert fake.loads[0]["verbose"] is shown


def test_a_server_computes_four_answers_at_once_unless_told(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedrun.server.run.serve", lambda serving, sock, on_start, *more: on_start())
    for args, n in (((), 4), (("--max-num-seqs", "1"), 1)):
        fake = Fake()
        fake.install(monkeypatch.setattr)
        assert main.run(["serve", str(model), "--port", "0", *args]) == 0
        assert fake.loads[0]["config"].max_num_seqs == n
    assert "listening on http://127.0.0.1:" in capsys.readouterr().err


def test_several_models_and_what_is_installed(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models" / "third.gguf", **shape_of())
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF")
    write_bert(tmp_path / "models" / "fourth.gguf")
    arguments = (str(model), "-m", str(other), str(model), "--any-installed")
    with live_server(tmp_path, *arguments, module="tests.cli_program") as live:
        listed = {one["id"]: one["pagedrun"] for one in httpx.get(f"{live.url}/v1/models").json()["data"]}
        assert {name: (one["loaded"], one["kind"]) for name, one in listed.items()} == {
            "model": (True, "text"),
            "other": (False, None),
            "third.gguf": (False, "text"),
            "fourth.gguf": (False, "embedding"),
        }
        assert httpx.get(f"{live.url}/v1/models/fourth.gguf").json()["pagedrun"]["kind"] == "embedding"
        for name, status in (("other", 200), ("third.gguf", 200), ("broken.gguf", 404), (str(other), 404)):
            answer = httpx.post(f"{live.url}/v1/chat/completions", json={**CHAT, "model": name})
            assert answer.status_code == status and answer.json().get("model", name) == name
        assert live.stop(signal.SIGTERM) == 0
        assert "other is loaded" in live.log and live.log.endswith("stopped\n")


def test_two_models_of_one_name(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model.parent / "a").mkdir()
    same = model.parent / "a" / "model.gguf"
    same.write_bytes(b"GGUF")
    assert "would both be called 'model'" in refused(capsys, monkeypatch, str(model), str(same), "--port", "0")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("90", 90),
        ("2.5s", 2.5),
        ("0", 0),
        ("-1", None),
        ("forever", None),
        ("-5m", None),
    ],
)
def test_how_long_models_stay(text: str, found: float | None) -> None:
    assert seconds(text, "--keep-alive") == found


@pytest.mark.parametrize("text", ["", "soon", "10 m", "m", "1h-3m", "1e3", "nan"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--keep-alive must be a duration"):
        seconds(text, "--keep-alive")


def test_one_model_stays_for_ever_and_one_of_several_as_long_as_ollamas() -> None:
    assert ServedModelOptions().keep_s(1) is None
    assert ServedModelOptions().keep_s(2) == ServedModelOptions(any_installed=True).keep_s(1) == 300
    assert ServedModelOptions(keep_loaded="-1").keep_s(2) is None


def test_a_load_that_nobody_wants_any_more_is_given_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fake.install(monkeypatch.setattr)
    monkeypatch.setattr("pagedrun.load.load_service", lambda *args, on_progress, **more: on_progress(1, 2))
    loader = Loader(Boundless(None, 1), ServingEngineOptions(), TemplateOptions())  # type: ignore[arg-type]
    source = LocalSource(hub.LocatedModel(model, "it", None), ServeSettings(names=("it",)), loader)
    with pytest.raises(EngineError, match="the server is stopping"):
        source.load((), lambda: True)
