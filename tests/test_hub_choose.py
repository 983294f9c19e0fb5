"""Which files of a repository are meant, and what is said where that is not what was asked for."""

from __future__ import annotations

import pytest

from pagedrun.errors import DownloadError, UsageError
from pagedrun.hub.choose import Choice, choose, projector
from pagedrun.hub.reference import HubReference
from pagedrun.hub.remote import RemoteFile, Repository


def repository(*paths: str) -> Repository:
    files = tuple(RemoteFile(path=path, size=1 << 30, sha256="0" * 64) for path in paths)
    return Repository(name="o/r", commit="c" * 40, files=files, license=None)


def chosen(*paths: str, quant: str | None = None, file: str | None = None) -> Choice:
    return choose(repository(*paths), HubReference("o/r", None, quant, file))


def refusal(*paths: str, quant: str | None = None, file: str | None = None) -> DownloadError:
    with pytest.raises(DownloadError) as caught:
        chosen(*paths, quant=quant, file=file)
    return caught.value


@pytest.mark.parametrize(
    ("paths", "wanted", "says"),
    [
        (["M-Q8_0.gguf", "M-Q4_K_M.gguf", "README.md", "mmproj-M-F16.gguf"], "M-Q4_K_M.gguf", ""),
        (["M-UD-Q4_K_M.gguf", "M-Q4_K_M.gguf"], "M-Q4_K_M.gguf", ""),
        (["M-UD-Q4_K_M.gguf", "M-Q4_K_S.gguf"], "M-UD-Q4_K_M.gguf", ""),
        (["M-Q8_0.gguf", "M-Q4_K_S.gguf", "M-BF16.gguf"], "M-Q4_K_S.gguf", "it has no Q4_K_M; Q4_K_S is the nearest"),
        (["M-Q3_K_M.gguf", "M-Q5_K_M.gguf"], "M-Q5_K_M.gguf", "Q5_K_M is the nearest"),
        (["M-MXFP4.gguf"], "M-MXFP4.gguf", "MXFP4 is all there is"),
        (["model.gguf"], "model.gguf", ""),
        (["model.gguf", "model-Q8_0.gguf"], "model-Q8_0.gguf", "Q8_0 is all there is"),
        (["Q4_K_M/weights.gguf", "Q8_0/weights.gguf"], "Q4_K_M/weights.gguf", ""),
        (["M-Q4_K_M.gguf", "M.imatrix.gguf", "imatrix-Q4_K_M.gguf"], "M-Q4_K_M.gguf", ""),
    ],
)
def test_without_a_quantisation_it_is_the_usual_one_or_the_nearest(paths: list[str], wanted: str, says: str) -> None:
    found = chosen(*paths)
    assert found.first == wanted
    assert says in found.remark and bool(says) == bool(found.remark)


def test_what_was_asked_for_comes_or_nothing() -> None:
    paths = ["M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-UD-Q2_K_XL.gguf"]
    assert chosen(*paths, quant="q8_0").first == "M-Q8_0.gguf"
    assert chosen(*paths, quant="Q2_K_XL").first == "M-UD-Q2_K_XL.gguf"
    error = refusal(*paths, quant="Q5_K_M")
    assert error.message == "o/r has no Q5_K_M"
    assert "Q4_K_M (1.0 GiB), Q8_0 (1.0 GiB), UD-Q2_K_XL (1.0 GiB)" in error.hint


def test_a_split_model_is_all_its_parts_in_order() -> None:
    parts = [f"Q4_K_M/M-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    found = chosen(*reversed(parts), "M-Q8_0.gguf")
    assert [f.path for f in found.files] == parts and found.size == 3 << 30 and found.quant == "Q4_K_M"
    assert chosen(*parts, file=parts[1]).first == parts[0]
    assert chosen(*parts[:2], "M-Q8_0.gguf").first == "M-Q8_0.gguf"  # a model with a hole is none
    assert "all parts" in refusal(*parts[:2], file=parts[0]).message


def test_a_split_model_that_lacks_parts_is_said_to() -> None:
    parts = [f"M-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 3)]
    error = refusal(*parts, "M-Q8_0.gguf", quant="q4_k_m")
    assert error.message == "o/r lacks parts of its Q4_K_M: 2 of 3 are there"
    assert error.hint == "there is: Q8_0 (1.0 GiB)"
    assert chosen(*parts, "M-Q8_0.gguf").remark == "its Q4_K_M lacks parts; Q8_0 is all there is"
    error = refusal(*parts)
    assert error.message == "o/r lacks parts of its model: 2 of 3 are there" and "search r" in error.hint


def test_a_file_is_found_by_its_path_or_its_name_alone() -> None:
    paths = ["sub/M-Q8_0.gguf", "M-Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert chosen(*paths, file="sub/M-Q8_0.gguf").first == "sub/M-Q8_0.gguf"
    assert chosen(*paths, file="M-Q8_0.gguf").first == "sub/M-Q8_0.gguf"
    assert chosen(*paths, file="mmproj-F16.gguf").first == "mmproj-F16.gguf"
    assert "hf:o/r/sub/M-Q8_0.gguf" in refusal(*paths, file="M-Q8.gguf").hint
    with pytest.raises(UsageError, match="not a GGUF file"):
        chosen(*paths, file="README.md")


def test_several_models_of_one_quantisation_have_to_be_told_apart() -> None:
    for more in ({}, {"quant": "Q4_K_M"}):
        error = refusal("A-Q4_K_M.gguf", "B-Q4_K_M.gguf", **more)
        assert "2 models" in error.message
        assert "\n  hf:o/r/A-Q4_K_M.gguf\n  hf:o/r/B-Q4_K_M.gguf" in error.hint
    many = refusal(*(f"{n}-Q4_K_M.gguf" for n in range(40)))
    assert many.hint.endswith("and 28 more")


def test_a_repository_without_models_says_what_to_do() -> None:
    assert "pagedrun quantize hf:o/r" in refusal("model.safetensors", "config.json").hint
    error = refusal("README.md", "mmproj-F16.gguf", "M.imatrix.gguf")
    assert error.message == "o/r holds no model, only what goes with one: mmproj-F16.gguf, M.imatrix.gguf"
    assert "pagedrun search r" in error.hint
    assert refusal("README.md").message == refusal().message == "o/r holds no GGUF file"


@pytest.mark.parametrize("path", [".M-Q4_K_M.gguf", ".cache/M-Q4_K_M.gguf", "M\n-Q4_K_M.gguf", "../M-Q4_K_M.gguf"])
def test_a_name_that_no_file_may_have_here_is_refused_by_name(path: str) -> None:
    there = Repository(name="o/r", commit="c" * 40, files=(), license=None, unusable=(".gitattributes", path))
    for file in (None, path):
        with pytest.raises(DownloadError, match="no file may be called so here") as caught:
            choose(there, HubReference("o/r", None, None, file))
        assert repr(path) in caught.value.message and "search r" in caught.value.hint


def test_the_image_part_is_the_exact_one_every_version_reads() -> None:
    paths = ["M-Q4_K_M.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj.txt"]
    assert projector(repository(*paths)).path == "mmproj-F16.gguf"
    assert projector(repository("mmproj-model.gguf")).path == "mmproj-model.gguf"
    with pytest.raises(DownloadError, match="no image part"):
        projector(repository("M-Q4_K_M.gguf"))
