"""Finding model files by what people type: paths, names, what was used last, the Hugging Face cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun import hub
from pagedrun.errors import ModelFileError, ModelNotFoundError, UsageError
from tests.hub_fakes import CONTENT, make_home, put
from tests.places_fakes import COMMIT, hf_cached, in_lmstudio, in_ollama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


# --- paths and names ---


def test_a_path_is_itself_absolute_relative_or_in_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(home / "sub" / "m.gguf", b"GGUF")
    monkeypatch.setenv("HOME", str(home))
    for name in (str(path), "sub/m.gguf", "./sub/m.gguf", "~/sub/m.gguf"):
        found = hub.locate(name)
        assert (found.path, found.spec, found.origin) == (path, None, "named")
    monkeypatch.chdir(path.parent)
    assert hub.locate("m.gguf").path == path


def test_a_bare_file_name_is_also_looked_for_in_the_models_folder(home: Path) -> None:
    path = put(home / "models" / "m.gguf", b"GGUF")
    assert hub.locate("m.gguf").path == path


def test_a_file_without_suffix_counts_when_no_model_has_that_name(home: Path) -> None:
    path = put(home / "weights", b"GGUF")
    assert hub.locate("weights").path == path
    put(home / "big", b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"big .* is not on this machine"):
        hub.locate("big")


def test_a_registry_file_keeps_its_settings_wherever_it_lies(home: Path) -> None:
    path = put(home / "elsewhere" / "Big-Q4_K_M.gguf")
    found = hub.locate(str(path))
    assert found.spec is not None and found.spec.name == "big"
    put(path, CONTENT + b"x")  # the same name with other bytes is another model
    assert hub.locate(str(path)).spec is None


def test_an_absent_path_suggests_its_neighbour(home: Path) -> None:
    path = put(home / "SmolLM2.gguf")
    with pytest.raises(ModelNotFoundError, match="there is no file") as caught:
        hub.locate("./SmolLM.gguf")
    assert str(path) in caught.value.hint


def test_a_link_to_what_is_gone_is_said_to_be_one(home: Path) -> None:
    link = home / "models" / "m.gguf"
    link.symlink_to(home / "gone.gguf")
    for name in ("m.gguf", str(link)):
        with pytest.raises(ModelNotFoundError) as caught:
            hub.locate(name)
        assert caught.value.hint == f"it is a link to {home / 'gone.gguf'}, which is not there"


def test_a_name_means_its_file_in_the_models_folder(home: Path) -> None:
    path = put(home / "models" / "Tiny.gguf")
    found = hub.locate("TINY")
    assert (found.path, found.name) == (path, "tiny")


def test_an_absent_model_says_its_size_and_where_to_put_it(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"big \(big, 10.0 KiB\) is not on this machine") as caught:
        hub.locate("big")
    assert caught.value.hint == "get it with: pagedrun pull big"
    with pytest.raises(ModelNotFoundError) as caught:
        hub.locate("tiny")
    assert caught.value.hint == "run: pagedrun setup"


def test_a_truncated_registry_file_is_refused_with_both_sizes(home: Path) -> None:
    put(home / "models" / "Tiny.gguf", CONTENT[:100])
    with pytest.raises(ModelFileError, match="has 100 bytes, and tiny has 10,244"):
        hub.locate("tiny")


def test_a_typo_gets_suggestions() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        hub.locate("tiney")
    assert "tiny" in caught.value.hint
    with pytest.raises(UsageError):
        hub.locate("")


# --- nothing typed ---


def test_without_a_name_it_is_the_default_then_the_one_used_last(home: Path) -> None:
    put(home / "models" / "Tiny.gguf")
    found = hub.locate(None)
    assert (found.name, found.origin) == ("tiny", "default")
    hub.remember(found)
    assert hub.locate(None).origin == "default"  # the default does not become a choice by being used
    other = put(home / "other.gguf")
    hub.remember(hub.locate("other.gguf"))
    found = hub.locate(None)
    assert (found.path, found.origin) == (other, "last")
    other.unlink()
    assert hub.locate(None).origin == "default"


def test_a_spoilt_memory_is_no_memory(home: Path) -> None:
    put(home / "models" / "Tiny.gguf")
    for content in (b"", b"\xff\xfe", b"hf:nonsense", b"   \n"):
        (home / "state" / "last-model").write_bytes(content)
        assert hub.locate(None).origin == "default"


def test_remembering_where_nothing_can_be_written_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "other.gguf")
    monkeypatch.setenv("PAGEDRUN_STATE", str(home / "other.gguf" / "state"))
    hub.remember(hub.locate("other.gguf"))
    assert not (home / "state" / "last-model").exists()


# --- the Hugging Face cache ---


def cached(home: Path, repo: str, *files: str) -> Path:
    return hf_cached(home, repo, {file: file.encode() for file in files})


def test_a_cached_repository_gives_the_quantisation_asked_for(home: Path) -> None:
    folder = cached(home, "me/M-GGUF", "M-Q8_0.gguf", "M-UD-Q4_K_M.gguf", "mmproj-M-F16.gguf")
    assert hub.locate("hf:me/M-GGUF:q8_0").path == folder / "M-Q8_0.gguf"
    assert hub.locate("hf:me/M-GGUF").path == folder / "M-UD-Q4_K_M.gguf"
    assert hub.locate("hf:me/M-GGUF:UD-Q4_K_M").path == folder / "M-UD-Q4_K_M.gguf"
    with pytest.raises(ModelNotFoundError, match="not as Q5_K_M") as caught:
        hub.locate("hf:me/M-GGUF:Q5_K_M")
    assert "Q4_K_M" in caught.value.hint and "Q8_0" in caught.value.hint and "F16" not in caught.value.hint


def test_a_single_file_needs_no_quantisation(home: Path) -> None:
    folder = cached(home, "me/M-GGUF", "M-IQ3_XXS.gguf")
    assert hub.locate("hf:me/M-GGUF").path == folder / "M-IQ3_XXS.gguf"


def test_a_split_model_is_its_first_part_in_the_snapshot(home: Path) -> None:
    folder = cached(home, "me/M-GGUF", "Q4_K_M/M-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/M-Q4_K_M-00002-of-00002.gguf")
    assert hub.locate("hf:me/M-GGUF:Q4_K_M").path == folder / "Q4_K_M" / "M-Q4_K_M-00001-of-00002.gguf"


def test_an_uncached_repository_says_how_to_get_it(home: Path) -> None:
    for name in ("hf:me/none", "hf:me/none:Q8_0"):
        with pytest.raises(ModelNotFoundError, match="no GGUF file of me/none"):
            hub.locate(name)
    (home / "hf").rmdir()
    with pytest.raises(ModelNotFoundError, match="no GGUF file of me/none"):
        hub.locate("hf:me/none")
    with pytest.raises(UsageError):
        hub.locate("hf:justaname")


def test_a_registry_model_is_found_in_the_cache(home: Path) -> None:
    folder = hf_cached(home, "me/big-GGUF", {"Big-Q4_K_M.gguf": CONTENT})
    found = hub.locate("big")
    assert (found.path, found.name) == (folder / "Big-Q4_K_M.gguf", "big")
    found = hub.locate("hf:me/big-GGUF")
    assert found.spec is not None and found.spec.name == "big"


def test_other_bytes_of_the_same_name_and_size_are_not_the_registrys(home: Path) -> None:
    hf_cached(home, "me/big-GGUF", {"Big-Q4_K_M.gguf": CONTENT[:-1] + b"?"})
    with pytest.raises(ModelNotFoundError, match=r"big .* is not on this machine"):
        hub.locate("big")


def test_a_revision_is_a_commit_or_a_branch_that_points_to_it(home: Path) -> None:
    old = hf_cached(home, "me/M-GGUF", {"M-Q8_0.gguf": b"old"}, commit="2" * 40, ref="v1")
    new = cached(home, "me/M-GGUF", "M-Q8_0.gguf")
    assert hub.locate("hf:me/M-GGUF:Q8_0").path == new / "M-Q8_0.gguf"
    for revision, folder in ((COMMIT, new), ("main", new), ("v1", old), ("2" * 40, old)):
        assert hub.locate(f"hf:me/M-GGUF@{revision}:Q8_0").path == folder / "M-Q8_0.gguf"
    with pytest.raises(ModelNotFoundError):
        hub.locate("hf:me/M-GGUF@v2:Q8_0")


def test_a_file_can_be_named_a_projector_too(home: Path) -> None:
    folder = cached(home, "me/M-GGUF", "sub/M-Q8_0.gguf", "mmproj-M-F16.gguf")
    for name in ("sub/M-Q8_0.gguf", "mmproj-M-F16.gguf"):
        assert hub.locate(f"hf:me/M-GGUF/{name}").path == folder / name
        assert hub.locate(f"https://huggingface.co/me/M-GGUF/resolve/main/{name}").path == folder / name
    with pytest.raises(ModelNotFoundError, match=r"not as other.gguf"):
        hub.locate("hf:me/M-GGUF/other.gguf")


def test_without_a_quantisation_the_only_one_counts_else_they_are_listed(home: Path) -> None:
    folder = cached(home, "me/M-GGUF", "M-Q6_K.gguf", "extra-Q6_K.gguf")
    assert hub.locate("hf:me/M-GGUF").path == folder / "M-Q6_K.gguf"
    in_lmstudio(home, "me/M-GGUF", "M-Q2_K.gguf", b"q2")
    with pytest.raises(ModelNotFoundError, match="not as Q4_K_M") as caught:
        hub.locate("hf:me/M-GGUF")
    assert caught.value.hint == "there is: Q2_K, Q6_K"


# --- what is not there ---


def test_names_of_what_is_here_are_suggested_too(home: Path) -> None:
    in_ollama(home / ".ollama" / "models", "llama3.1:8b", b"x")
    in_lmstudio(home, "me/Zephyr-GGUF", "zephyr-Q8_0.gguf", b"y")
    for typed, suggested in (("llama3.1:8b", "ollama:llama3.1:8b"), ("zephyr-gguf", "hf:me/Zephyr-GGUF:Q8_0")):
        with pytest.raises(ModelNotFoundError) as caught:
            hub.locate(typed)
        assert suggested in caught.value.hint
    with pytest.raises(ModelNotFoundError) as caught:
        hub.locate("me/Zephyr-GGUF")
    assert caught.value.hint == "for a repository on the hub type hf:me/Zephyr-GGUF"


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/m.gguf", "a/" * 3000 + "m.gguf", "\0.gguf"])
def test_what_cannot_be_a_path_is_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        hub.locate(name)
