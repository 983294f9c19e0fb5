"""safetensors to GGUF: what is looked at beforehand, the environment, what the converter's failures mean; and one
whole model, from a Hugging Face folder to an answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun.cli import main
from pagedrun.errors import (
    DiskFullError,
    DownloadError,
    ModelError,
    ModelFileError,
    UsageError,
)
from pagedrun.gguf_file import read_facts
from pagedrun.hub.reference import HubReference
from pagedrun.hub.remote import RemoteFile, Repository
from pagedrun.quantize import convert, environment, folder, source
from pagedrun.runtime import space
from tests import hf_folder
from tests.hub_fakes import make_home
from tests.quantize_fakes import make_folder, safetensors
from tests.runtime_fakes import Report

INDEX = "model.safetensors.index.json"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    return make_home(tmp_path, monkeypatch)


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_whole_folder(home: Path) -> None:
    folder.check(make_folder(home / "m"))
    assert folder.is_complete(home / "m")
    (home / "m" / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert folder.is_complete(home / "m")


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (lambda m: (m / "config.json").unlink(), ModelFileError, r"holds no config\.json"),
        (lambda m: (m / "config.json").write_text("{"), ModelFileError, r"config\.json cannot be read"),
        (lambda m: (m / "config.json").write_text("[]"), ModelFileError, "not what its name says"),
        (lambda m: (m / "tokenizer.json").unlink(), ModelFileError, "holds no tokenizer"),
        (lambda m: (m / "model.safetensors").write_bytes(safetensors({"a": 8})[:-1]), ModelFileError, "truncated"),
        (lambda m: (m / "model.safetensors").write_bytes(b"\xff" * 40), ModelFileError, "not a safetensors file"),
        (lambda m: (m / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"xx"), ModelFileError, "cannot be read"),
        (lambda m: (m / "model.safetensors").write_bytes(b""), ModelFileError, "not a safetensors file"),
        (lambda m: (m / "model.safetensors").unlink(), UsageError, r"holds no \*\.safetensors"),
        (lambda m: (m / "model.safetensors").rename(m / "model.bin"), ModelFileError, "pickle files, which can run"),
        (
            lambda m: (m / INDEX).write_text('{"weight_map": {"a": "x-00001-of-00002.safetensors"}}'),
            ModelFileError,
            "lacks 1 file of its weights, .* x-00001-of-00002",
        ),
        (
            lambda m: (m / "model.safetensors").rename(m / "model-00001-of-00003.safetensors"),
            ModelFileError,
            "lacks 2 files of its weights, .* model-00002-of-00003",
        ),
        (lambda m: (m / INDEX).write_text("{}"), ModelFileError, "no weight_map"),
    ],
)
def test_what_is_wrong_with_a_folder(home: Path, damage: Callable[[Path], object], kind: type, text: str) -> None:
    damage(make_folder(home / "m"))
    with pytest.raises(kind, match=text):
        folder.check(home / "m")
    assert not folder.is_complete(home / "m")


def test_a_snapshot_of_the_cache_has_the_repositorys_name(home: Path) -> None:
    assert folder.name(home / "models--me--Tiny-1B" / "snapshots" / ("0" * 40)) == "Tiny-1B"
    assert folder.name(home / "Tiny-1B") == "Tiny-1B"


def test_what_of_a_repository_is_fetched(home: Path) -> None:
    names = [
        "config.json", "tokenizer.json", "model-00001-of-00001.safetensors", "consolidated.safetensors", "README.md",
        "modeling_own.py", "pytorch_model.bin", "onnx/model.onnx", "original/tokenizer.model", "chat_template.jinja",
        "1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/own.py",
    ]  # fmt: skip
    files = tuple(RemoteFile(path=name, size=1, sha256=None) for name in names)
    repository = Repository(name="me/tiny", commit="0" * 40, files=files, license="mit")
    found = convert._safetensors(HubReference("me/tiny"), repository)
    assert {file.path for file in found.files} == {
        "config.json", "tokenizer.json", "model-00001-of-00001.safetensors", "README.md", "chat_template.jinja",
        "1_Pooling/config.json", "2_Dense/model.safetensors",
    }  # fmt: skip
    assert [file.path.endswith(".safetensors") for file in found.files] == [False] * 5 + [True] * 2
    assert found.folder == home / "cache" / "repositories" / "me" / "tiny"
    assert found.source == f"hf:me/tiny@{'0' * 40}"
    gguf_alone = Repository(name="me/g", commit="0" * 40, files=files[:2], license=None)
    with pytest.raises(DownloadError, match="holds no GGUF file"):
        convert._safetensors(HubReference("me/g"), gguf_alone)


# --- the environment ---------------------------------------------------------------------------------------------


def test_requirements_take_the_place_of_pins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch==2.13.0" in environment.requirements(())
    monkeypatch.setenv(environment.VARIABLE, "torch==2.11.0 mistral_common>=1")
    found = environment.requirements(["Torch<3", "tiktoken"])
    assert "Torch<3" in found
    assert {"mistral_common>=1", "tiktoken", "transformers==4.57.6"} <= set(found)
    assert not [one for one in found if one.startswith("torch")]
    assert environment.folder([]) != environment.folder(["torch<3"])
    with pytest.raises(UsageError, match="is no requirement"):
        environment.requirements(["-e ."])


def test_the_environment_is_made_once_and_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(environment, "fetch", lambda *_: home / "archive")
    monkeypatch.setattr(environment, "extract", lambda archive, source, wanted, target: target.mkdir(parents=True))
    monkeypatch.setattr(environment, "pip", lambda arguments, **_: asked.append(arguments))
    report = Report()
    made = environment.get([], report)
    assert (made / "bin" / "python").exists()
    assert (made / "llama.cpp").is_dir()
    assert asked[0][0] == "--python"
    assert set(environment.PINS.values()) < set(asked[0])
    assert "once: about 1.2 GiB" in report.text
    assert environment.get([], Report()) == made
    assert len(asked) == 1

    def refused(*_: object, **__: object) -> None:
        raise DownloadError("pip failed", hint="check the network")

    monkeypatch.setattr(environment, "pip", refused)
    with pytest.raises(DownloadError, match="pip failed") as caught:
        environment.get(["torch==0"], Report())
    assert "--with torch==2.11.0" in caught.value.hint
    assert "pagedrun search" in caught.value.hint
    assert sorted(path.name for path in made.parent.iterdir()) == [made.name, "lock"]


def test_too_little_space_for_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "free", lambda path: 1 << 30)
    with pytest.raises(DiskFullError, match=r"the environment for conversions needs about 2\.5 GiB"):
        environment.get([], Report())


# --- the converter -----------------------------------------------------------------------------------------------


@pytest.fixture
def converter(home: Path) -> Path:
    """An environment whose converter is the code in `script`."""
    made = home / "environment"
    (made / "bin").mkdir(parents=True)
    (made / "llama.cpp").mkdir()
    (made / "bin" / "python").symlink_to(sys.executable)
    return made


def says(converter: Path, code: str) -> None:
    (converter / "llama.cpp" / "convert_hf_to_gguf.py").write_text(f"import os, pathlib, sys\n{code}\n")


def test_the_converter_sees_data_alone(converter: Path, home: Path) -> None:
    model = make_folder(home / "Tiny-1B")
    for name in ("modeling_own.py", "pytorch_model.bin", "README.md"):
        (model / name).write_text("x")
    for name in ("sub", "1_Pooling"):
        (model / name).mkdir()
        (model / name / "config.json").write_text("{}")
    says(
        converter,
        "folder, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[3])\n"
        "assert folder.name == 'Tiny-1B' and sys.argv[4:] == ['--outtype', 'auto']\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1' and 'PYTHONPATH' not in os.environ\n"
        "print('Writing:  50%|####', end='\\r')\n"
        "found = [path.relative_to(folder) for path in folder.rglob('*') if path.is_file()]\n"
        "target.write_text(' '.join(sorted(map(str, found))))",
    )
    seen: list[tuple[int, int]] = []
    target = home / "out"
    target.touch()
    convert.convert(converter, model, target, "auto", lambda *at: seen.append(at))
    assert target.read_text() == "1_Pooling/config.json README.md config.json model.safetensors tokenizer.json"
    assert seen == [(50, 100)]


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("print('ERROR:hf-to-gguf:Model FooModel is not supported'); sys.exit(1)", ModelFileError, "FooModel is not"),
        ("raise NotImplementedError('BPE pre-tokenizer was not recognized - x')", ModelFileError, "its tokenizer is"),
        ("raise ValueError('needs trust_remote_code=True')", ModelFileError, "a program of its own"),
        ("raise FileNotFoundError('File not found: tokenizer.model')", ModelFileError, "cannot be used: FileNotFound"),
        ("open(pathlib.Path(sys.argv[1], '1_Pooling', 'config.json'))", ModelFileError, "lacks the file 1_Pooling/con"),
        ("import no_such_thing", ModelFileError, "needs the package no_such_thing"),
        ("raise OSError(28, 'No space left on device')", ModelFileError, "the disk is full"),
        ("raise KeyError('hidden_size')", ModelError, "KeyError: 'hidden_size'"),
        ("os.abort()", ModelError, "ended by signal 6"),
        ("pass", ModelError, "cannot be converted"),
    ],
)
def test_what_the_converter_says_in_plain_words(converter: Path, home: Path, code: str, kind: type, text: str) -> None:
    says(converter, code)
    (home / "out").touch()
    with pytest.raises(kind, match=f"Tiny cannot be converted: .*{text}" if kind is ModelFileError else text):
        convert.convert(converter, make_folder(home / "Tiny"), home / "out", "auto", lambda *_: None)


# --- all of it ---------------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.install
def test_from_safetensors_to_an_answer(
    library: object, smollm2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = hf_folder.make_folder(smollm2, tmp_path / "SmolLM2-rebuilt")
    assert main.run(["quantize", str(model), "--type", "q4_k_m"]) == 0
    made = tmp_path / "SmolLM2-rebuilt-Q4_K_M.gguf"
    assert capfd.readouterr().out == f"{made}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([model.name, made.name])
    facts = read_facts(made)
    assert (facts.quantization, facts.title) == ("Q4_K_M", "SmolLM2 Rebuilt")
    question = ["complete", "--raw", "-m", str(made), "--temp", "0", "-n", "4", "The capital of France is"]
    asked = subprocess.run([sys.executable, "-m", "pagedrun", *question], capture_output=True, text=True, check=True)
    assert asked.stdout.startswith(" Paris")
    assert main.run(["quantize", str(model), "--type", "f16", "-o", str(tmp_path / "whole.gguf")]) == 0
    assert read_facts(tmp_path / "whole.gguf").quantization == "F16"
    shutil.rmtree(tmp_path)  # pytest would keep 700 MB


def test_a_dry_run_needs_a_gguf(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.first_run.ensure_runtime", lambda: None)
    make_folder(home / "m")
    assert main.run(["quantize", "m", "--dry-run"]) == 2
    assert "has to be converted first" in capfd.readouterr().err
    assert isinstance(source.resolve("./m"), source.FolderSource)
