"""What is on this machine: each model once, under a name that finds it; last use, removal, verification."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from pagedrun import hub
from pagedrun.errors import ModelFileError, ModelNotFoundError
from pagedrun.hub import library, record
from pagedrun.hub.library import Entry
from pagedrun.hub.verify import Verdict, explained, verify
from tests.gguf_bytes import gguf_bytes, tensor
from tests.hub_fakes import CONTENT, SHA, make_home, put
from tests.places_fakes import COMMIT, hf_cached, in_lmstudio, in_ollama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def only() -> Entry:
    (entry,) = library.entries()
    return entry


def recorded(path: Path, sha256: str = SHA, source: str = f"hf:me/R@{COMMIT}") -> Path:
    found = path.stat()
    record.write(path, record.Record(source, path.name, found.st_size, sha256, True, "2026-01-01", found.st_mtime_ns))
    return path


def fill(home: Path) -> None:
    """Every kind of file in every place, with as many namesakes as there can be."""
    put(home / "models" / "Tiny.gguf")
    put(home / "models" / "flat.gguf", b"1")
    put(home / "models" / "me" / "R" / "R-Q8_0.gguf", b"2")
    put(home / "models" / "me" / "R" / "sub" / "R-Q8_0.gguf", b"3")
    put(home / "models" / "me" / "R" / "plain.gguf", b"4")
    put(home / "models" / "odd name" / "R" / "x-Q8_0.gguf", b"5")
    put(home / "models" / "one" / "deep.gguf", b"6")
    put(home / "models" / "me" / "big-GGUF" / "Big-Q4_K_M.gguf")
    put(home / "models" / "me" / "R" / "mmproj-R-F16.gguf", b"7")
    for part in (1, 2):
        put(home / "models" / "me" / "S" / f"S-Q4_K_M-0000{part}-of-00002.gguf", b"part %d" % part)
    put(home / "models" / "me" / "T" / "T-Q4_K_M-00002-of-00002.gguf", b"lacks the first")
    hf_cached(home, "me/R", {"R-Q8_0.gguf": b"8", "R-UD-Q4_K_M.gguf": b"9", "sub/plain.gguf": b"10"})
    hf_cached(home, "me/R", {"R-Q8_0.gguf": b"8", "R-Q4_K_M.gguf": b"11"}, commit="2" * 40, ref="old")
    in_lmstudio(home, "me/R", "R-Q4_K_M.gguf", b"12")
    in_lmstudio(home, "ME/r", "R-q5_k_m.gguf", b"13")
    in_ollama(home / ".ollama" / "models", "llama3.1:8b", b"14")
    in_ollama(home / ".ollama" / "models", "other:8b", b"14")
    in_ollama(home / ".ollama" / "models", "we ird:8b", b"15")
    (home / "models" / "link.gguf").symlink_to(home / "models" / "flat.gguf")


def test_every_model_has_one_name_which_finds_it(home: Path) -> None:
    fill(home)
    here = library.entries()
    names = [entry.name for entry in here]
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=str.casefold)
    for entry in here:
        assert hub.locate(entry.name).path == entry.paths[0], entry
        assert library.find(entry.name) == entry
        assert library.find(str(entry.paths[-1])) == entry
    assert {n for n in names if not n.startswith("/")} == {
        "big",
        "flat.gguf",
        "hf:ME/r:Q5_K_M",
        "hf:me/R/plain.gguf",
        "hf:me/R/sub/plain.gguf",
        "hf:me/R/sub/R-Q8_0.gguf",
        "hf:me/R@11111111:Q8_0",
        "hf:me/R:Q4_K_M",
        "hf:me/R:Q8_0",
        "hf:me/R:UD-Q4_K_M",
        "hf:me/S:Q4_K_M",
        "ollama:llama3.1:8b",
        "tiny",
    }


def test_an_older_revision_in_the_cache_is_named_by_its_commit(home: Path) -> None:
    new = hf_cached(home, "me/R", {"R-Q8_0.gguf": b"1", "plain.gguf": b"2", "a-Q4_0.gguf": b"same"})
    old = hf_cached(
        home,
        "me/R",
        {"R-Q8_0.gguf": b"3", "plain.gguf": b"4", "a-Q4_0.gguf": b"same", "b-Q4_0.gguf": b"5"},
        commit="2" * 40,
        ref="old",
    )
    names = {entry.name: entry.paths[0] for entry in library.entries()}
    assert names == {
        "hf:me/R:Q4_0": new / "a-Q4_0.gguf",
        "hf:me/R:Q8_0": new / "R-Q8_0.gguf",
        "hf:me/R/plain.gguf": new / "plain.gguf",
        "hf:me/R/b-Q4_0.gguf": old / "b-Q4_0.gguf",
        "hf:me/R@22222222:Q8_0": old / "R-Q8_0.gguf",
        "hf:me/R@22222222/plain.gguf": old / "plain.gguf",
    }
    for name, path in names.items():
        assert hub.locate(name).path == path


def test_a_split_model_is_one_and_a_file_seen_twice_too(home: Path) -> None:
    hf_cached(home, "me/S", {f"S-Q8_0-0000{n}-of-00002.gguf": b"%d" % n for n in (1, 2)}, commit="2" * 40, ref="old")
    snapshot = hf_cached(home, "me/S", {f"S-Q8_0-0000{n}-of-00002.gguf": b"%d" % n for n in (1, 2)})
    entry = only()
    assert entry.paths == tuple(snapshot / f"S-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2))
    assert (entry.size, entry.place, entry.name) == (2, "huggingface", "hf:me/S:Q8_0")
    assert entry.sha256 == tuple(hashlib.sha256(b"%d" % n).hexdigest() for n in (1, 2))


def test_a_file_in_no_known_folder_is_found_by_its_path(home: Path) -> None:
    path = put(home / "elsewhere" / "m.gguf")
    assert library.entries() == []
    assert (library.find(str(path)).place, library.find(str(path)).paths) == ("elsewhere", (path,))
    projector = put(home / "models" / "mmproj.gguf")
    assert (library.find("mmproj.gguf").place, library.find("mmproj.gguf").paths) == ("pagedrun", (projector,))
    with pytest.raises(ModelNotFoundError):
        library.find("nothing.gguf")
    with pytest.raises(ModelNotFoundError) as caught:
        library.find("big")
    assert caught.value.hint == "what is here: pagedrun list"


@pytest.mark.parametrize("name", ["/", "/dev/null", "/dev/zero", "./models"])
def test_what_is_no_file_is_no_model(name: str) -> None:
    with pytest.raises(ModelFileError):
        library.find(name)


def test_last_use_is_that_of_the_file_whatever_it_was_called(home: Path) -> None:
    path = put(home / "models" / "Tiny.gguf")
    assert only().last_used is None
    (home / "link.gguf").symlink_to(path)
    library.remember_use(home / "link.gguf")
    used = only().last_used
    assert used is not None and 0 <= time.time() - used < 60
    assert os.listdir(home / "state") == ["used.json"]  # noqa: PTH208


@pytest.mark.parametrize("spoilt", [b"", b"[]", b'{"a": "b"}', b'{"a": []}', b"\xff", b"[" * 100_000])
def test_a_spoilt_memory_of_uses_is_none(home: Path, spoilt: bytes) -> None:
    path = put(home / "models" / "Tiny.gguf")
    put(home / "state" / "used.json", spoilt)
    assert only().last_used is None
    library.remember_use(path)
    assert only().last_used is not None


def test_uses_are_forgotten_in_the_end_and_a_closed_state_folder_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / "state" / "used.json", json.dumps({f"/m{n}": n for n in range(600)}).encode())
    library.remember_use(home / "m.gguf")
    used = json.loads((home / "state" / "used.json").read_text())
    assert len(used) == 500 and "/m599" in used and "/m0" not in used and str(home / "m.gguf") in used
    monkeypatch.setenv("PAGEDRUN_STATE", str(put(home / "file") / "state"))
    library.remember_use(home / "m.gguf")


def test_a_full_disk_leaves_no_file_that_was_begun(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    library.remember_use(home / "m.gguf")
    assert not list((home / "state").iterdir())


# --- verification ---


def checked(entry: Entry) -> Verdict:
    return verify(entry, lambda done, total: None)


def test_a_file_is_compared_with_whoever_knows_its_checksum(home: Path) -> None:
    put(home / "models" / "Tiny.gguf")
    pulled = gguf_bytes(data=3)
    recorded(put(home / "models" / "me" / "R" / "R-Q8_0.gguf", pulled), hashlib.sha256(pulled).hexdigest())
    hf_cached(home, "me/C", {"C-Q8_0.gguf": gguf_bytes(data=1)})
    in_ollama(home / ".ollama" / "models", "o", gguf_bytes(data=2))
    said = {entry.name: checked(entry) for entry in library.entries()}
    assert all(verdict.good and verdict.hashed for verdict in said.values())
    assert {name: verdict.detail for name, verdict in said.items()} == {
        "tiny": "sha256 as the registry says",
        "hf:me/C:Q8_0": "sha256 as the Hugging Face cache says",
        "hf:me/R:Q8_0": f"sha256 as hf:me/R@{COMMIT} says",
        "ollama:o:latest": "sha256 as Ollama says",
    }


def test_a_changed_byte_is_found_and_the_file_no_longer_trusted(home: Path) -> None:
    path = recorded(put(home / "models" / "me" / "R" / "R-Q8_0.gguf"))
    when = path.stat().st_mtime_ns
    path.write_bytes(CONTENT[:-1] + b"?")
    os.utime(path, ns=(when, when))  # a disk that forgets does not change the time
    for _ in range(2):  # it stays bad
        verdict = checked(only())
        assert not verdict.good and SHA in verdict.detail
    assert record.read(path) is None
    assert path.exists()


def test_a_touched_file_is_hashed_and_then_trusted_again(home: Path) -> None:
    path = recorded(put(home / "models" / "me" / "R" / "R-Q8_0.gguf"))
    os.utime(path, ns=(1, 1))
    assert record.read(path) is None
    assert checked(only()).good
    assert record.read(path) is not None


def test_a_file_cut_short_is_bad_before_it_is_hashed(home: Path) -> None:
    path = recorded(put(home / "models" / "me" / "R" / "R-Q8_0.gguf"))
    put(path, CONTENT[:100])
    assert checked(only()).detail == "R-Q8_0.gguf has 100 B, and had 10.0 KiB when it was fetched"


def test_what_was_published_damaged_is_bad_though_its_checksum_is_right(home: Path) -> None:
    broken = gguf_bytes([], [tensor("t", [64])], data=200)
    sha256 = hashlib.sha256(broken).hexdigest()
    path = recorded(put(home / "models" / "me" / "R" / "R-Q8_0.gguf", broken), sha256)
    verdict = checked(only())
    assert (verdict.good, verdict.hashed, verdict.published) == (False, True, True)
    assert verdict.detail.startswith("as published, but damaged: ")
    assert record.read(path) is not None  # it is what it should be
    for hint, shown in (
        ("fetch the file again", "it is so in hf:me/R, too"),
        ("run again with -v", "run again with -v"),
    ):
        with pytest.raises(ModelFileError) as caught, explained(path):
            raise ModelFileError("it is damaged", hint=hint)
        assert shown in caught.value.hint


def test_without_a_checksum_the_structure_is_looked_at(home: Path) -> None:
    whole = gguf_bytes([], [tensor("t", [64])], data=256)
    path = put(home / "models" / "m.gguf", whole)
    verdict = checked(only())
    assert verdict.good and not verdict.hashed and "no checksum is known" in verdict.detail
    put(path, whole[:-100])
    assert not checked(only()).good
    put(path, b"nonsense")
    assert "is not a GGUF file" in checked(only()).detail


def test_a_missing_part_is_bad(home: Path) -> None:
    put(home / "models" / "S-Q8_0-00001-of-00002.gguf")
    assert "1 of 2 parts of the model are missing" in checked(only()).detail
    put(home / "models" / "S-Q8_0-00001-of-00002.gguf").rename(home / "models" / "S-Q8_0-00002-of-00002.gguf")
    assert "is part 2 of 2" in checked(only()).detail


def test_progress_counts_all_parts(home: Path) -> None:
    for number in (1, 2):
        part = put(home / "models" / "me" / "S" / f"S-Q8_0-0000{number}-of-00002.gguf", gguf_bytes(data=9))
        recorded(part, hashlib.sha256(gguf_bytes(data=9)).hexdigest())
    seen: list[tuple[int, int]] = []
    assert verify(only(), lambda done, total: seen.append((done, total))).good
    n_bytes = len(gguf_bytes(data=9))
    assert seen == [(n_bytes, 2 * n_bytes), (2 * n_bytes, 2 * n_bytes)]
