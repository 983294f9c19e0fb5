"""What a name means when something is to be deleted, what goes along, and what is only begun."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagedrun.errors import ModelError, ModelNotFoundError
from pagedrun.hub import library, part, record, removal
from pagedrun.hub.unfinished import means, unfinished
from tests.hub_fakes import CONTENT, SHA, make_home, put
from tests.places_fakes import COMMIT, in_lmstudio


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def recorded(path: Path) -> Path:
    found = path.stat()
    source = f"hf:me/R@{COMMIT}"
    record.write(path, record.Record(source, path.name, found.st_size, SHA, True, "2026-01-01", found.st_mtime_ns))
    return path


def remove(name: str) -> int:
    entry = removal.meant(name).entry
    assert entry is not None
    return removal.remove(entry.paths)


def test_removing_takes_all_parts_and_notes_and_leaves_the_neighbours(home: Path) -> None:
    parts = [put(home / "models" / "me" / "S" / f"S-Q8_0-0000{n}-of-00002.gguf") for n in (1, 2)]
    for path in parts:
        recorded(path)
        put(path.with_name(f".{path.name}.checked"))
    neighbour = put(home / "models" / "me" / "N" / "n.gguf")
    assert remove("hf:me/S:Q8_0") == 2 * len(CONTENT)
    assert not (home / "models" / "me" / "S").exists()
    assert remove("hf:me/N") == len(CONTENT)
    assert not neighbour.exists() and os.listdir(home / "models") == []  # noqa: PTH208


def test_removing_a_link_leaves_what_it_leads_to(home: Path) -> None:
    path = put(home / "elsewhere" / "m.gguf")
    link = home / "models" / "m.gguf"
    link.symlink_to(path)
    assert remove("m.gguf") == 0
    assert path.exists() and library.entries() == []
    link.symlink_to(home / "gone.gguf")
    assert remove("m.gguf") == 0 and not link.is_symlink()


def test_the_path_that_was_typed_goes_and_not_the_file_under_another(home: Path) -> None:
    path = put(home / "models" / "me" / "R" / "R-Q8_0.gguf")
    link = home / "models" / "z.gguf"
    for typed in ("z.gguf", str(link), "models/../models/z.gguf", str(home / "same" / "z.gguf")):
        link.symlink_to(path)
        (home / "same").unlink(missing_ok=True)
        (home / "same").symlink_to(home / "models")
        assert remove(typed) == 0
        assert path.exists() and not link.is_symlink(), typed
    (home / "models" / "a.gguf").symlink_to(put(home / "out" / "o.gguf"))
    (home / "models" / "linkdir").symlink_to(home / "out")
    assert removal.meant(str(home / "models" / "linkdir" / "o.gguf")).entry.place == "elsewhere"
    doomed = removal.meant(str(home / "same" / "me" / "R" / "R-Q8_0.gguf"))
    assert (doomed.name, doomed.entry.paths) == ("hf:me/R:Q8_0", (path,))


def test_a_file_with_the_longest_name_goes_with_its_record(home: Path) -> None:
    path = recorded(put(home / "models" / ("m" * 250 + ".gguf")))
    assert record.read(path) is not None
    assert remove(path.name) == len(CONTENT)
    assert os.listdir(home / "models") == []  # noqa: PTH208


def test_what_to_remove_has_to_be_one_model(home: Path) -> None:
    small = put(home / "models" / "me" / "R" / "R-Q4_K_M.gguf", b"1")
    dynamic = put(home / "models" / "me" / "R" / "R-UD-Q4_K_M.gguf", b"2")
    large = put(home / "models" / "me" / "R" / "Q8_0" / "model.gguf", b"3")
    with pytest.raises(ModelError, match="could mean 3 models") as caught:
        removal.meant("hf:me/R")
    assert caught.value.hint == "name one: hf:me/R:Q4_K_M, hf:me/R:Q8_0, hf:me/R:UD-Q4_K_M"
    remove("hf:ME/r:q4_k_m")
    with pytest.raises(ModelNotFoundError, match="hf:me/R:Q4_K_M is not on this machine") as caught:
        removal.meant("hf:me/R:Q4_K_M")  # good enough for chat
    assert caught.value.hint == "there is: hf:me/R:Q8_0, hf:me/R:UD-Q4_K_M"
    assert (small.exists(), dynamic.exists(), large.exists()) == (False, True, True)
    remove("hf:me/R/Q8_0/model.gguf")
    remove("hf:me/R")
    assert os.listdir(home / "models") == []  # noqa: PTH208
    with pytest.raises(ModelNotFoundError):
        removal.meant("hf:me/R")


def test_a_name_as_listed_means_that_model_though_another_is_of_the_same_quantisation(home: Path) -> None:
    put(home / "models" / "me" / "R" / "a-Q8_0.gguf", b"1")
    other = put(home / "models" / "me" / "R" / "b-Q8_0.gguf", b"2")
    with pytest.raises(ModelError, match="could mean 2 models"):
        removal.meant("hf:me/r:q8_0")
    remove("hf:me/R:Q8_0")
    assert [entry.paths for entry in library.entries()] == [(other,)]


def test_the_image_part_goes_with_the_last_model_of_its_repository(home: Path) -> None:
    models = home / "models"
    projector = put(models / "me" / "R" / "mmproj-F16.gguf")
    put(models / "you" / "R" / "mmproj-F16.gguf"), put(models / "mmproj.gguf"), put(models / "flat-Q8_0.gguf", b"0")
    put(models / "me" / "R" / "R-Q8_0.gguf", b"1"), put(models / "me" / "R" / "deep" / "R-Q4_0.gguf", b"2")
    in_lmstudio(home, "me/R", "R-Q2_K.gguf", b"3")
    here = {entry.name: entry for entry in library.entries()}
    last = [here["hf:me/R:Q8_0"], here["hf:me/R:Q4_0"]]
    assert removal.projectors(last[:1]) == removal.projectors([here["flat-Q8_0.gguf"]]) == []
    assert removal.projectors([here["hf:me/R:Q2_K"]]) == []
    assert removal.projectors(last) == [projector]


# --- what is unfinished ---


def begin(home: Path, *finals: str) -> None:
    for final in finals:
        put(home / "models" / ".pull" / final / "part", b"half")


def names_of(typed: str) -> list[str]:
    return [one.name for one in unfinished() if means(typed, one)]


def test_unfinished_files_are_found_by_what_was_typed_for_them(home: Path) -> None:
    begin(
        home, "me/big-GGUF/Big-Q4_K_M.gguf", "me/R/R-Q8_0.gguf", "me/R/deep/S-Q8_0.gguf", "me/R/Q4_0/m.gguf", "u.gguf"
    )
    begin(home, "me/R/mmproj-F16.gguf", "me/W/model.safetensors")
    assert library.entries() == []
    files = ["hf:me/R/deep/S-Q8_0.gguf", "hf:me/R/R-Q8_0.gguf"]
    for typed, found in {
        "BIG": ["big"],
        "hf:me/big-GGUF": ["big"],
        "hf:me/R:q8_0": files,
        "hf:me/R:Q4_0": ["hf:me/R:Q4_0"],
        "hf:me/R": [*files, "hf:me/R:Q4_0"],
        "hf:me/R/R-Q8_0.gguf": files[1:],
        "hf:me/R/mmproj-F16.gguf": ["hf:me/R/mmproj-F16.gguf"],
        "hf:me/W": ["hf:me/W/model.safetensors"],
        "https://example.org/u.gguf": ["u.gguf"],
        "u.gguf": ["u.gguf"],
    }.items():
        assert names_of(typed) == found, typed
    for typed in ("tiny", "hf:me/R:Q4_K_M", "hf:me/R/other.gguf", "hf:me/R/S-Q8_0.gguf", "ollama:big", "R-Q8_0.gguf"):
        assert names_of(typed) == [], typed
    for one in unfinished():
        assert names_of(one.name) == [one.name]
    goes_on = {one.name: one.pull_name for one in unfinished()}
    assert goes_on["big"] == "big" and goes_on["u.gguf"] is goes_on["hf:me/W/model.safetensors"] is None


def test_of_an_unfinished_model_its_whole_parts_count(home: Path) -> None:
    put(home / "models" / "me" / "S" / "S-Q8_0-00001-of-00003.gguf", b"whole one")
    begin(home, "me/S/S-Q8_0-00002-of-00003.gguf", "me/big-GGUF/Big-Q4_K_M.gguf")
    put(home / "models" / "me" / "big-GGUF" / "Big-Q4_K_M.gguf", b"damaged")
    big, split = unfinished()
    assert (split.name, split.size, split.total, split.is_again) == ("hf:me/S:Q8_0", 9 + 4, None, False)
    assert (big.size, big.total, big.is_again) == (4, len(CONTENT), True)


@pytest.mark.parametrize("address", ["https://e.org/u.gguf", "https://me:secret@e.org/u.gguf?key=1"])
def test_how_far_it_is_and_how_it_goes_on_is_noted_beside_the_bytes(home: Path, address: str) -> None:
    final = home / "models" / "u.gguf"
    with part.opened(final, f'"tag" {address}', 4000, print) as so_far:
        so_far.take_up(print)
        so_far.append(b"half")
    (one,) = unfinished()
    assert (one.size, one.total, one.pull_name) == (4, 4000, "https://e.org/u.gguf")
    assert part.discard(final) == 4
    assert os.listdir(home / "models") == []  # noqa: PTH208


def test_two_unfinished_models_are_not_dropped_with_one_name(home: Path) -> None:
    begin(home, "me/R/R-Q8_0.gguf", "me/R/R-Q4_0.gguf")
    with pytest.raises(ModelError, match="could mean 2 models"):
        removal.meant("hf:me/R")
    doomed = removal.meant("hf:me/R:Q4_0")
    assert (doomed.entry, doomed.size) == (None, 4)
    assert doomed.unfinished == (home / "models" / "me" / "R" / "R-Q4_0.gguf",)
