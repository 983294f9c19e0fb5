"""Folders of pagedrun, LM Studio and Ollama: which file a name means, and that nothing in them can do harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pagedrun import hub
from pagedrun.errors import ModelNotFoundError
from pagedrun.hub import places, record
from tests.hub_fakes import CONTENT, SHA, make_home, put
from tests.places_fakes import COMMIT, hf_cached, in_lmstudio, in_ollama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def write_record(path: Path, source: str, sha256: str = SHA, *, file: str = "", revision: str = "") -> None:
    found = path.stat()
    file = file or path.name
    known = record.Record(source, file, found.st_size, sha256, True, "2026-01-01", found.st_mtime_ns, revision)
    record.write(path, known)


def test_a_pulled_file_comes_before_the_caches(home: Path) -> None:
    hf_cached(home, "me/M-GGUF", {"M-Q8_0.gguf": b"cached"})
    lmstudio = in_lmstudio(home, "Me/m-gguf", "M-Q5_K_M.gguf", b"q5")
    own = put(home / "models" / "me" / "M-GGUF" / "M-Q8_0.gguf", b"own")
    assert hub.locate("hf:me/M-GGUF:q8_0").path == own
    assert hub.locate("hf:ME/M-gguf:Q5_K_M").path == lmstudio


def test_a_pulled_file_is_of_its_commit_and_of_the_revision_that_was_typed(home: Path) -> None:
    own = put(home / "models" / "me" / "M-GGUF" / "M-Q8_0.gguf")
    with pytest.raises(ModelNotFoundError, match=f"me/M-GGUF at {COMMIT}"):
        hub.locate(f"hf:me/M-GGUF@{COMMIT}:Q8_0")
    write_record(own, f"hf:me/M-GGUF@{COMMIT}")
    for typed in (COMMIT, COMMIT[:7]):
        assert hub.locate(f"hf:me/M-GGUF@{typed}:Q8_0").path == own
    for typed in (COMMIT[:6], "2" * 7, "main", "v1"):
        with pytest.raises(ModelNotFoundError):
            hub.locate(f"hf:me/M-GGUF@{typed}:Q8_0")
    write_record(own, f"hf:me/M-GGUF@{COMMIT}", revision="v1")
    assert hub.locate("hf:me/M-GGUF@v1:Q8_0").path == own
    with pytest.raises(ModelNotFoundError):
        hub.locate("hf:me/M-GGUF@main:Q8_0")


def test_a_pulled_file_lies_where_it_does_in_its_repository(home: Path) -> None:
    folder = home / "models" / "me" / "M-GGUF"
    small, large = put(folder / "Q4_K_M" / "model.gguf", b"4"), put(folder / "Q8_0" / "deep" / "model.gguf", b"8")
    assert hub.locate("hf:me/M-GGUF").path == hub.locate("hf:me/M-GGUF:Q4_K_M").path == small
    assert hub.locate("hf:me/M-GGUF/Q4_K_M/model.gguf").path == small
    assert hub.locate("hf:me/M-GGUF/Q8_0/deep/model.gguf").path == large
    for wrong in ("hf:me/M-GGUF/model.gguf", "hf:me/M-GGUF/Q8_0/model.gguf", "hf:me/M-GGUF:Q8_0"):
        with pytest.raises(ModelNotFoundError):
            hub.locate(wrong)


def test_a_file_that_an_older_version_put_flat_is_what_its_record_says(home: Path) -> None:
    flat = put(home / "models" / "me" / "M-GGUF" / "model.gguf")
    write_record(flat, f"hf:me/M-GGUF@{COMMIT}", file="Q8_0/model.gguf")
    assert hub.locate("hf:me/M-GGUF/Q8_0/model.gguf").path == hub.locate("hf:me/M-GGUF:Q8_0").path == flat
    for wrong in ("hf:me/M-GGUF/Q4_K_M/model.gguf", "hf:me/M-GGUF/model.gguf"):
        with pytest.raises(ModelNotFoundError):
            hub.locate(wrong)
    write_record(flat, f"hf:you/Other@{COMMIT}", file="Q8_0/model.gguf")
    assert hub.locate("hf:me/M-GGUF/model.gguf").path == flat


def test_a_registry_model_is_found_in_every_place(home: Path) -> None:
    blob = in_ollama(home / ".ollama" / "models", "big", CONTENT)
    assert (hub.locate("big").path, hub.locate("big").name) == (blob, "big")
    assert hub.locate("ollama:big").spec is not None
    lmstudio = in_lmstudio(home, "them/copy", "Big-Q4_K_M.gguf", CONTENT)
    assert hub.locate("big").path == lmstudio
    flat = put(home / "models" / "Big-Q4_K_M.gguf")
    assert hub.locate("big").path == flat
    pulled = put(home / "models" / "me" / "big-GGUF" / "Big-Q4_K_M.gguf")
    assert hub.locate("big").path == pulled
    put(pulled, b"half")
    assert hub.locate("big").path == flat


def test_a_recorded_checksum_decides_which_model_a_file_is(home: Path) -> None:
    path = put(home / "models" / "renamed.gguf")
    assert hub.locate("renamed.gguf").spec is None
    write_record(path, "https://example.org/renamed.gguf")
    found = hub.locate("renamed.gguf").spec
    assert found is not None and found.sha256 == SHA
    other = put(home / "models" / "Big-Q4_K_M.gguf")
    write_record(other, "https://example.org/Big-Q4_K_M.gguf", "9" * 64)
    assert hub.locate("Big-Q4_K_M.gguf").spec is None


def test_a_link_to_a_known_file_is_known(home: Path) -> None:
    blob = in_ollama(home / ".ollama" / "models", "big", CONTENT)
    (home / "link.gguf").symlink_to(blob)
    known = put(home / "elsewhere" / "Tiny.gguf")
    (home / "to-known.gguf").symlink_to(known)
    for name in (str(blob), "link.gguf", "to-known.gguf"):
        assert hub.locate(name).spec is not None, name


def test_ollamas_names_have_tags_and_owners(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / "elsewhere"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    latest = in_ollama(root, "llama3.1", b"latest")
    small = in_ollama(root, "llama3.1:8b", b"small", mark=":")
    theirs = in_ollama(root, "m:Q4_K_M", b"theirs", host="hf.co/me")
    own = in_ollama(root, "mine", b"mine", host="registry.ollama.ai/me")
    assert hub.locate("ollama:llama3.1").path == hub.locate("ollama:LLAMA3.1:latest").path == latest
    assert hub.locate("ollama:llama3.1:8b").path == small
    assert hub.locate("ollama:hf.co/me/m:Q4_K_M").path == theirs
    assert hub.locate("ollama:me/mine").path == own
    with pytest.raises(ModelNotFoundError, match="no model nothing:latest") as caught:
        hub.locate("ollama:nothing")
    assert "ollama:llama3.1:8b" in caught.value.hint


def test_a_url_is_the_file_that_was_fetched_from_it(home: Path) -> None:
    url = "https://example.org/models/m%20x.gguf"
    with pytest.raises(ModelNotFoundError, match="is not on this machine"):
        hub.locate(url)
    path = put(home / "models" / "m x.gguf")
    with pytest.raises(ModelNotFoundError):  # it is only called so
        hub.locate(url)
    write_record(path, "https://example.org/another/m%20x.gguf")
    with pytest.raises(ModelNotFoundError):
        hub.locate(url)
    assert hub.locate(f"{url}#sha256={SHA}").path == path
    write_record(path, url)
    assert hub.locate(url).path == path


# --- folders as they are found ---


def names(files) -> list[str]:
    return [file.name for file in files]


def test_lmstudios_folder_is_where_it_says(home: Path) -> None:
    in_lmstudio(home, "me/Old-GGUF", "old-Q8_0.gguf", b"1", root=".cache/lm-studio/models")
    in_lmstudio(home, "me/New-GGUF", "new-Q8_0.gguf", b"2")
    in_lmstudio(home, "me/Moved-GGUF", "moved-Q8_0.gguf", b"3", root="studio/models")
    in_lmstudio(home, "me/Chosen-GGUF", "chosen-Q8_0.gguf", b"4", root="disk")
    put(home / ".lmstudio-home-pointer", f"{home}/studio\n".encode())
    put(home / "studio" / "settings.json", json.dumps({"downloadsFolder": str(home / "disk")}).encode())
    assert names(places.lmstudio_files()) == [f"hf:me/{n}-GGUF:Q8_0" for n in ("Chosen", "Moved", "New", "Old")]
    put(home / ".lmstudio-home-pointer", b"\xff")
    put(home / ".lmstudio" / "settings.json", b'["downloadsFolder"]')
    assert names(places.lmstudio_files()) == [f"hf:me/{n}-GGUF:Q8_0" for n in ("New", "Old")]


def test_names_are_the_shortest_that_say_which_file_it_is(home: Path) -> None:
    put(home / "models" / "flat.gguf")
    put(home / "models" / "one" / "deep.gguf")
    put(home / "models" / "me" / "R" / "R-Q4_K_M.gguf")
    put(home / "models" / "me" / "R" / "plain.gguf")
    put(home / "models" / ".pull" / "KEY" / "half.gguf")
    expected = {"flat.gguf", str(home / "models" / "one" / "deep.gguf"), "hf:me/R:Q4_K_M", "hf:me/R/plain.gguf"}
    assert set(names(places.own_files())) == expected


MODEL = "application/vnd.ollama.image.model"
BROKEN = [
    b"",
    b"\xff\xfe",
    b"[]",
    b'{"layers": 3}',
    b'{"layers": [3, {}, {"mediaType": []}]}',
    b"[" * 100_000,
    json.dumps({"layers": [{"mediaType": MODEL, "digest": "sha256:../../../etc/passwd"}]}).encode(),
    json.dumps({"layers": [{"mediaType": MODEL, "digest": f"sha256:{'a' * 64}"}]}).encode(),  # no such blob
    json.dumps({"layers": [{"mediaType": MODEL, "digest": ["x"]}]}).encode(),
]


@pytest.mark.parametrize("manifest", BROKEN)
def test_a_damaged_manifest_is_passed_over(home: Path, manifest: bytes) -> None:
    root = home / ".ollama" / "models"
    in_ollama(root, "good", b"good")
    put(root / "manifests" / "registry.ollama.ai" / "library" / "bad" / "latest", manifest)
    put(root / "manifests" / "stray", manifest)
    assert names(places.ollama_files()) == ["ollama:good:latest"]


def test_a_model_with_an_adapter_is_not_taken_for_its_base(home: Path) -> None:
    in_ollama(home / ".ollama" / "models", "tuned", b"base", more=("adapter",))
    in_ollama(home / ".ollama" / "models", "seeing", b"eyes", more=("projector", "template"))
    assert names(places.ollama_files()) == ["ollama:seeing:latest"]


def test_broken_links_circles_and_forbidden_folders_are_passed_over(home: Path) -> None:
    snapshot = hf_cached(home, "me/M", {"m-Q8_0.gguf": b"1", "gone-Q4_0.gguf": b"2"})
    (snapshot / "gone-Q4_0.gguf").resolve().unlink()
    put(home / "hf" / "models--me--M" / "refs" / "dangling", b"3" * 40)
    put(home / "hf" / "models--no-repository", b"a file")
    own = put(home / "models" / "me" / "R" / "r.gguf")
    (own.parent / "again").symlink_to(home / "models")
    (own.parent / "self.gguf").symlink_to(own.parent / "self.gguf")
    (home / "models" / "folder.gguf").mkdir()
    os.mkfifo(home / "models" / "pipe.gguf")
    closed = home / "models" / "closed"
    put(closed / "secret.gguf")
    closed.chmod(0)
    try:
        found = {file.path for file in places.all_files()}
    finally:
        closed.chmod(0o700)
    # Root may look into closed folders.
    assert found - {closed / "secret.gguf"} == {own, snapshot / "m-Q8_0.gguf"}


def test_a_linked_folder_is_whose_it_really_is(home: Path) -> None:
    models = home / "models"
    studio = in_lmstudio(home, "pub/R-GGUF", "R-Q4_K_M.gguf", b"1")
    outside, loose = put(home / "out" / "o.gguf", b"2"), put(home / "loose.gguf", b"3")
    own = put(models / "me" / "R" / "r.gguf", b"4")
    (models / "pub").symlink_to(studio.parent.parent)
    (models / "lm").symlink_to(home / ".lmstudio" / "models")
    (models / "linkdir").symlink_to(outside.parent)
    (models / "again").symlink_to(own.parent)
    (models / "loose.gguf").symlink_to(loose)
    assert {(file.path, file.place) for file in places.own_files()} == {
        (models / "again" / "r.gguf", "pagedrun"),  # each folder is gone through once
        (models / "linkdir" / "o.gguf", "elsewhere"),
        (models / "loose.gguf", "pagedrun"),  # only the link is
    }
    assert hub.locate("hf:pub/R-GGUF:Q4_K_M").path == studio
    assert places.keeper(models / "pub" / "R-GGUF" / "R-Q4_K_M.gguf") == "lmstudio"
    assert places.keeper(models / ".." / "loose.gguf") == "elsewhere"


def test_a_folder_inside_anothers_is_its_owners(home: Path) -> None:
    disk = home / "models" / "studio"
    put(home / ".lmstudio" / "settings.json", json.dumps({"downloadsFolder": str(disk)}).encode())
    put(disk / "me" / "R" / "r-Q8_0.gguf")
    assert [(file.place, file.name) for file in places.all_files()] == [("lmstudio", "hf:me/R:Q8_0")]


def test_thousands_of_files_are_listed_each_once(home: Path) -> None:
    for number in range(3000):
        put(home / "models" / f"m{number:04d}.gguf", b"")
    assert names(places.own_files()) == [f"m{number:04d}.gguf" for number in range(3000)]
