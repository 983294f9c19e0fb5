"""A model that was made from one of the registry: what is remembered, and who asks for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pagedrun import hub
from pagedrun.catalog import load_catalog
from pagedrun.cli import main
from pagedrun.errors import DownloadError, ModelNotFoundError
from pagedrun.hub import library, made, record
from pagedrun.hub.present import may_be_replaced
from pagedrun.hub.remote import RemoteFile
from tests.gguf_bytes import LLAMA
from tests.hub_fakes import make_home, put


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def make(path: Path) -> Path:
    put(path, LLAMA)
    made.remember(path, load_catalog().models["big"], lambda done: None)
    return path


def test_it_has_what_the_registry_knows_but_not_its_file(home: Path) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    spec = hub.locate("Big-F16.gguf").spec
    assert spec is not None
    assert (spec.name, spec.sampling, spec.title) == ("big", {"": {"temperature": 0.25}}, "big F16")
    assert (spec.source, spec.file, spec.size, spec.sha256) == ("", "", None, None)
    assert path.read_bytes() == LLAMA


def test_it_is_not_the_model_it_was_made_from(home: Path) -> None:
    make(home / "models" / "Big-F16.gguf")
    (entry,) = library.entries()
    assert (entry.name, entry.spec, library.pull_name(entry)) == ("Big-F16.gguf", None, None)
    with pytest.raises(ModelNotFoundError):
        hub.locate("big")


def test_what_is_made_of_it_comes_from_the_same(home: Path) -> None:
    path = make(home / "models" / "me" / "M" / "Big-F16.gguf")
    origin = made.origin_of([path])
    assert origin is not None and origin.name == "big"
    assert made.origin_of([path, path]) is None
    (entry,) = library.entries()
    assert (entry.name, library.pull_name(entry)) == ("hf:me/M:F16", None)


def test_another_file_of_that_name_is_something_else(home: Path) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    os.utime(path, (1, 1))
    assert hub.locate("Big-F16.gguf").spec is None
    assert main.run(["verify", "Big-F16.gguf"]) == 0  # the same after all
    assert hub.locate("Big-F16.gguf").spec is not None


def test_an_entry_that_is_gone_from_the_registry(home: Path) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    (home / "config" / "models.toml").write_text("")
    record.write(path, record.Record(**{**vars_of(path), "derived": "no-longer"}))
    assert hub.locate("Big-F16.gguf").spec is None


def vars_of(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(record.record_path(path).read_text())
    return found


def test_verify_knows_its_checksum(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    assert main.run(["verify"]) == 0
    assert capsys.readouterr().out == "ok   Big-F16.gguf: sha256 as the record of when it was made says\n"
    put(path, LLAMA[:-1] + b"?")
    assert main.run(["verify"]) == 1
    put(path, LLAMA + b"?")
    assert main.run(["verify"]) == 1
    assert "B when it was made" in capsys.readouterr().out


def test_show_says_what_it_was_made_from(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home / "models" / "Big-F16.gguf")
    assert main.run(["show", "Big-F16.gguf"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["made", "from", "big"] in lines
    assert ["sampling", "temperature", "0.25 (registry)"] in lines
    assert main.run(["show", "--json", "Big-F16.gguf"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["made_from"], found["sampling"]["registry"]) == (
        None,
        "big",
        {"any": {"temperature": 0.25}},
    )


def test_pull_leaves_it_where_it_is(home: Path) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    file = RemoteFile(path="Big-F16.gguf", size=1, sha256=None)
    with pytest.raises(DownloadError, match="is there already, made by pagedrun quantize, and hf:me/B/Big-F16"):
        may_be_replaced(path, file, "hf:me/B@" + "0" * 40, is_registered=False)


def test_rm_takes_the_record_along(home: Path) -> None:
    path = make(home / "models" / "Big-F16.gguf")
    assert main.run(["rm", "-y", "Big-F16.gguf"]) == 0
    assert not path.exists() and not record.record_path(path).exists()


def test_the_models_folder_may_be_a_link(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "link").symlink_to(home / "models")
    monkeypatch.setenv("PAGEDRUN_MODELS", str(home / "link"))
    assert made.is_kept(home / "models" / "x.gguf") and made.is_kept(home / "link" / "me" / "x.gguf")
    assert not made.is_kept(home / "x.gguf")
