"""`chat` and `complete` through a server that runs, over the fake service; `ps` and `stop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagedrun import running
from pagedrun.cli import main
from tests.cli_fakes import Complete, Fake, Ran, folders
from tests.live_server import Live, live_server

HERE = "here"  # what the model says that is loaded in this process
LONG = {"FAKE_SAYS": "x" * 3000, "FAKE_STEP_S": "0.01"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("PAGEDRUN_API_KEY", "PAGEDRUN_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def complete(model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Complete:
    return Complete(model, monkeypatch, capfdbinary)


@pytest.fixture
def serve(model: Path, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def server(*args: str, **env: str) -> Iterator[Live]:
        env = {"FAKE_DIGEST": "fake", "FAKE_SAYS": "there", **env}
        folder = tmp_path
        with live_server(folder, str(model), *args, module="tests.cli_program", **env) as live:
            yield live

    return server


def here() -> Fake:
    return Fake(says=HERE, digest="fake")


def program(*args: str, **env: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tests.cli_program", *args]
    environment = {
        **os.environ,
        "FAKE_DIGEST": "fake",
        "FAKE_SAYS": HERE,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        **env,
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_a_server_that_has_the_model_answers(complete: Complete, serve: Any) -> None:
    with serve() as live:
        fake = here()
        ran = complete(fake, "hi", "--system", "Be kind.", "--seed", "5", "-n", "4")
        assert (ran.code, ran.out) == (0, "ther") and not fake.loads
        assert ran.err == f"answered by the server at {live.url}\n"
        assert fake.templates is not None and [m.content for m in fake.templates.asked[0][0]] == ["Be kind.", "hi"]
    assert complete(here(), "hi").out == HERE


def test_a_report_is_the_same_but_for_its_times(complete: Complete, serve: Any) -> None:
    with serve(FAKE_SAYS=HERE):
        local, remote = (
            json.loads(complete(here(), "hi", "--json", "--seed", "5", *more).out) for more in (["--no-server"], [])
        )
    for report in (local, remote):
        assert report.pop("timings").keys() == {
            "queued_s", "prompt_s", "decode_s", "gap_s", "max_gap_s", "prompt_tokens_per_s", "decode_tokens_per_s",
        }  # fmt: skip
    assert local == remote


@pytest.mark.parametrize("how", ["--no-server", "--server=none", "PAGEDRUN_SERVER"])
def test_nobody_is_asked_if_the_user_says_so(
    complete: Complete, serve: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve():
        if how.startswith("-"):
            ran = complete(here(), "hi", how)
        else:
            monkeypatch.setenv(how, "none")
            ran = complete(here(), "hi")
    assert (ran.code, ran.out, ran.err) == (0, HERE, "")


@pytest.mark.parametrize(
    ("args", "settings", "says"),
    [
        (["-c", "512"], "", "has max_seq_len 4,096, not 512"),
        (["-t", "3"], "", "has threads 0, not 3"),
        ([], 'kv_type = "q8_0"', "has kv_type f16, not q8_0"),
        (["-c", "512", "--kv-type", "q8_0"], "", "has max_seq_len 4,096, not 512, kv_type f16, not q8_0"),
    ],
)
def test_other_settings_are_loaded_here(
    complete: Complete, serve: Any, tmp_path: Path, args: list[str], settings: str, says: str
) -> None:
    with serve() as live:
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "config.toml").write_text(settings)
        ran = complete(here(), "hi", *args)
    assert (ran.code, ran.out) == (0, HERE)
    assert ran.err == f"loaded here: the server at {live.url} {says}\nhint:  leave that out to use the server\n"


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        (["-c", "4096"], ""),
        (["--gpu-layers", "0"], ""),
        (["--max-num-seqs", "1"], ""),
        ([], 'threads = 3\ngpu_memory = "6GiB"\nswap_space = "1GiB"'),
    ],
)
def test_settings_that_change_no_answer(
    complete: Complete, serve: Any, tmp_path: Path, args: list[str], settings: str
) -> None:
    with serve():
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "config.toml").write_text(settings)
        assert complete(here(), "hi", *args).out == "there"


def test_a_server_that_the_user_names(complete: Complete, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as live:
        for name in (live.url, f"{live.url}/v1/", live.url.partition("://")[2]):
            assert complete(here(), "hi", "--server", name).out == "there"
        monkeypatch.setenv("PAGEDRUN_SERVER", live.url)
        assert complete(here(), "hi").out == "there"
        assert complete(here(), "hi", "--no-server").out == HERE
        refused = complete(here(), "hi", "-c", "512")
        assert refused.code == 2 and "has max_seq_len 4,096, not 512\nhint:  leave the setting out" in refused.err
        assert complete(Fake(digest="other"), "hi").code == 1
    gone = complete(here(), "hi")
    assert gone.code == 1 and not gone.out and f"the server at {live.url} does not answer" in gone.err


def test_its_model_is_meant_where_none_is_named(
    model: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    with serve() as live:
        here().install(monkeypatch.setattr)
        assert main.run(["complete", "hi", "--server", live.url]) == 0
        assert capfd.readouterr().out == "there"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--server", "http://"], "is no address"),
        (["--server", "ftp://x"], "is no address"),
        (["--server", "http://x:port"], "is no address"),
        (["--server", "7243"], "'7243' is no address\nhint:  for example --server http://127.0.0.1:7243"),
        (["--server", "localhost:1", "--no-server"], "exclude each other"),
    ],
)
def test_options_that_make_no_sense(complete: Complete, args: list[str], says: str) -> None:
    ran = complete(here(), "hi", *args)
    assert ran.code == 2 and says in ran.err


def test_another_file_of_that_name_is_loaded_here(complete: Complete, serve: Any) -> None:
    with serve(FAKE_DIGEST="other"):
        ran = complete(here(), "hi")
    assert ran.out == HERE and "has another file under the name model" in ran.err


def test_a_server_of_another_version(complete: Complete, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve():
        monkeypatch.setattr("pagedrun.remote.engine.__version__", "0.0.1")
        ran = complete(here(), "hi")
    assert ran.out == HERE and "is a server of another version of pagedrun" in ran.err


def test_a_server_that_is_stuck_is_not_waited_for(
    model: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    with serve() as live:
        live.process.send_signal(signal.SIGSTOP)
        fake = here()
        fake.install(monkeypatch.setattr)
        assert main.run(["complete", "-m", str(model), "hi"]) == 0
        ran = Ran(0, *(text.encode() for text in capfd.readouterr()))
        assert main.run(["ps"]) == 0
        assert capfd.readouterr().out.split()[8:12] == [str(live.process.pid), live.url, "model", "silent"]
        live.process.send_signal(signal.SIGCONT)
    assert ran.out == HERE and f"loaded here: the server at {live.url} does not answer" in ran.err


def test_a_program_that_is_no_server_of_ours(complete: Complete) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        ran = complete(here(), "hi", "--server", f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert ran.code == 1 and "is no server of this version of pagedrun" in ran.err


def test_keys(complete: Complete, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve("--api-key", "k3y") as live:
        ran = complete(here(), "hi")
        assert ran.out == HERE and "wants an API key\nhint:  set PAGEDRUN_API_KEY" in ran.err
        ran = complete(here(), "hi", "--server", live.url)
        assert (ran.code, ran.out) == (1, "") and "error: the server" in ran.err and "wants an API key" in ran.err
        for wrong in ("wrong", "schlüssel"):
            monkeypatch.setenv("PAGEDRUN_API_KEY", wrong)
            assert "does not know the key" in complete(here(), "hi", "--server", live.url).err
        monkeypatch.setenv("PAGEDRUN_API_KEY", "k3y")
        assert complete(here(), "hi").out == "there"


def test_a_prompt_that_is_too_long(complete: Complete, serve: Any) -> None:
    with serve(FAKE_SIZE="64"):
        ran = complete(here(), "x" * 100)
    local = complete(Fake(size=64, digest="fake"), "x" * 100)
    assert (ran.code, ran.out) == (local.code, local.out) == (1, "")
    assert ran.err.partition("\n")[2] == local.err and "the context holds 64" in local.err


def test_an_answer_that_the_context_cuts_off(complete: Complete, serve: Any) -> None:
    with serve(FAKE_SIZE="64", FAKE_SAYS="x" * 100):
        ran = complete(here(), "hi")
    local = complete(Fake(size=64, says="x" * 100), "hi")
    assert (ran.code, ran.out) == (local.code, local.out) == (3, local.out)
    assert ran.err.partition("\n")[2] == local.err


def some_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read(5)


def test_a_server_that_dies(model: Path, serve: Any) -> None:
    with serve(**LONG) as live, program("complete", "-m", str(model), "hi") as asking:
        began = some_of(asking)
        live.process.kill()
        rest, said = asking.communicate(timeout=30)
    assert asking.returncode == 1 and set(began + rest) == {"x"} and len(rest) < 3000
    assert f"error: the server at {live.url} ended in the middle of the answer\nhint:" in said


def test_a_server_that_stops(model: Path, serve: Any) -> None:
    with serve("--grace", "0", **LONG) as live, program("complete", "-m", str(model), "hi") as asking:
        began = some_of(asking)
        assert live.stop() == 0
        rest, said = asking.communicate(timeout=30)
    assert asking.returncode == 1 and set(began + rest) == {"x"} and "error: the server is stopping" in said


def until_idle(live: Live) -> None:
    until = time.monotonic() + 20
    while httpx.get(f"{live.url}/ready").json()["running"]:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_full_queue_is_waited_for(model: Path, serve: Any) -> None:
    one = ("--max-num-seqs", "1", "--max-queue", "0")
    with serve(*one, FAKE_SAYS="x" * 60, FAKE_STEP_S="0.02") as live, ExitStack() as stack:
        asking = [stack.enter_context(program("complete", "-m", str(model), "hi")) for _ in range(2)]
        said = [one.communicate(timeout=60) for one in asking]
    assert [one.returncode for one in asking] == [0, 0] and {out for out, _ in said} == {"x" * 60}
    waited = f"the server at {live.url} has a full queue: waiting for a place"
    assert sum(err.count(waited) for _, err in said) == 1


def test_who_waits_for_a_full_queue_can_leave(model: Path, serve: Any) -> None:
    with serve("--max-num-seqs", "1", "--max-queue", "0", **LONG) as live, ExitStack() as stack:
        first = stack.enter_context(program("complete", "-m", str(model), "hi"))
        some_of(first)
        second = stack.enter_context(program("complete", "-m", str(model), "hi"))
        assert second.stderr is not None
        while "has a full queue" not in (line := second.stderr.readline()):
            assert line
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=30)
        assert second.returncode == 130
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
        until_idle(live)


def test_ctrl_c_ends_the_answer(model: Path, serve: Any) -> None:
    with serve(**LONG) as live, program("complete", "-m", str(model), "hi") as asking:
        some_of(asking)
        assert httpx.get(f"{live.url}/ready").json()["running"] == 1
        asking.send_signal(signal.SIGINT)
        asking.communicate(timeout=30)
        assert asking.returncode == 130
        until_idle(live)


def test_a_reader_that_leaves_ends_the_answer(model: Path, serve: Any) -> None:
    with serve(**LONG) as live, program("complete", "-m", str(model), "hi") as asking:
        some_of(asking)
        assert asking.stdout is not None
        asking.stdout.close()
        assert asking.wait(30) == 0
        until_idle(live)


def chatted(model: Path, lines: str, *args: str, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path) -> Ran:
    (tmp_path / "lines").write_text(lines)
    with (tmp_path / "lines").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        code = main.run(["chat", str(model), *args])
    out, err = capfd.readouterr()
    return Ran(code, out.encode(), err.encode())


def test_a_chat_is_the_same(
    model: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    lines = "hi\n/regenerate\n/undo\nagain\n/set max_tokens 3\nmore\n/nonsense\n"
    with serve(FAKE_SAYS=HERE) as live:
        ran = []
        for more in (["--no-server"], []):
            here().install(monkeypatch.setattr)
            ran.append(chatted(model, lines, *more, monkeypatch=monkeypatch, capfd=capfd, tmp_path=tmp_path))
    local, remote = ran
    assert (remote.code, remote.out) == (local.code, local.out) and local.code == 2 and HERE in local.out
    assert remote.err == f"answered by the server at {live.url}\n{local.err}"


def test_ps_and_stop(model: Path, serve: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main.run(["ps"]) == 0
    assert "no server runs" in capsys.readouterr().err
    assert main.run(["stop"]) == 1
    with serve() as one:
        assert main.run(["ps"]) == 0
        titles, row = capsys.readouterr().out.splitlines()
        assert titles.split()[:4] == ["PID", "ADDRESS", "MODELS", "STATE"]
        assert row.split()[:5] == [str(one.process.pid), one.url, "model", "idle", "0"]
        assert main.run(["ps", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["pid"], found["state"], found["running"]) == (one.process.pid, "idle", 0)
        assert found["models"] == [{"name": "model", "path": str(model), "loaded": True}] and found["ram_bytes"] > 0
        (record,) = running.found()
        assert record.secret not in json.dumps(found)
        assert main.run(["stop", "12345678"]) == 1
        assert "none of your servers is 12345678" in capsys.readouterr().err
        assert main.run(["stop", one.url.replace("127.0.0.1", "localhost")]) == 0
        assert f"stopped {one.process.pid}, {one.url}" in capsys.readouterr().err
        assert one.process.wait(1) == 0 and running.found() == []


def test_ps_of_a_server_that_wants_a_key(model: Path, serve: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> tuple[Any, str, str]:
        assert main.run(["ps", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert main.run(["ps"]) == 0
        return found, *capsys.readouterr()

    with serve("--api-key", "k3y") as live:
        for key, says in (("", "wants an API key"), ("wrong", "does not know the key in PAGEDRUN_API_KEY")):
            monkeypatch.setenv("PAGEDRUN_API_KEY", key)
            found, out, err = seen()
            assert (found["key_needed"], found["state"], found["models"][0]["loaded"]) == (True, "idle", None)
            assert out.splitlines()[1].split()[1:4] == [live.url, "model", "idle"]
            assert err == (
                f"the server at {live.url} {says}: it does not say which of its models are loaded\n"
                "hint:  set PAGEDRUN_API_KEY to one of its keys\n"
            )
        monkeypatch.setenv("PAGEDRUN_API_KEY", "k3y")
        found, _, err = seen()
        assert (found["key_needed"], found["models"][0]["loaded"], err) == (False, True, "")


def test_several_servers(model: Path, serve: Any, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    more = {"module": "tests.cli_program", "FAKE_DIGEST": "fake"}
    with serve() as one, live_server(folder, str(model), PAGEDRUN_STATE=str(tmp_path / "state"), **more) as other:
        assert main.run(["stop"]) == 2
        said = capsys.readouterr().err
        assert f"{one.process.pid} ({one.url})" in said and f"{other.process.pid} ({other.url})" in said
        assert main.run(["stop", "--all", str(one.process.pid)]) == 2
        assert main.run(["stop", str(other.process.pid)]) == 0
        assert other.process.wait(20) == 0 and one.process.poll() is None
        assert main.run(["stop", "--all"]) == 0
        assert one.process.wait(20) == 0


def test_stop_waits_for_an_answer_or_ends_it(model: Path, serve: Any, capsys: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    for args, ends in (([], "[DONE]"), (["--now"], "the server is stopping")):
        says = {"FAKE_SAYS": "x" * (100 if not args else 3000), "FAKE_STEP_S": "0.01"}
        with serve(**says) as live, httpx.stream("POST", f"{live.url}/v1/chat/completions", json=chat) as answer:
            lines = answer.iter_lines()
            next(lines)
            stopping = program("stop", *args)
            assert ends in "".join(lines)
            stopping.communicate(timeout=30)
            assert stopping.returncode == 0 and live.process.wait(20) == 0


def test_stop_never_signals_a_process_that_is_no_server(
    model: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = running.Record()
    record.write("http://127.0.0.1:1", [])
    path = running.servers_dir() / f"{os.getpid()}.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "born": found["born"] - 1}))  # as if the number had been another's
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(pid))
    assert main.run(["stop"]) == 1
    assert "is no server of yours" in capsys.readouterr().err and not sent
    record.close()


def test_who_has_the_model_loaded_is_asked_first(complete: Complete, model: Path, serve: Any, tmp_path: Path) -> None:
    folder, second = tmp_path / "second", tmp_path / "second.gguf"
    folder.mkdir()
    second.write_bytes(model.read_bytes())
    more = {"module": "tests.cli_program", "FAKE_DIGEST": "fake", "PAGEDRUN_STATE": str(tmp_path / "state")}
    with serve() as older, live_server(folder, str(second), str(model), **more) as newer:
        ran = complete(here(), "-n", "2", "hi")
        assert ran.code == 0 and f"answered by the server at {older.url}" in ran.err
        assert older.stop() == 0
        ran = complete(here(), "-n", "2", "hi")
        assert ran.code == 0 and f"answered by the server at {newer.url}" in ran.err


def test_a_server_that_serves_whatever_is_here(
    model: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    from pagedrun.errors import EngineError
    from pagedrun.hub import library

    other = tmp_path / "models" / "other.gguf"
    other.parent.mkdir()
    other.write_bytes(b"GGUF")
    asked: list[str] = []

    def fitting(address: Any, name: str, *_: Any, **__: Any) -> Any:
        asked.append(name)
        raise EngineError("not today")

    monkeypatch.setattr("pagedrun.cli.through._fitting", fitting)
    with serve("--any-installed"):
        here().install(monkeypatch.setattr)
        assert main.run(["complete", "-m", str(other), "hi"]) == 0
    (entry,) = library.entries()
    out, err = capfd.readouterr()
    assert asked == [entry.name] and out == HERE and "loaded here: not today" in err


def test_a_chat_learns_what_another_server_at_its_address_has(
    model: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """A larger context before a prompt is said to be too long, a smaller one with the first answer."""
    long = "x" * 100
    script = [long, 4096, long, "/clear", 128, "hi", "/stats", long]  # numbers: a server with this context

    with ExitStack() as stack:
        live = stack.enter_context(serve(FAKE_SIZE="64"))
        servers = [live]

        class Typist:
            interactive = False

            def read(self) -> str:
                while script and isinstance(script[0], int):
                    assert servers[-1].stop() == 0
                    port = live.url.rpartition(":")[2]
                    servers.append(stack.enter_context(serve("--port", port, FAKE_SIZE=str(script.pop(0)))))
                if not script:
                    raise EOFError
                return str(script.pop(0))

        monkeypatch.setattr("pagedrun.cli.repl.prompt.open_reader", lambda *_, **__: Typist())
        here().install(monkeypatch.setattr)
        code = main.run(["chat", str(model), "--server", live.url.replace("127.0.0.1", "localhost")])
    out, err = capfd.readouterr()
    assert code == 3 and [n for n in (64, 128, 4096) if f"the context holds {n}\n" in err] == [64, 128]
    assert out.count("there") == 2 and "of 128 tokens" in out


def test_another_model_at_the_same_address_is_not_asked(
    model: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    from pagedrun.remote import Address, RemoteService, connect
    from pagedrun.request import GenerationRequest
    from tests.fakes import FakeVocab

    with serve() as live:
        address = Address(url=live.url)
        remote = RemoteService(address, connect(address, "model"), FakeVocab(), None)  # type: ignore[arg-type]
        assert live.stop() == 0
    with remote, serve("--port", live.url.rpartition(":")[2], FAKE_DIGEST="other"):
        *_, ended = remote.submit(GenerationRequest(prompt=(1, 2)))
    assert ended.error and "has another file under the name model now" in ended.error.message


def test_the_same_model_of_another_server_is_asked_as_its_user(model: Path, serve: Any) -> None:
    """However alike they are: it has another process, and another secret."""
    from pagedrun.remote import Address, RemoteService, connect
    from pagedrun.request import GenerationRequest
    from tests.fakes import FakeVocab

    with serve() as live:
        record = running.at(live.url)
        assert record is not None
        address = Address(url=live.url, secret=record.secret, pid=record.pid)
        remote = RemoteService(address, connect(address, "model"), FakeVocab(), None)  # type: ignore[arg-type]
        assert live.stop() == 0
    with remote, serve("--port", live.url.rpartition(":")[2]) as other:
        *_, ended = remote.submit(GenerationRequest(prompt=(1, 2)))
        assert not ended.error and remote.pid == other.process.pid
