"""What speaks against a quantisation, and what is only remarked: from names, headers and llama.cpp's plan."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from pagedrun.cli import main
from pagedrun.errors import UsageError
from pagedrun.quantize import beforehand, checks, job, source
from pagedrun.quantize.source import GgufSource
from tests.hub_fakes import make_home, put
from tests.quantize_fakes import legacy_imatrix, make_gguf, plan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def options(type_name: str = "Q4_K_M", **more: object) -> job.Options:
    return job.Options(type=type_name, threads=1, **more)  # type: ignore[arg-type]


def model(path: Path, *, architecture: str = "llama") -> GgufSource:
    """Rows of 64 numbers; three experts in one tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    shapes = {"token_embd": (4, 64), "output": (4, 64), "blk.0.attn_q": (2, 64), "blk.0.ffn_up_exps": (3, 2, 64)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufSource((path,), path.stem)


BEFORE = dict.fromkeys(("token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"), "F16")


def all_become(kind: str, **more: object) -> checks.Plan:
    return plan(BEFORE, dict.fromkeys(BEFORE, kind), **more)


# --- rows and blocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["keep_output", "embedding_type"])
def test_a_type_whose_blocks_no_row_holds_is_refused(home: Path, option: str) -> None:
    found = model(home / "m.gguf")
    checks.require_whole_blocks(found, options(**{option: "Q8_0"}))
    with pytest.raises(UsageError, match=r"Q6_K holds numbers by 256, and a row of \S+ has 64") as caught:
        checks.require_whole_blocks(found, options(**{option: "Q6_K"}))
    assert "Q8_0" in caught.value.hint
    checks.require_whole_blocks(found, options(keep_output="source"))
    checks.require_whole_blocks(GgufSource((make_gguf(home / "without.gguf"),), "m"), options(**{option: "Q6_K"}))


# --- importance matrices -----------------------------------------------------------------------------------------


def with_matrix(home: Path, lengths: dict[str, int]) -> Path:
    return put(home / "i.dat", legacy_imatrix({name: (1, [1.0] * n) for name, n in lengths.items()}))


def test_a_matrix_of_this_model(home: Path) -> None:
    found = model(home / "m.gguf")
    # As llama-imatrix makes them: nothing for embeddings and output; something for each expert.
    matrix = with_matrix(home, {"blk.0.attn_q.weight": 64, "blk.0.ffn_up_exps.weight": 192})
    assert checks.objection(found, all_become("IQ2_S", needs_imatrix=True), options("IQ2_M", imatrix=matrix)) is None


@pytest.mark.parametrize(
    ("lengths", "kind", "text"),
    [
        ({"blk.0.attn_q.weight": 32}, "Q4_K", "another model: 32 values for blk.0.attn_q.weight, which needs 64"),
        ({"blk.0.ffn_up_exps.weight": 64}, "Q4_K", "64 values for blk.0.ffn_up_exps.weight, which needs 192"),
        ({"blk.0.attn_q.weight": 64}, "IQ2_S", "has nothing for blk.0.ffn_up_exps.weight"),
        ({"other.weight": 64}, "Q4_K", "has nothing for blk.0.attn_q.weight"),
        ({"blk.0.attn_q.weight": 64}, "Q2_K", ""),
    ],
)
def test_a_matrix_of_another_model(home: Path, lengths: dict[str, int], kind: str, text: str) -> None:
    matrix = with_matrix(home, lengths)
    problem = checks.objection(model(home / "m.gguf"), all_become(kind), options(imatrix=matrix))
    assert text in problem.message if problem else not text


def test_q2_k_needs_one_in_q2_k_s_only(home: Path) -> None:
    matrix = with_matrix(home, {"blk.0.attn_q.weight": 64})
    problem = checks.objection(model(home / "m.gguf"), all_become("Q2_K"), options("Q2_K_S", imatrix=matrix))
    assert problem is not None


def test_the_type_that_needs_a_matrix_is_named(home: Path) -> None:
    found = model(home / "m.gguf")
    chosen = options(tensor_types=(("ffn_up", "IQ1_S"),))
    problem = checks.objection(found, all_become("IQ1_S", needs_imatrix=True), chosen)
    assert problem is not None
    assert problem.message.startswith("IQ1_S needs an importance matrix")


def test_a_damaged_matrix_is_one_error(
    home: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    make_gguf(home / "m.gguf")
    put(home / "i.dat", legacy_imatrix({"w": (3, [float("inf"), 3e38])}))
    assert main.run(["quantize", "m.gguf", "--imatrix", "i.dat"]) == 1
    assert "not all finite" in capfd.readouterr().err
    assert not recwarn.list


# --- what needs a model that talks -------------------------------------------------------------------------------


def test_embeddings_are_not_compared_by_text(home: Path) -> None:
    checks.require_text_model(model(home / "m.gguf"), "--check")
    with pytest.raises(
        UsageError, match=r"--check needs a model that generates text, and b\.gguf is a model for embed"
    ):
        checks.require_text_model(model(home / "b.gguf", architecture="bert"), "--check")


# --- options that change nothing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "chosen", "text"),
    [
        ({}, options(tensor_types=(("nomatch", "Q8_0"),)), "nomatch=q8_0 matches no tensor"),
        ({}, options(tensor_types=(("attn_norm", "Q8_0"),)), "leaves these tensors as they are"),
        ({"a.attn_q.weight": "Q8_0"}, options(tensor_types=(("Attn_Q", "Q8_0"),)), ""),
        ({"a.attn_q.weight": "F16"}, options(tensor_types=(("attn_q", "F16"),)), ""),
        ({}, options("BF16", tensor_types=(("attn_q", "Q8_0"),)), "with --type BF16 nothing is quantised"),
        (
            {"a.attn_q.weight": "Q8_0"},
            options(tensor_types=(("attn_", "Q8_0"), ("attn_q", "Q6_K"))),
            "attn_q=q6_k changes nothing: an earlier --tensor-type",
        ),
        ({}, options(keep_output="Q8_0"), "--keep-output changes nothing"),
        ({}, options(embedding_type="Q8_0"), "--token-embedding-type changes nothing"),
        ({"a.attn_q.weight": "TQ1_0"}, options("TQ1_0"), "TQ1_0 is for models that were trained"),
        ({}, options(tensor_types=(("[[:alpha:]](?#", "Q8_0"),)), ""),
    ],
)
def test_remarks(after: dict[str, str], chosen: job.Options, text: str) -> None:
    before = {"a.attn_q.weight": "F16", "a.attn_norm.weight": "F32"}
    found = list(checks.remarks(plan(before, before | {"a.attn_q.weight": "Q4_K"} | after), chosen))
    assert len(found) == (1 if text else 0)
    assert not text or text in found[0]


# --- where the result goes ---------------------------------------------------------------------------------------


def test_a_result_does_not_replace_what_it_is_made_from(home: Path) -> None:
    matrix = put(home / "i.gguf", b"precious")
    link = home / "link.gguf"
    link.symlink_to(matrix)
    for output in (matrix, link):
        with pytest.raises(UsageError, match="is the file of --imatrix"):
            beforehand.require_other_file(output, {"--check": None, "--imatrix": matrix})
    beforehand.require_other_file(home / "other.gguf", {"--imatrix": matrix})


@pytest.mark.parametrize("given", [["--imatrix", "made.gguf"], ["--calibrate", "text.txt"]])
def test_force_leaves_the_matrix(home: Path, capfd: pytest.CaptureFixture[str], given: list[str]) -> None:
    make_gguf(home / "m.gguf")
    put(home / "text.txt", b"words")
    put(home / "made.gguf", legacy_imatrix({"w": (1, [1.0])}))
    output = "made.gguf" if "--imatrix" in given else "m.imatrix.gguf"
    assert main.run(["quantize", "m.gguf", "-t", "Q8_0", "-f", "-o", output, *given]) == 2
    assert "is the file of --" in capfd.readouterr().err


def test_a_part_is_no_name_for_a_result(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    with pytest.raises(UsageError, match="a part of a split model") as caught:
        source.output_path(Path("sp-00001-of-00003.gguf"), found, "Q8_0")
    assert caught.value.hint == "for example -o sp.gguf"


def test_a_dangling_link_is_something_that_exists(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    (home / "link.gguf").symlink_to(home / "away" / "there.gguf")
    with pytest.raises(UsageError, match="exists"):
        source.check_output(home / "link.gguf", found, force=False)
    source.check_output(home / "link.gguf", found, force=True)


def test_with_force_a_link_is_followed(home: Path) -> None:
    link, target = home / "link.gguf", put(home / "disk" / "there.gguf", b"old")
    link.symlink_to(target)
    with job.written_aside(link, replace=True) as aside:
        assert aside.parent == target.parent
        aside.write_bytes(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["there.gguf"]


@pytest.mark.parametrize("can_link", [True, False])
def test_what_appears_meanwhile_stays(home: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    output = home / "new" / "out.gguf"
    with pytest.raises(UsageError, match="has appeared meanwhile"), job.written_aside(output, replace=False) as aside:
        aside.write_bytes(b"ours")
        output.write_bytes(b"theirs")
    assert [path.read_bytes() for path in output.parent.iterdir()] == [b"theirs"]
    output.unlink()
    with job.written_aside(output, replace=False) as aside:
        aside.write_bytes(b"ours")
    assert [path.read_bytes() for path in output.parent.iterdir()] == [b"ours"]


def test_a_folder_that_goes_away_is_said(home: Path) -> None:
    output = home / "new" / "out.gguf"
    with pytest.raises(checks.PagedrunError, match="was deleted while"), job.written_aside(output, replace=False) as a:
        a.unlink()
        output.parent.rmdir()
    with pytest.raises(checks.PagedrunError, match="was deleted while"):
        job._check_result(output, plan({}, {}))


def test_where_files_can_be_made(home: Path) -> None:
    assert job.may_write(home / "not" / "yet")
    assert not job.may_write(put(home / "file", b"") / "below")
    assert not job.may_write(Path("/proc/1"))


# --- other words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--dry-run", "--calibrate", "text.txt"], "--dry-run makes no importance matrix"),
        (["--imatrix", "none.gguf"], "--imatrix: cannot read"),
        (["--imatrix", "."], "--imatrix: cannot read"),
    ],
)
def test_wrong_usage(home: Path, capfd: pytest.CaptureFixture[str], args: list[str], text: str) -> None:
    make_gguf(home / "m.gguf")
    put(home / "text.txt", b"words")
    assert main.run(["quantize", "m.gguf", *args]) == 2
    assert text in capfd.readouterr().err
