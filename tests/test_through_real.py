"""`complete` through a live server says byte for byte what it says with the model in its own process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.cli import main
from tests.cli_fakes import Ran
from tests.live_server import Live, live_server

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

ALIKE = ("--max-seq-len", "1024", "-t", "1", "--gpu-layers", "0")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("through")


@pytest.fixture(scope="module")
def live(library: Library, smollm2: Path, tiny_hybrid: Path, folder: Path) -> Iterator[Live]:
    with live_server(folder, str(smollm2), str(tiny_hybrid), *ALIKE, CUDA_VISIBLE_DEVICES="") as live:
        yield live


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Run:
    monkeypatch.setenv("PAGEDRUN_STATE", str(folder / "state"))

    def run(*args: str) -> Ran:
        with Path("/dev/null").open() as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            code = main.run([*args, *ALIKE])
        out, err = capfd.readouterr()
        return Ran(code, out.encode(), err.encode())

    return run


@pytest.mark.parametrize(
    "args",
    [
        ("Tell me a story", "--temp", "0", "-n", "24"),
        ("Tell me a story", "--seed", "7", "-n", "24"),
        ("Tell me a story", "--seed", "8", "-n", "24", "--temp", "1.5", "--top-k", "0", "--dry-multiplier", "0.8"),
        (
            "Tell me a story",
            "--seed",
            "9",
            "-n",
            "24",
            "--mirostat",
            "2",
            "--logit-bias",
            "28=-inf",
            "-s",
            "Be a pirate.",
        ),
        ("Once upon a time", "--raw", "--seed", "3", "-n", "24", "--stop", " the"),
        ("Name a person", "--seed", "7", "--json-schema", json.dumps(PERSON)),
        ("Hi", "--ignore-eos", "--temp", "0", "-n", "24", "--repeat-penalty", "1.3"),
        ("word " * 2000,),
        ("word " * 990, "--temp", "0", "--ignore-eos"),
    ],
)
def test_the_same_is_said(live: Live, smollm2: Path, run: Run, args: tuple[str, ...]) -> None:
    command = ("complete", "-m", str(smollm2), *args)
    remote, local = run(*command), run(*command, "--no-server")
    assert (remote.code, remote.out) == (local.code, local.out)
    assert remote.err == f"answered by the server at {live.url}\n{local.err}"
    again = run(*command)  # the prompt's pages are there now
    assert (again.code, again.out) == (local.code, local.out)


def test_a_model_that_cannot_go_back(live: Live, tiny_hybrid: Path, run: Run) -> None:
    command = ("complete", "-m", str(tiny_hybrid), "--raw", "Once upon a time", "--seed", "3", "-n", "12")
    remote, local = run(*command), run(*command, "--no-server")
    assert (remote.code, remote.out) == (local.code, local.out) and live.url in remote.err


def asked(run: Run, smollm2: Path, *args: str) -> dict[str, Any]:
    ran = run("complete", "-m", str(smollm2), "--session", "one", "--temp", "0", "-n", "8", "--json", *args)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_session_goes_on_here_and_there(live: Live, smollm2: Path, run: Run, capfd: Any) -> None:
    story = "The quick brown fox jumps over the lazy dog. " * 30
    first = asked(run, smollm2, f"Who jumps? {story}")
    second = asked(run, smollm2, "Over whom?")
    n = first["usage"]["total_tokens"]
    assert second["usage"]["cached_tokens"] >= n - 2
    third = asked(run, smollm2, "Is that so?", "--no-server")  # with the pages that the server has saved
    assert third["usage"]["cached_tokens"] >= second["usage"]["total_tokens"] - 2 and third["kept"]["restored"] == 1
    fourth = asked(run, smollm2, "And now?")
    assert fourth["usage"]["prompt_tokens"] > third["usage"]["prompt_tokens"]
    assert main.run(["sessions", "show", "one", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["turns"] == 4
