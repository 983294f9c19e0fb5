"""Which files generate text; what does not is refused by its header, before llama.cpp could end the process over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli import main
from pagedrun.config import EngineConfig
from pagedrun.errors import ModelError
from pagedrun.gguf_file import kv, purpose, read_facts, why_no_text
from pagedrun.load import load_service
from tests.gguf_models import shape_of, write_gguf
from tests.hub_fakes import make_home
from tests.quantize_fakes import make_imatrix

EMBEDDINGS = "a model for embeddings"
WEIGHTS = {"token_embd.weight": (8, 2)}


def why(folder: Path, arch: str, **metadata: Any) -> str | None:
    return why_no_text(read_facts(write_gguf(folder / "m.gguf", arch, WEIGHTS, **shape_of(**metadata))))


@pytest.mark.parametrize("arch", ["llama", "qwen35moe", "mamba", "gemma3", "deepseek2-ocr", "unheard-of"])
def test_models_that_generate_text(tmp_path: Path, arch: str) -> None:
    assert why(tmp_path, arch) is None
    assert why(tmp_path, arch, __pooling_type=0, __attention__causal=True, tokenizer__ggml__model="gpt2") is None


@pytest.mark.parametrize("arch", sorted(kv._NO_CACHE))
def test_what_reads_a_text_at_once_generates_none(tmp_path: Path, arch: str) -> None:
    assert why(tmp_path, arch) == purpose._ARCHITECTURES[arch]


def test_what_was_made_of_a_model_for_text(tmp_path: Path) -> None:
    assert why(tmp_path, "qwen3", __pooling_type=3) == EMBEDDINGS
    assert why(tmp_path, "llama", __attention__causal=False) == EMBEDDINGS
    assert why(tmp_path, "t5") == "a model with an encoder (T5)"
    assert why(tmp_path, "eagle3") == "a draft model, made to go with another one"
    assert why(tmp_path, "llama", tokenizer__ggml__model="no_vocab") == "a model without a vocabulary"


def test_what_is_no_model(tmp_path: Path) -> None:
    assert why(tmp_path, "clip") == why(tmp_path, "llama", general__type="mmproj") == purpose.NO_MODELS["projector"]
    assert why(tmp_path, "llama", general__type="adapter") == "an adapter (LoRA)"
    assert why_no_text(read_facts(make_imatrix(tmp_path / "i.gguf", {}, {}))) == "an importance matrix"
    words = write_gguf(tmp_path / "v.gguf", "llama", **{"tokenizer__ggml__tokens": ["a"]})
    assert why_no_text(read_facts(words)) == "a vocabulary without weights"


def test_it_is_refused_before_a_runtime_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.load.load", lambda: pytest.fail("llama.cpp was loaded"))
    path = write_gguf(tmp_path / "m.gguf", "bert", WEIGHTS)
    with pytest.raises(ModelError, match=r"m\.gguf does not generate text: it is a model for embeddings"):
        load_service(path, EngineConfig())


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_complete_says_so_with_a_template_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    make_home(tmp_path, monkeypatch)
    monkeypatch.setattr("pagedrun.first_run.ensure_runtime", lambda: None)
    monkeypatch.setattr("pagedrun.runtime.store.cpu_notice", lambda _: "")
    write_gguf(tmp_path / "m.gguf", "bert", WEIGHTS)
    assert main.run(["complete", "-m", "./m.gguf", *flags, "hi"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: m.gguf does not generate text: it is a model for embeddings\nhint: ")
