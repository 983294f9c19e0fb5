"""llama.cpp's quantiser on SmolLM2: the same bytes as its own tools, foretold to the byte, and no trace of failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pagedrun.cli import main
from pagedrun.errors import EngineError, ModelFileError, PagedrunError
from pagedrun.gguf_file import read_facts, read_header
from pagedrun.quantize import child, compare, job, types
from pagedrun.quantize.calibrate import calibrate
from pagedrun.quantize.source import gguf_source
from pagedrun.runtime.store import find_runtime
from tests.quantize_fakes import first_layers, legacy_imatrix

pytestmark = pytest.mark.real

# Two chunks of tokens and some.
TEXT = "The river rises in the mountains of the north, and after 140 miles it meets the sea. " * 60
THREADS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("quantize")
    yield made
    shutil.rmtree(made)  # pytest would keep a gigabyte


@pytest.fixture(scope="module")
def f16(library: object, smollm2: Path, folder: Path) -> Path:
    """SmolLM2 with 16 bits a weight again: what was lost stays lost, but quantisation is as from an original."""
    assert main.run(["quantize", str(smollm2), "--type", "f16", "--force", "-o", str(folder / "smollm2-F16.gguf")]) == 0
    return folder / "smollm2-F16.gguf"


@pytest.fixture(scope="module")
def small(f16: Path, folder: Path) -> Path:
    """Its first two layers alone: as good for everything but talking, and quicker."""
    return first_layers(f16, folder / "small-F16.gguf", layers=2)[0]


@pytest.fixture(scope="module")
def text(folder: Path) -> Path:
    (folder / "text.txt").write_text(TEXT)
    return folder / "text.txt"


@pytest.fixture(scope="module")
def imatrix(small: Path, text: Path, folder: Path) -> Path:
    seen: list[tuple[int, int]] = []
    matrix = folder / "made.imatrix.gguf"
    calibrate(find_runtime(), small, text, matrix, replace=False, threads=THREADS, on_chunk=lambda *at: seen.append(at))
    assert seen == [(1, 2), (2, 2)]
    return matrix


def tool(name: str) -> str:
    """One of llama.cpp's own programs."""
    try:
        return str(find_runtime().program(name))
    except PagedrunError:
        pytest.skip(f"{name} has not been built: pagedrun setup --tools")


def by_llama_cpp(folder: Path, *arguments: str) -> Path:
    """What llama-quantize makes, run in `folder`."""
    made = folder / "theirs.gguf"
    options, (source, type_name) = arguments[:-2], arguments[-2:]
    command = [tool("llama-quantize"), *options, source, made.name, type_name, str(THREADS)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return made


def test_every_name_is_llama_cpps(library: object) -> None:
    from pagedrun.native.library import load

    llama = load().llama
    for name, number in types.FILE_TYPES.items():
        constant = "LLAMA_FTYPE_ALL_F32" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}"
        assert getattr(llama, constant) == number
    # What ctypes gives to C must be laid out as C has it: the last field is where the default is expected.
    assert llama.llama_model_quantize_default_params().max_buf_size == 8 << 30


def test_the_whole_model_has_the_same_bytes_as_llama_quantizes(f16: Path, folder: Path) -> None:
    made = folder / "ours.gguf"
    assert main.run(["quantize", str(f16), "-o", str(made), "--force"]) == 0
    assert made.read_bytes() == by_llama_cpp(folder, f16.name, "q4_k_m").read_bytes()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["--type", "q8_0", "--threads", "1"], ["q8_0"]),
        (
            ["--type", "Q4_K_M", "--tensor-type", "FFN_down=q6_k", "--tensor-type", r"blk\.(0|1)\.attn_=f16"],
            ["--tensor-type", "FFN_down=q6_k", "--tensor-type", r"blk\.(0|1)\.attn_=f16", "Q4_K_M"],
        ),
        (
            ["--type", "Q5_0", "--keep-output", "q5_1", "--token-embedding-type", "q4_0"],
            ["--output-tensor-type", "q5_1", "--token-embedding-type", "q4_0", "Q5_0"],
        ),
    ],
)
def test_the_same_bytes_as_llama_quantize(
    small: Path, folder: Path, ours: list[str], theirs: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    made = folder / "ours.gguf"
    assert main.run(["quantize", str(small), *ours, "-o", str(made), "--force"]) == 0
    assert capfd.readouterr().out == f"{made}\n"
    *options, type_name = theirs
    assert made.read_bytes() == by_llama_cpp(folder, *options, small.name, type_name).read_bytes()


@pytest.mark.parametrize(("type_name", "form"), [("q4_k_m", "gguf"), ("iq3_xxs", "gguf"), ("q4_0", "dat")])
def test_the_same_bytes_with_an_importance_matrix(
    small: Path, folder: Path, text: Path, imatrix: Path, monkeypatch: pytest.MonkeyPatch, type_name: str, form: str
) -> None:
    monkeypatch.chdir(folder)
    name = imatrix.name
    if form == "dat":
        name = "older.dat"
        command = [tool("llama-imatrix"), "--in-file", imatrix.name, "-o", name, "--output-format", "dat"]
        subprocess.run([*command, "-m", small.name], check=True, capture_output=True)
    assert main.run(["quantize", small.name, "-t", type_name, "--imatrix", name, "-o", "ours.gguf", "--force"]) == 0
    theirs = by_llama_cpp(folder, "--imatrix", name, small.name, type_name)
    assert Path("ours.gguf").read_bytes() == theirs.read_bytes()


def test_the_importance_matrix_is_llama_imatrixs(small: Path, folder: Path, text: Path, imatrix: Path) -> None:
    command = [tool("llama-imatrix"), "-m", small.name, "-f", text.name, "-o", "theirs.imatrix.gguf", "-b", "512"]
    subprocess.run([*command, "-t", str(THREADS)], cwd=folder, check=True, capture_output=True)
    assert imatrix.read_bytes() == (folder / "theirs.imatrix.gguf").read_bytes()
    assert str(folder).encode() not in imatrix.read_bytes()


def test_calibrate_makes_one_and_uses_it(
    small: Path, folder: Path, text: Path, imatrix: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made, matrix = folder / "calibrated.gguf", folder / "small.imatrix.gguf"
    arguments = ["quantize", str(small), "-t", "iq2_xs", "-o", str(made), "--calibrate", str(text), "--json"]
    assert main.run(arguments) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["path"], told["imatrix"], told["size"]) == (str(made), str(matrix), made.stat().st_size)
    assert matrix.read_bytes() == imatrix.read_bytes()
    header = read_header(made)
    assert header.text("quantize.imatrix.file") == matrix.name
    assert header.text("quantize.imatrix.dataset") == text.name
    made.unlink()
    assert main.run(arguments) == 2
    assert "use it with --imatrix" in capfd.readouterr().err


@pytest.mark.parametrize("type_name", ["Q4_K_M", "Q2_K", "IQ4_XS", "TQ2_0"])
def test_the_file_is_as_large_as_foretold(
    small: Path, folder: Path, type_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["quantize", str(small), "-t", type_name, "--dry-run", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    made = folder / "foretold.gguf"
    # `run` itself refuses a file of another size or with other types than the plan's.
    assert main.run(["quantize", str(small), "-t", type_name, "-o", str(made), "--force"]) == 0
    assert made.stat().st_size == told["size"]
    facts = read_facts(made)
    assert round(facts.bits_per_weight, 4) == told["bits_per_weight"]
    assert {group.name: (group.n_bytes, dict(group.types)) for group in facts.groups} == {
        group["name"]: (group["after"], group["types"]) for group in told["groups"]
    }


def test_the_buffers_bound_changes_no_byte(small: Path, folder: Path) -> None:
    made = []
    for bound in (1, 1 << 20, job.MAX_BUFFER):
        task = job.task(
            gguf_source(small), folder / f"{bound}.gguf", job.Options(type="Q4_K_M", threads=2), dry_run=False
        )
        child.run(replace(task, max_buffer=bound), lambda *_: None)
        made.append(Path(task.target).read_bytes())
        Path(task.target).unlink()
    assert made[0] == made[1] == made[2]


def test_a_split_source_becomes_one_file(small: Path, folder: Path) -> None:
    parts = first_layers(small, folder / "parts.gguf", layers=2, split=8)
    assert len(parts) == 3
    assert main.run(["quantize", str(parts[0]), "-t", "q8_0", "-o", str(folder / "joined.gguf")]) == 0
    assert main.run(["quantize", str(small), "-t", "q8_0", "-o", str(folder / "one.gguf"), "--force"]) == 0
    joined, one = read_header(folder / "joined.gguf"), read_header(folder / "one.gguf")
    assert not [key for key in joined.metadata if key.startswith("split.")]
    assert {t.name: t.type for t in joined.tensors} == {t.name: t.type for t in one.tensors}
    parts[1].unlink()
    with pytest.raises(ModelFileError, match="missing"):
        gguf_source(parts[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-t", "iq2_m"], "needs an importance matrix"),
        (["-t", "f16"], "nothing would change"),
        (["--tensor-type", "ffn_[=q6_k"], "no regular expression"),
        (["--check", "SHORT"], "the text has 4 tokens"),
        (["--calibrate", "SHORT"], "the text has 4 tokens"),
        (["--imatrix", "OTHER"], "the importance matrix has nothing for blk."),
        (["--tensor-type", "ffn_down=iq1_s"], "IQ1_S needs an importance matrix"),
        (["--token-embedding-type", "q6_k"], "Q6_K holds numbers by 256"),
        (["--tensor-type", "attn_q=q1_0"], "rows of a length that q1_0 cannot hold"),
    ],
)
def test_a_refusal_leaves_nothing(
    small: Path, tmp_path: Path, arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "SHORT").write_text("four words of text")
    (tmp_path / "OTHER").write_bytes(legacy_imatrix({"other.weight": (1, [1.0])}))
    more = ["-t", "iq2_m"] if "--imatrix" in arguments else []
    arguments = [str(tmp_path / word) if word in ("SHORT", "OTHER") else word for word in arguments]
    assert main.run(["quantize", str(small), "-o", str(tmp_path), *arguments, *more]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert text in err
    assert {path.name for path in tmp_path.iterdir()} == {"SHORT", "OTHER"}


def test_what_is_quantised_already(smollm2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["quantize", str(smollm2), "-t", "q2_k", "-o", str(tmp_path)]) == 2
    assert "is quantised already" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_source(small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = small.read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[: len(data) // 2])
    assert main.run(["quantize", str(tmp_path / "m.gguf"), "-t", "q8_0"]) == 1
    assert "truncated" in capfd.readouterr().err
    (tmp_path / "m.gguf").unlink()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_interrupted(f16: Path, tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "out.gguf"
    command = [sys.executable, "-m", "pagedrun", "quantize", str(f16), "-t", "iq4_xs", "-o", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    aside = tmp_path / ".out.gguf.part"
    while not aside.exists() or aside.stat().st_size < 10 << 20:
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.kill(process.pid, number)
    _, err = process.communicate()
    assert b"Traceback" not in err
    psutil.wait_procs(children)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert [path.name for path in tmp_path.iterdir()] == ([aside.name] if number == signal.SIGKILL else [])


def test_a_model_differs_from_itself_in_nothing(small: Path) -> None:
    chunks = compare.chunks_of(compare.tokens_of(small, TEXT, "--check"), 1)
    found = compare.compare(small, small, chunks, threads=THREADS, on_chunk=lambda *_: None)
    assert found.n_tokens == compare.CHUNK // 2 - 1
    assert (found.kl_mean, found.kl_max, found.same_top) == (0, 0, 1)
    assert found.ppl_source == found.ppl_result


def test_check_compares_with_the_source(
    small: Path, text: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = str(folder / "checked.gguf")
    command = ["quantize", str(small), "-t", "q8_0", "-o", made, "--check", str(text), "--check-chunks", "1", "--json"]
    assert main.run(command) == 0
    told = json.loads(capfd.readouterr().out)["check"]
    assert told["n_tokens"] == 255
    assert 0 < told["kl_mean"] < 0.01
    assert told["kl_mean"] < told["kl_max"] < 0.5
    assert told["ppl_result"] == pytest.approx(told["ppl_source"], rel=0.02)
    assert 0.9 < told["same_top"] <= 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), EngineError("no memory")])
def test_what_is_finished_is_said_though_the_comparison_is_not(
    small: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(compare, "compare", stopped)
    command = ["quantize", str(small), "-t", "q8_0", "-o", str(tmp_path), "--check", str(text)]
    if isinstance(error, SystemExit):
        with pytest.raises(SystemExit):
            main.run(command)
    else:
        assert main.run(command) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    out, err = capfd.readouterr()
    assert Path(out.strip()).exists()
    assert "is finished" in err


def test_the_same_text_is_as_long_for_both(small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("four words of text\n")
    for option in ("--check", "--calibrate"):
        assert main.run(["quantize", str(small), "-o", str(tmp_path), option, str(tmp_path / "short.txt")]) == 2
        assert f"{option}: the text has 4 tokens" in capfd.readouterr().err


def test_a_model_that_cannot_be_run_is_not_calibrated(small: Path, text: Path, tmp_path: Path) -> None:
    """llama-imatrix says what is missing; its last line does not."""
    broken = first_layers(small, tmp_path / "broken.gguf", layers=1)[0]
    broken.write_bytes(broken.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(ModelFileError, match=r"broken\.gguf cannot be run: .*blk\.0\.attn_q\.weight"):
        calibrate(find_runtime(), broken, text, tmp_path / "i.gguf", replace=False, threads=1, on_chunk=lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


def test_remarks_come_with_a_dry_run(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["quantize", str(small), "--dry-run", "--tensor-type", "nomatch=q8_0", "-o", "/proc/1/x.gguf"]) == 0
    err = capfd.readouterr().err
    assert "have rows that Q4_K_M cannot hold" in err
    assert "nomatch=q8_0 matches no tensor" in err
    assert "/proc/1 cannot be written to" in err
