"""Where the source of a quantisation comes from, what is refused before anything is done, and what goes afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.cli import console, main
from pagedrun.cli.quantize import source as sources
from pagedrun.errors import DownloadError, ModelError, ModelFileError, ModelNotFoundError, UsageError
from pagedrun.hub import http
from pagedrun.quantize import convert, environment, folder, job, source
from pagedrun.quantize.source import FolderSource, GgufSource, RemoteSource
from pagedrun.runtime import space
from tests.fake_hub import FakeHub, Fault, Repo, running
from tests.hub_fakes import make_home
from tests.quantize_fakes import make_folder, make_gguf, safetensors


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    return make_home(tmp_path, monkeypatch)


@pytest.fixture
def served(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a repository of safetensors, and some of GGUF files."""
    whole = make_folder(home / "whole")
    gguf = {name: make_gguf(home / f"{name}.gguf", weights=name).read_bytes() for name in ("F16", "F32", "Q8_0")}
    tiny = {path.name: path.read_bytes() for path in whole.iterdir()}
    tiny |= {"own.py": b"no", "1_Pooling/config.json": b"{}", "onnx/config.json": b"{}"}
    with running() as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setattr(http, "patience", http.Patience(sleep=lambda seconds: None))
        fake.repos["me/tiny"] = Repo(tiny)
        fake.repos["me/both"] = Repo({"m-F32.gguf": gguf["F32"], "m-F16.gguf": gguf["F16"], "m-Q4_K_M.gguf": b"GGUF"})
        fake.repos["me/q"] = Repo({"m-Q8_0.gguf": gguf["Q8_0"], "m-Q4_K_M.gguf": b"GGUF", "config.json": b"{}"})
        fake.repos["me/pickled"] = Repo({"config.json": b"{}", "pytorch_model.bin": b"x", "tokenizer.json": b"{}"})
        fake.repos["me/mute"] = Repo({"config.json": b"{}", "model.safetensors": safetensors({"a": 8})})
        part = "model-00001-of-00002.safetensors"
        fake.repos["me/half"] = Repo({"config.json": b"{}", part: safetensors({"a": 8}), "tokenizer.json": b"{}"})
        yield fake


def fetch(name: str) -> GgufSource | FolderSource:
    """With --pull."""
    return sources.bring(sources.find(name, pull=True), name, pull=True)


def bytes_asked(hub: FakeHub) -> int:
    return len(hub.asked("cdn"))


# --- repositories ------------------------------------------------------------------------------------------------


def test_safetensors_are_fetched_into_the_cache(served: FakeHub, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelNotFoundError, match="is not on this machine") as caught:
        sources.find("hf:me/tiny", pull=False)
    assert caught.value.hint == "add --pull to fetch it"
    assert not served.requests
    found = fetch("hf:me/tiny")
    fetched = home / "cache" / "repositories" / "me" / "tiny"
    assert found == FolderSource(fetched, "tiny", is_fetched=True)
    names = {"1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"}
    assert set(folder.data_files(fetched)) == names
    assert not (fetched / "onnx").exists()
    assert "4 files" in capfd.readouterr().err
    served.close()
    assert sources.find("hf:me/tiny", pull=False) == found
    assert not list((home / "models").iterdir())


def test_a_revision_has_a_folder_of_its_own(served: FakeHub, home: Path) -> None:
    assert fetch("hf:me/tiny@main") == FolderSource(
        home / "cache" / "repositories" / "me" / "tiny@main", "tiny", is_fetched=True
    )


def test_what_was_interrupted_goes_on(served: FakeHub, home: Path) -> None:
    served.faults.append(Fault("cdn", "status", times=None, status=403))
    with pytest.raises(DownloadError):
        fetch("hf:me/tiny")
    served.faults.clear()
    assert isinstance(sources.find("hf:me/tiny", pull=True), RemoteSource)
    assert folder.is_complete(fetch("hf:me/tiny").folder)  # type: ignore[union-attr]


def test_the_gguf_with_16_bits_is_taken(served: FakeHub, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = fetch("hf:me/both")
    assert isinstance(found, GgufSource)
    assert found.parts == (home / "models" / "me" / "both" / "m-F16.gguf",)
    assert "Q4_K_M" not in capfd.readouterr().err
    assert source.resolve("hf:me/both") == found


def test_a_quantised_file_of_the_repository_that_is_here_is_not_taken(home: Path) -> None:
    make_gguf_at = home / "models" / "me" / "both"
    make_gguf_at.mkdir(parents=True)
    make_gguf(make_gguf_at / "m-Q4_K_M.gguf")
    with pytest.raises(ModelNotFoundError):
        source.resolve("hf:me/both")
    assert isinstance(source.resolve("hf:me/both:Q4_K_M"), GgufSource)


def test_only_quantised_files_are_listed(served: FakeHub, home: Path) -> None:
    with pytest.raises(UsageError, match="me/q holds neither safetensors nor a model") as caught:
        sources.find("hf:me/q", pull=True)
    assert "hf:me/q/m-Q8_0.gguf" in caught.value.hint
    assert isinstance(sources.find("hf:me/q:Q8_0", pull=True), RemoteSource)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("hf:me/pickled", ModelFileError, "pickle files"),
        ("hf:me/mute", ModelFileError, "hf:me/mute holds no tokenizer"),
        ("hf:me/half", ModelFileError, "hf:me/half lacks 1 file of its weights, .* model-00002-of-00002"),
        ("hf:me/none", DownloadError, "has no repository me/none"),
    ],
)
def test_what_the_list_of_files_tells(served: FakeHub, home: Path, name: str, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        sources.find(name, pull=True)
    assert not bytes_asked(served)


# --- what is typed -----------------------------------------------------------------------------------------------


def test_one_file_of_a_folder(home: Path) -> None:
    model = make_folder(home / "my model")
    with pytest.raises(UsageError, match="is one file of a model") as caught:
        source.resolve("my model/model.safetensors")
    assert caught.value.hint == "name the folder: pagedrun quantize 'my model'"
    assert source.resolve(str(model)) == FolderSource(model, "my model", home)


def test_nothing_is_not_the_current_folder(home: Path) -> None:
    make_folder(home / "m").rename(home / "whole")
    for text in ("", " "):
        with pytest.raises(UsageError, match="name is empty"):
            source.resolve(text)


def test_a_folder_of_gguf_files_lists_them(home: Path) -> None:
    for name in ("b.gguf", "a b.gguf"):
        make_gguf(home / "models" / name)
    with pytest.raises(UsageError, match="is a folder") as caught:
        source.resolve("models")
    models = home / "models"
    assert caught.value.hint == f"name one of the files in it: '{models}/a b.gguf', {models}/b.gguf"


# --- the order of things -----------------------------------------------------------------------------------------


@pytest.fixture
def nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runtime and no converter may be asked for."""

    def refused(*_: object) -> None:
        raise AssertionError("too early")

    monkeypatch.setattr("pagedrun.first_run.ensure_runtime", refused)
    monkeypatch.setattr(environment, "get", refused)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["hf:me/tiny", "-o", "there.gguf"], "there.gguf exists"),
        (["hf:me/both", "-o", "there.gguf"], "there.gguf exists"),
        (["hf:me/tiny", "-o", "ex.txt"], "does not end in .gguf"),
        (["hf:me/tiny", "--dry-run"], "has to be converted first"),
        (["hf:me/tiny", "-t", "IQ2_M"], "needs an importance matrix"),
        (["hf:me/both", "-t", "iq2_xxs"], "needs an importance matrix"),
        (["hf:me/both", "-t", "f16"], "m is F16 already"),
        (["hf:me/tiny", "--with", "-e ."], "is no requirement"),
        (["hf:me/q:Q8_0"], "quantised already (Q8_0)"),
        (["hf:me/tiny", "--check", "nofile"], "cannot read nofile"),
        (["hf:me/tiny", "--calibrate", "empty.txt"], "empty.txt is empty"),
        (["hf:me/tiny", "--calibrate", "text.txt", "-o", "x.gguf"], "tiny.imatrix.gguf exists"),
        (["whole", "--check", "nofile"], "cannot read nofile"),
        (["whole", "-t", "f16", "--check", "text.txt"], "--check has no use where F16"),
        (["whole", "--dry-run"], "has to be converted first"),
        (["nothing"], "there is no model named"),
        (["there.gguf", "-o", "w.txt"], "does not end in .gguf"),
        (["there.gguf", "-t", "F16", "-o", "x.gguf"], "there.gguf is F16 already"),
        (["there.gguf", "-t", "Q2_K_S"], "needs an importance matrix"),
        (["Q8_0.gguf"], "quantised already (Q8_0)"),
        (["Q8_0.gguf", "-t", "Q8_0"], "Q8_0.gguf is Q8_0 already: nothing would change"),
        (["models"], "holds no *.safetensors"),
    ],
)
def test_what_is_refused_before_anything_is_done(
    served: FakeHub, home: Path, nothing_happens: None, capfd: pytest.CaptureFixture[str], args: list[str], text: str
) -> None:
    make_gguf(home / "there.gguf")
    (home / "text.txt").write_text("words")
    (home / "empty.txt").touch()
    (home / "tiny.imatrix.gguf").touch()
    assert main.run(["quantize", *args, "--pull"]) in {1, 2}
    assert text in capfd.readouterr().err
    assert not bytes_asked(served)


def test_the_disk_is_looked_at_before_anything_is_fetched(
    served: FakeHub,
    home: Path,
    nothing_happens: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(space, "free", lambda path: 100)
    assert main.run(["quantize", "hf:me/tiny", "--pull"]) == 1
    assert "the conversion needs" in capfd.readouterr().err
    assert not bytes_asked(served)


def test_force_may_quantise_twice(served: FakeHub, home: Path) -> None:
    from pagedrun.quantize import beforehand

    found = source.resolve("Q8_0.gguf")
    options = job.Options(type="Q4_K_M", threads=1)
    assert beforehand.objection(found, options, calibrating=False)
    assert beforehand.objection(found, replace(options, force=True), calibrating=False) is None
    assert beforehand.objection(found, replace(options, type="IQ2_M", force=True), calibrating=True) is None


# --- what was fetched goes with the conversion -------------------------------------------------------------------


def converting(monkeypatch: pytest.MonkeyPatch, content: bytes = b"", error: Exception | None = None) -> None:
    """A converter that writes `content`, or fails."""

    def convert_(_: Path, __: Path, target: Path, *more: object) -> None:
        if error:
            raise error
        target.write_bytes(content)

    monkeypatch.setattr(environment, "get", lambda *_: Path("environment"))
    monkeypatch.setattr(convert, "convert", convert_)


def test_it_is_deleted_after_a_good_conversion(
    served: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    converting(monkeypatch, (home / "F16.gguf").read_bytes())
    assert main.run(["quantize", "hf:me/tiny", "--pull", "-t", "F16"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{home / 'models' / 'tiny-F16.gguf'}\n"
    assert "deleted what was fetched for the conversion (" in err
    assert not list((home / "cache" / "repositories").iterdir())
    assert [path.name for path in (home / "models").glob("[!.]*")] == ["tiny-F16.gguf"]


def test_it_stays_for_the_next_attempt(
    served: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    converting(monkeypatch, error=ModelError("it fails"))
    assert main.run(["quantize", "hf:me/tiny", "--pull", "-t", "F16"]) == 1
    fetched = home / "cache" / "repositories" / "me" / "tiny"
    assert f"to drop them: rm -r {fetched}" in capfd.readouterr().err
    n_asked = bytes_asked(served)
    converting(monkeypatch, (home / "F16.gguf").read_bytes())
    assert main.run(["quantize", "hf:me/tiny", "-t", "F16"]) == 0
    assert bytes_asked(served) == n_asked
    assert not fetched.exists()


def test_a_folder_of_the_users_own_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_folder(home / "mine")
    converting(monkeypatch, make_gguf(home / "m.gguf").read_bytes())
    assert main.run(["quantize", "mine", "-t", "F16"]) == 0
    assert folder.is_complete(model)


def test_nobody_agrees(served: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "confirm", lambda *_, **__: False)
    for name in ("hf:me/tiny", "hf:me/both"):
        with pytest.raises(ModelNotFoundError, match=f"{name} is not on this machine"):
            sources.bring(sources.find(name, pull=False), name, pull=False)
    assert not bytes_asked(served)
