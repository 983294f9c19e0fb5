"""The records of running servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun import running
from pagedrun.running import Offered, Record

PROGRAM = """
import sys
from pagedrun.running import Offered, Record
record = Record()
record.write("http://127.0.0.1:1", [Offered("a", "/models/a.gguf")])
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_server_is_found_until_it_ends(state: Path) -> None:
    record = Record()
    assert running.found() == []
    record.write("http://127.0.0.1:7243", [Offered("a", "/models/a.gguf")], any_installed=True)
    (one,) = running.found()
    assert (one.pid, one.url, one.any_installed) == (os.getpid(), "http://127.0.0.1:7243", True)
    assert one.secret == record.secret and one.secret not in repr(one)
    assert running.is_process(one) and not running.is_gone(one)
    (file,) = (state / "servers").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    record.close()
    assert running.found() == [] and running.is_gone(one) and not file.exists()


def test_what_it_has_may_change(tmp_path: Path) -> None:
    record = Record()
    record.write("http://127.0.0.1:1", [])
    (before,) = running.found()
    record.write("http://127.0.0.1:1", [Offered("a", str(tmp_path / "a.gguf"))])
    (after,) = running.found()
    assert before.started == after.started and not running.is_gone(before)
    assert after.has(tmp_path / "a.gguf") == "a" and after.has(tmp_path / "b.gguf") is None
    (tmp_path / "link.gguf").symlink_to(tmp_path / "a.gguf")
    assert after.has(tmp_path / "link.gguf") == "a"
    record.close()


def test_who_died_leaves_nothing(state: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (one,) = running.found()
        assert one.pid == process.pid and running.is_process(one)
        process.kill()
        process.wait()
        assert running.found() == [] and running.is_gone(one)
        assert list((state / "servers").iterdir()) == []


def test_another_process_of_its_number_is_not_it() -> None:
    record = Record()
    record.write("http://127.0.0.1:1", [])
    (one,) = running.found()
    assert not running.is_process(replace(one, born=one.born + 1))
    assert not running.is_process(replace(one, pid=2**22 + 1))
    record.close()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pid": 1}', '{"pid": {}}'])
def test_what_nobody_can_read_is_no_server(state: Path, text: str) -> None:
    folder = state / "servers"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(text)
    assert running.found() == []
    record = Record()
    record.write("http://127.0.0.1:1", [])
    path = folder / f"{os.getpid()}.json"
    good = json.loads(path.read_text())
    path.write_text(text)  # the lock stays
    assert running.found() == [] and path.exists() and good["pid"] == os.getpid()
    record.close()


def test_a_folder_that_cannot_be_written(state: Path) -> None:
    state.mkdir()
    (state / "servers").write_text("a file")
    record = Record()
    with pytest.raises(OSError, match="servers"):
        record.write("http://127.0.0.1:1", [])
    record.close()
    assert running.found() == []


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://0.0.0.0:1", "http://127.0.0.1:1"),
        ("http://[::]:1", "http://[::1]:1"),
        ("http://192.168.1.2:1", "http://192.168.1.2:1"),
    ],
)
def test_an_address_of_all_is_reached_on_loopback(url: str, reached: str) -> None:
    assert running.reachable(url) == reached
