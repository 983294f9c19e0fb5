"""What is decided around llama.cpp's quantiser: names, places, refusals, files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagedrun.cli import main
from pagedrun.errors import DiskFullError, ModelError, ModelFileError, UsageError
from pagedrun.quantize import checks, child, job, source, types
from pagedrun.quantize.source import FolderSource, GgufSource
from pagedrun.runtime import space
from tests.hub_fakes import make_home, put
from tests.quantize_fakes import make_folder, make_gguf, make_imatrix, plan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def options(type_name: str = "Q4_K_M", **more: object) -> job.Options:
    return job.Options(type=type_name, threads=1, **more)  # type: ignore[arg-type]


# --- names of types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name"), [("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("bf16", "BF16"), ("f32", "F32")])
def test_types_in_any_case(text: str, name: str) -> None:
    assert types.file_type(text) == name


def test_an_unknown_type_names_close_ones() -> None:
    with pytest.raises(UsageError, match="no quantisation 'q4_k_x'") as caught:
        types.file_type("q4_k_x")
    assert "did you mean Q4_K_" in caught.value.hint
    with pytest.raises(UsageError, match="--keep-output: there is no type 'q6k'") as caught:
        types.tensor_type("--keep-output", "q6k")
    assert "Q6_K" in caught.value.hint
    for name in ("Q8_1", "Q8_K", "f64", "I32"):  # numbers, and what only llama.cpp's arithmetic uses
        with pytest.raises(UsageError, match=f"no type '{name}'"):
            types.tensor_type("--tensor-type", name)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "F64", "I32"])
def test_numbers_are_not_quantised(name: str) -> None:
    assert not types.is_quantized(name)


@pytest.mark.parametrize("name", ["Q8_0", "IQ2_XXS", "MXFP4", "TQ1_0"])
def test_blocks_are_quantised(name: str) -> None:
    assert types.is_quantized(name)


# --- sources and where the result goes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("m-F16.gguf", "m"),
        ("m-UD-Q4_K_M.gguf", "m"),
        ("f16.gguf", "f16"),
        ("plain.gguf", "plain"),
    ],
)
def test_the_result_is_named_after_the_model(home: Path, file: str, name: str) -> None:
    found = source.resolve(str(make_gguf(home / file)))
    assert isinstance(found, GgufSource)
    assert source.output_path(None, found, "Q6_K") == home / f"{name}-Q6_K.gguf"


def test_a_model_of_the_models_folder_stays_there(home: Path) -> None:
    make_gguf(home / "models" / "m-F16.gguf")
    found = source.resolve("m-F16.gguf")
    assert source.output_path(None, found, "Q6_K") == home / "models" / "m-Q6_K.gguf"


def test_parts_are_one_source(home: Path) -> None:
    for number in (1, 2):
        make_gguf(home / f"m-F16-0000{number}-of-00002.gguf", layer=number)
    found = source.resolve("m-F16-00001-of-00002.gguf")
    assert isinstance(found, GgufSource)
    assert [part.name for part in found.parts] == ["m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"]
    assert found.name == "m"
    assert found.size == 2 * found.parts[0].stat().st_size


def test_what_is_no_model(home: Path) -> None:
    make_imatrix(home / "i.gguf", {"w": np.ones(2, np.float32)}, {"w": np.ones(1, np.float32)})
    with pytest.raises(ModelFileError, match="it is an importance matrix"):
        source.resolve("i.gguf")
    (home / "text.gguf").write_text("hello")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        source.resolve("text.gguf")


def test_output_paths(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    assert source.output_path(home / "models", found, "Q6_K") == home / "models" / "m-Q6_K.gguf"
    assert source.output_path(Path("x.gguf"), found, "Q6_K") == home / "x.gguf"
    with pytest.raises(UsageError, match=r"does not end in \.gguf"):
        source.output_path(Path("x.bin"), found, "Q6_K")
    with pytest.raises(UsageError, match="no folder"):
        source.output_path(Path("none/x.gguf"), found, "Q6_K")


def test_nothing_is_overwritten_unasked(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    other = make_gguf(home / "other.gguf")
    link = home / "link.gguf"
    link.hardlink_to(home / "m.gguf")
    source.check_output(home / "new.gguf", found, force=False)
    source.check_output(other, found, force=True)
    with pytest.raises(UsageError, match="exists"):
        source.check_output(other, found, force=False)
    for path in (home / "m.gguf", link):
        with pytest.raises(UsageError, match="is the source itself"):
            source.check_output(path, found, force=True)
    with pytest.raises(UsageError, match="is no file"):
        source.check_output(home / "models", found, force=True)


def test_folders(home: Path) -> None:
    found = source.resolve(str(make_folder(home / "Tiny-1B")))
    assert found == FolderSource(home / "Tiny-1B", "Tiny-1B", home)
    assert source.output_path(None, found, "Q4_K_M") == home / "Tiny-1B-Q4_K_M.gguf"
    make_gguf(home / "models" / "m.gguf")
    with pytest.raises(UsageError, match="is a folder") as caught:
        source.resolve("models")
    assert caught.value.hint.endswith("models/m.gguf")


# --- refusals ----------------------------------------------------------------------------------------------------


def test_what_is_quantised_already_is_refused(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    twice = plan({"a": "Q8_0", "b": "F32"}, {"a": "Q4_K", "b": "F32"})
    objection = checks.objection(found, twice, options())
    assert isinstance(objection, UsageError)
    assert "quantised already (1 tensor is Q8_0)" in objection.message
    assert checks.objection(found, twice, options(force=True)) is None


def test_what_stays_as_it_is_may_be_quantised(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    experts_kept = plan({"experts": "MXFP4", "q": "BF16"}, {"experts": "MXFP4", "q": "Q8_0"})
    assert checks.objection(found, experts_kept, options("MXFP4_MOE")) is None


def test_nothing_to_do(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    objection = checks.objection(found, plan({"a": "F16"}, {"a": "F16"}), options("F16", force=True))
    assert objection is not None
    assert "nothing would change" in objection.message


def test_an_imatrix_where_one_is_needed(home: Path) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    needy = plan({"a": "F16"}, {"a": "IQ2_XXS"}, needs_imatrix=True)
    objection = checks.objection(found, needy, options("IQ2_XXS"))
    assert objection is not None
    assert "--calibrate TEXT" in objection.hint
    assert checks.objection(found, needy, options("IQ2_XXS"), calibrating=True) is None


def test_too_little_space(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    monkeypatch.setattr(space, "free", lambda path: 999)
    with pytest.raises(DiskFullError, match=r"the quantised model needs 1000 B in .*, where 999 B are free"):
        job.run(found, home / "out.gguf", plan({}, {}), options(), lambda *_: None)
    assert not list(home.glob("*out*"))


# --- the result appears whole, or not at all ---------------------------------------------------------------------


def test_what_is_written_aside_appears_at_the_end(home: Path) -> None:
    output = home / "new" / "out.gguf"
    with job.written_aside(output, replace=True) as aside:
        aside.write_text("all of it")
        assert not output.exists()
        assert aside.parent == output.parent
        assert aside.name.startswith(".")
    assert [path.name for path in output.parent.iterdir()] == ["out.gguf"]
    assert output.read_text() == "all of it"


@pytest.mark.parametrize("error", [ModelError("no"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing_and_the_old_file_stays(home: Path, error: BaseException) -> None:
    output = put(home / "new" / "out.gguf", b"old")
    with pytest.raises(type(error)), job.written_aside(output, replace=True) as aside:
        aside.write_text("half")
        raise error
    assert [path.read_bytes() for path in output.parent.iterdir()] == [b"old"]


def test_two_do_not_write_the_same_file(home: Path) -> None:
    output = home / "out.gguf"
    with job.written_aside(output, replace=True) as aside:
        with pytest.raises(UsageError, match="another pagedrun is writing"), job.written_aside(output, replace=True):
            pass
        aside.write_text("ours")
    assert output.read_text() == "ours"


def test_what_a_killed_run_left_is_overwritten(home: Path) -> None:
    put(home / ".out.gguf.part", b"left behind")
    with job.written_aside(home / "out.gguf", replace=True) as aside:
        aside.write_text("new")
    assert (home / "out.gguf").read_text() == "new"
    assert not (home / ".out.gguf.part").exists()


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    (home / "file").touch()
    with (
        pytest.raises(UsageError, match="cannot write to"),
        job.written_aside(home / "file" / "out.gguf", replace=True),
    ):
        pass


def test_a_result_that_is_not_what_was_foretold_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = GgufSource((make_gguf(home / "m.gguf"),), "m")
    names = {"blk.0.attn_q.weight": "F16", "blk.0.attn_norm.weight": "F32"}
    n_bytes = found.size
    good = plan(names, names, file_size=n_bytes)
    monkeypatch.setattr(child, "run", lambda task, _: make_gguf(Path(task.target)))
    job.run(found, home / "out.gguf", good, options(), lambda *_: None)
    assert (home / "out.gguf").exists()
    wrong_type = plan(names, names | {"blk.0.attn_q.weight": "Q8_0"}, file_size=n_bytes)
    for wrong in (wrong_type, plan(names, names, file_size=n_bytes + 32)):
        with pytest.raises(ModelError, match="is not what was planned"):
            job.run(found, home / "other.gguf", wrong, options(), lambda *_: None)
    assert not list(home.glob("*other*"))


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["m.gguf", "--type", "q5_k_x"], "no quantisation 'q5_k_x'"),
        (["m.gguf", "--imatrix", "a", "--calibrate", "b"], "--imatrix and --calibrate exclude each other"),
        (["m.gguf", "--dry-run", "--check", "b"], "--dry-run makes nothing that --check could compare"),
        (["m.gguf", "--check-chunks", "3"], "--check-chunks needs --check TEXT"),
        (["m.gguf", "--tensor-type", "ffn_down"], "--tensor-type 'ffn_down' is not PATTERN=TYPE"),
        (["m.gguf", "--tensor-type", "ffn_down=q99"], "no type 'q99' for tensors"),
        (["m.gguf", "--tensor-type", "ffn_down="], "--tensor-type 'ffn_down=' is not PATTERN=TYPE"),
        (["m.gguf", "--keep-output", ""], "--keep-output: there is no type ''"),
        (["m.gguf", "--token-embedding-type", ""], "--token-embedding-type: there is no type ''"),
        (["m.gguf", "-o", ""], "a file's name cannot be empty"),
        (["m.gguf", "--check", ""], "a file's name cannot be empty"),
        (["m.gguf", "--keep-output", "big"], "--keep-output: there is no type 'big'"),
        (["m.gguf", "--threads", "0"], "'--threads'"),
    ],
)
def test_wrong_usage(home: Path, capfd: pytest.CaptureFixture[str], args: list[str], text: str) -> None:
    make_gguf(home / "m.gguf")
    assert main.run(["quantize", *args]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert text in err


def test_an_imatrix_that_is_none(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_gguf(home / "m.gguf")
    (home / "i.dat").write_text("no matrix")
    assert main.run(["quantize", "m.gguf", "--imatrix", "i.dat"]) == 1
    assert "importance matrix" in capfd.readouterr().err


def test_a_pattern_may_hold_an_equals_sign() -> None:
    from pagedrun.cli.quantize.values import tensor_type

    assert tensor_type("a=b=q8_0") == ("a=b", "Q8_0")
