"""`--session` and `pagedrun sessions`: over the fake service, whose files have texts only, and on the real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli import main
from pagedrun.cli.sessions.kept import Kept
from pagedrun.durable import Claim, NamedSession
from pagedrun.sessions import SessionFolder
from tests.cli_fakes import Complete, Fake, Ran, folders
from tests.session_files import SMALL, contents

ROOT = Path(__file__).parents[1]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def complete(model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Complete:
    return Complete(model, monkeypatch, capfdbinary)


def sessions(capture: Any, *args: str) -> Ran:
    capture.readouterr()
    code = main.run(["sessions", *args])
    return Ran(code, *capture.readouterr())


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> SessionFolder:
    return SessionFolder(tmp_path / "state" / "sessions", 1 << 20)


def test_a_pipe_remembers(complete: Complete) -> None:
    first, second = Fake(says="Paris"), Fake(says="Rome")
    assert complete(first, "France?", "--session", "trip").out == "Paris"
    assert complete(second, "Italy?", "--session", "trip", "--system", "Be short").out == "Rome"
    assert second.prompt == b"system:Be short\nuser:France?\nassistant:Paris\nuser:Italy?\n"
    third = Fake(says="Madrid")
    assert complete(third, "Spain?", "--session", "trip", "--json").code == 0
    assert third.prompt.startswith(b"system:Be short\nuser:France?\nassistant:Paris\nuser:Italy?\nassistant:Rome\n")


def test_raw_text_goes_on(complete: Complete) -> None:
    complete(Fake(says=" b"), "a", "--raw", "--session", "s")
    second = Fake(says=" d")
    complete(second, " c", "--raw", "--session", "s")
    assert second.prompt == b"a b c"
    ran = complete(Fake(), "x", "--session", "s")
    assert (ran.code, ran.out) == (2, "") and "is a session of --raw" in ran.err and "hint:" in ran.err
    complete(Fake(), "x", "--session", "t")
    assert "is a chat" in complete(Fake(), "x", "--session", "t", "--raw").err


def test_what_was_not_answered_is_not_kept(complete: Complete) -> None:
    from pagedrun.errors import EngineError

    assert complete(Fake(says="one"), "1", "--session", "s").code == 0
    assert complete(Fake(fail=EngineError("broken")), "2", "--session", "s").code == 1
    third = Fake(says="three")
    complete(third, "3", "--session", "s")
    assert third.prompt == b"user:1\nassistant:one\nuser:3\n"


def test_a_turn_without_an_answer_leaves_the_session_as_it_was(
    complete: Complete, folder: SessionFolder, model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    assert complete(Fake(says="one"), "1", "--session", "s").code == 0
    assert complete(Fake(says="one"), "1", "--raw", "--session", "r").code == 0
    before = [folder.path(name).read_bytes() for name in "sr"]
    assert complete(Fake(says=""), "2", "--session", "s").code == 0
    assert complete(Fake(says=""), "2", "--raw", "--session", "r").code == 0
    assert complete(Fake(says="two", size=28), "2", "--session", "s").code == 1  # no room for an answer
    assert complete(Fake(says=""), "2", "--session", "new").code == 0
    source = model.with_name("stdin")
    source.write_text("2\n3\n")
    Fake(says="").install(monkeypatch.setattr)
    with source.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main.run(["chat", str(model), "--session", "s"]) == 0
    assert "the model gave no answer; the question is not kept" in Ran(0, *capfdbinary.readouterr()).err
    assert [folder.path(name).read_bytes() for name in "sr"] == before and not folder.path("new").exists()


def test_commands_of_a_chat_are_saved_when_they_are_done(
    model: Path, folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next line is read: a process that is killed then loses nothing."""
    Fake(says="Hello!").install(monkeypatch.setattr)
    seen: list[tuple[str, int]] = []

    class Lines(list[str]):
        interactive = False

        def read(self) -> str:
            entry = folder.path("s").exists() and folder.show("s").meta
            said = json.loads(entry.note) if entry else {}
            seen.append((said.get("system", ""), len(said.get("turns", []))))
            if not self:
                raise EOFError
            return self.pop(0)

    lines = Lines(["one", "two", "/system Be short", "/undo", "/clear"])
    monkeypatch.setattr("pagedrun.cli.repl.prompt.open_reader", lambda *_, **__: lines)
    assert main.run(["chat", str(model), "--session", "s"]) == 0
    assert seen == [("", 0), ("", 1), ("", 2), ("Be short", 2), ("Be short", 1), ("Be short", 0)]


class Serving:
    """A service with pages or without."""

    def __init__(self, *, pages: bool) -> None:
        self.keeper: Any = object() if pages else None
        self.identity = SMALL if pages else replace(SMALL, page_bytes=1, row_bytes=1, n_stripes=1)

    def call(self, work: Callable[[], None]) -> None:
        """Nothing is computed."""


def test_pages_that_are_not_there_are_named_in_plain_words(folder: SessionFolder, capfdbinary: Any) -> None:
    note, cleared = '{"turns": [1]}', '{"turns": []}'

    def said(tokens: int, note: str, *, pages: bool) -> str:
        folder.save("s", contents(range(tokens), note=note))
        with NamedSession(folder, "s") as session:
            Kept(session).attach(Serving(pages=pages), "m")  # type: ignore[arg-type]
        return Ran(0, *capfdbinary.readouterr()).err

    assert "s: 30 tokens have to be read again: paging is off" in (told := said(30, note, pages=False))
    assert "size of" not in told
    assert "s: what was said has to be read again: it was saved without pages" in said(0, note, pages=True)
    assert not said(0, cleared, pages=True) and not said(0, note, pages=False) and not said(30, note, pages=True)


def test_only_one_process_has_it(complete: Complete, folder: SessionFolder, capfdbinary: Any) -> None:
    claim = Claim(folder.root, "s")
    fake = Fake()
    ran = complete(fake, "x", "--session", "s")
    assert (ran.code, ran.out) == (1, "") and "another process has the session 's'" in ran.err and not fake.loads
    assert complete(fake, "x", "--session", "other").code == 0
    folder.save("s", contents(range(3)))
    assert "another process" in sessions(capfdbinary, "rm", "-y", "s").err
    claim.close()
    assert sessions(capfdbinary, "rm", "-y", "s").code == 0


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", " a", "a ", "x" * 300])
def test_names_that_cannot_be(complete: Complete, name: str) -> None:
    ran = complete(Fake(), "x", f"--session={name}")
    assert (ran.code, ran.out) == (2, "") and "the session's name" in ran.err and "hint:" in ran.err


def test_a_damaged_file_is_refused_and_left_alone(complete: Complete, folder: SessionFolder) -> None:
    path = folder.path("s")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nonsense" * 2000)
    ran = complete(Fake(), "x", "--session", "s")
    assert ran.code == 1 and "cannot be used" in ran.err and "hint:" in ran.err
    assert path.read_bytes() == b"nonsense" * 2000


def test_a_text_that_is_damaged_is_refused(complete: Complete, folder: SessionFolder) -> None:
    for note in ("[", "[]", '{"format": "pagedrun-chat", "version": 1}'):
        folder.save("s", contents((), note=note))
        ran = complete(Fake(), "x", "--session", "s")
        assert ran.code == 1 and "what was said in 's' cannot be read" in ran.err


def test_the_model_of_the_session_is_taken(
    complete: Complete, model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    complete(Fake(), "x", "--session", "s")
    other = model.with_name("other.gguf")
    other.write_bytes(b"GGUF")
    fake = Fake()
    complete(fake, "y", "-m", str(other))  # the one used last
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main.run(["complete", "z", "--session", "s"]) == 0
    assert fake.loads[-1]["path"] == model
    assert json.loads(sessions(capfdbinary, "show", "s", "--json").out)["model"] == str(model)


def test_chat_goes_on(model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
    def chat(lines: str, *args: str) -> Ran:
        source = model.with_name("stdin")
        source.write_text(lines)
        with source.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            code = main.run(["chat", str(model), "--session", "s", *args])
        return Ran(code, *capfdbinary.readouterr())

    fakes = [Fake(says="Hello!") for _ in range(4)]
    fakes[0].install(monkeypatch.setattr)
    first = chat("one\ntwo\n/undo\n")
    assert (first.code, first.out) == (0, "Hello!\nHello!\n") and "session s: new" in first.err
    fakes[1].install(monkeypatch.setattr)
    second = chat("three\n")
    assert "session s: 1 turn; the last: one" in second.err
    assert fakes[1].prompt == b"user:one\nassistant:Hello!\nuser:three\n"
    fakes[2].install(monkeypatch.setattr)
    assert chat("/clear\n").code == 0
    fakes[3].install(monkeypatch.setattr)
    assert chat("four\n").code == 0
    assert fakes[3].prompt == b"user:four\n"


def test_list_and_show(complete: Complete, folder: SessionFolder, capfdbinary: Any) -> None:
    ran = sessions(capfdbinary, "list")
    assert (ran.code, ran.out) == (0, "") and "pagedrun chat --session NAME" in ran.err
    folder.cache("key", contents(range(9)))
    ran = sessions(capfdbinary, "list", "--all")
    assert ran.out.splitlines()[1].startswith("(key)") and "no sessions" not in ran.err
    assert "no sessions yet" in sessions(capfdbinary, "list").err
    complete(Fake(says="Paris"), "France?", "--session", "trip")
    folder.save("pages", contents(range(30), (7, 30)))
    (folder.root / "named" / "bad.kv").write_bytes(b"x")
    ran = sessions(capfdbinary, "list")
    assert ran.out.splitlines()[0].split() == ["NAME", "MODEL", "TOKENS", "TURNS", "SIZE", "LAST", "USED"]
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["bad", "pages", "trip"]
    assert "kept by itself: 1 conversation" in ran.err and "bad.kv cannot be used" in ran.err
    listed = json.loads(sessions(capfdbinary, "list", "--all", "--json").out)
    assert {(e["name"], e["kind"], e.get("n_tokens"), e.get("turns")) for e in listed} == {
        ("trip", "named", 0, 1), ("pages", "named", 30, None), ("bad", "named", None, None), ("key", "cache", 9, None),
    }  # fmt: skip
    shown = sessions(capfdbinary, "show", "trip")
    assert "> France?\nParis" in shown.out
    assert sessions(capfdbinary, "show", "pages", "--check").code == 0
    found = json.loads(sessions(capfdbinary, "show", "pages", "--json", "--check").out)
    assert found["check"]["whole"] and found["snapshots"] == [[7, 40], [30, 40]]
    assert sessions(capfdbinary, "show", "bad").code == 1
    ran = sessions(capfdbinary, "show", "nobody")
    assert (ran.code, ran.out) == (1, "") and "there is no session 'nobody'" in ran.err and "hint:" in ran.err


def test_check_says_what_is_damaged(folder: SessionFolder, capfdbinary: Any) -> None:
    folder.save("s", contents(range(30)))
    data = bytearray(folder.path("s").read_bytes())
    data[8192 + 5] ^= 1
    folder.path("s").write_bytes(data)
    ran = sessions(capfdbinary, "show", "s", "--check")
    assert ran.code == 1 and "0 of 30 tokens can be used" in ran.out


def test_export_import_rename_rm_gc(folder: SessionFolder, tmp_path: Path, capfdbinary: Any) -> None:
    folder.save("s", contents(range(30), (7,), note="{}", model="m"))
    file = tmp_path / "s.kv"
    assert sessions(capfdbinary, "export", "s", str(file)).code == 0
    ran = sessions(capfdbinary, "export", "s", str(file))
    assert ran.code == 2 and "there already" in ran.err and "--force" in ran.err
    assert sessions(capfdbinary, "export", "s", str(file), "--force").code == 0
    assert sessions(capfdbinary, "import", str(file)).code == 2  # there is one of that name
    assert "t: 30 tokens of m" in sessions(capfdbinary, "import", str(file), "t").err
    assert folder.check("t").whole and folder.show("t").meta.note == "{}"  # type: ignore[union-attr]
    assert sessions(capfdbinary, "rename", "t", "s").code == 2
    ran = sessions(capfdbinary, "rename", "t", "t")
    assert ran.code == 2 and "'t' is its name already" in ran.err
    ran = sessions(capfdbinary, "rename", "nobody", "nobody")
    assert ran.code == 1 and "there is no session 'nobody'" in ran.err
    ran = sessions(capfdbinary, "export", "nobody", str(tmp_path / "n.kv"))
    assert ran.code == 1 and "there is no session 'nobody'" in ran.err and "sessions list" in ran.err
    assert sessions(capfdbinary, "rename", "t", "u").code == 0
    ran = sessions(capfdbinary, "rm", "u", "nobody", "-y")
    assert ran.code == 1 and folder.path("u").exists()
    assert "there is nobody to ask" in sessions(capfdbinary, "rm", "u").err
    assert sessions(capfdbinary, "rm", "u", "s", "-y").code == 0
    assert not folder.entries()
    folder.cache("key", contents(range(9)))
    (folder.root / "cache" / ".x.kv.1.new").write_bytes(b"1")
    assert "freed 1 B of 1 file" in sessions(capfdbinary, "gc").err
    assert folder.entries()
    assert sessions(capfdbinary, "gc", "--all").code == 0
    assert not folder.entries()
    ran = sessions(capfdbinary, "import", str(tmp_path / "nothing.kv"), "x")
    assert ran.code == 1 and f"there is no file {tmp_path / 'nothing.kv'}" in ran.err
    file.write_bytes(file.read_bytes()[:9000])
    ran = sessions(capfdbinary, "import", str(file), "x")
    assert ran.code == 1 and len(ran.err.splitlines()) == 2 and "copy or export it again" in ran.err


def test_help_and_typos(capfdbinary: Any) -> None:
    ran = sessions(capfdbinary, "--help")
    assert ran.code == 0 and all(name in ran.out for name in main._SESSIONS)
    ran = sessions(capfdbinary, "lst")
    assert ran.code == 2 and "did you mean 'list'?" in ran.err
    assert sessions(capfdbinary).code == 2
    for name in main._SESSIONS:
        assert sessions(capfdbinary, name, "--help").code == 0


@pytest.mark.real
def test_the_real_thing(smollm2: Path, tmp_path: Path) -> None:
    """Follow-ups in new processes read what is new only, also after a kill; another KV type reads all again."""
    env = os.environ | {"PAGEDRUN_STATE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pagedrun", "complete", "-m", str(smollm2), "--session", "s", "--json", "-t", "1"]
    command += ["--temp", "0", "-n", "8", "-c", "2048"]

    def run(prompt: str, *args: str) -> tuple[dict[str, Any], str]:
        ran = subprocess.run(
            [*command, prompt, *args], env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        return json.loads(ran.stdout), ran.stderr

    first, _ = run("Tell me of Paris, Rome and Madrid. " * 20)
    second, _ = run("And of Berlin?")
    before = first["usage"]["total_tokens"]
    assert second["usage"]["cached_tokens"] >= before - 8 - 4
    process = subprocess.Popen(
        [*command, "Write a long story.", "-n", "1500", "--ignore-eos"],
        env=env,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(4)
    refused = subprocess.run(
        [*command, "x"], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert refused.returncode == 1 and "another process has the session" in refused.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    third, _ = run("And of Vienna?")
    assert third["usage"]["cached_tokens"] >= second["usage"]["total_tokens"] - 8 - 4
    fourth, err = run("And of Oslo?", "--kv-type", "q8_0")
    assert fourth["usage"]["cached_tokens"] == 0 and "the KV type of keys was f16 and is q8_0" in err
    fifth, err = run("And of Rome?", "--kv-type", "q8_0")
    assert fifth["usage"]["cached_tokens"] > fourth["usage"]["prompt_tokens"] - 4 and "warning" not in err
