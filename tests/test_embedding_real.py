"""Vectors of llama.cpp against an implementation of the same models in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pagedrun.config import EngineConfig
from pagedrun.embedding import EmbeddingService
from pagedrun.errors import ContextLengthError, ModelError, NotEnoughMemoryError
from pagedrun.load_embedding import load_embedding
from pagedrun.memory import FreeMemory
from tests.bert_models import CLS, SEP, WIDTH, WINDOW, NumpyBert, vocabulary, write_bert
from tests.gguf_models import shape_of, write_gguf
from tests.llama_models import NumpyLlama, write_llama

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

CPU = EngineConfig(threads=1, gpu_layers=0)
TEXTS = ["hello world", "The cat sat on a mat.", "dogs", "running in the red house", "x" * 40]


@pytest.fixture(scope="module")
def mean(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingService]:
    path = write_bert(tmp_path_factory.mktemp("bert") / "mean.gguf")
    with load_embedding(path, CPU) as service:
        yield service


def test_words_and_their_parts(mean: EmbeddingService) -> None:
    words = vocabulary()
    assert [words[t] for t in mean.tokens("Dogs runs")] == ["[CLS]", "▁dog", "s", "▁runs", "[SEP]"]
    assert (mean.n_dims, mean.pooling, mean.limits.max_seq_len) == (WIDTH, "mean", WINDOW)


def test_mean_pooling(mean: EmbeddingService) -> None:
    bert, inputs = NumpyBert(), [mean.tokens(text) for text in TEXTS]
    found = mean.embed(inputs)
    np.testing.assert_allclose(found, [bert.embedding(tokens) for tokens in inputs], atol=1e-3)
    assert np.ptp(found, axis=0).max() > 0.1  # texts do differ


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_other_poolings(library: Library, tmp_path: Path, pooling: str) -> None:
    with load_embedding(write_bert(tmp_path / "m.gguf", pooling, seed=3), CPU) as service:
        bert, inputs = NumpyBert(3), [service.tokens(text) for text in TEXTS]
        assert service.pooling == pooling
        wanted = [bert.embedding(tokens, pooling) for tokens in inputs]
        np.testing.assert_allclose(service.embed(inputs), wanted, atol=1e-3)


@pytest.mark.parametrize("said", [None, "none"])
def test_a_file_that_does_not_say_how_it_pools_has_the_mean(library: Library, tmp_path: Path, said: str | None) -> None:
    with load_embedding(write_bert(tmp_path / "m.gguf", said), CPU) as service:
        tokens = service.tokens(TEXTS[0])
        np.testing.assert_allclose(service.embed([tokens])[0], NumpyBert().embedding(tokens), atol=1e-3)


def test_a_reranker_gives_its_scores(library: Library, tmp_path: Path) -> None:
    with load_embedding(write_bert(tmp_path / "m.gguf", "rank", n_scores=2), CPU) as service:
        tokens = [CLS, 5, 7, SEP, 6, 8, SEP]
        assert service.n_dims == 2
        np.testing.assert_allclose(service.embed([tokens])[0], NumpyBert(n_scores=2).scores(tokens), atol=3e-3)


def test_many_inputs_of_all_lengths(mean: EmbeddingService) -> None:
    rng = np.random.default_rng(0)
    inputs = [[CLS, *rng.integers(5, 60, rng.integers(0, WINDOW - 1)).tolist(), SEP] for _ in range(300)]
    before = mean.stats.steps
    found, bert = mean.embed(inputs), NumpyBert()
    assert mean.stats.steps - before >= sum(map(len, inputs)) / mean.limits.max_batch_tokens
    for i in range(0, 300, 7):
        np.testing.assert_allclose(found[i], bert.embedding(inputs[i]), atol=1e-3)
    assert max(map(len, inputs)) > WINDOW - 4


def test_the_whole_window_and_no_more(mean: EmbeddingService) -> None:
    tokens = [CLS, *[7] * (WINDOW - 2), SEP]
    np.testing.assert_allclose(mean.embed([tokens])[0], NumpyBert().embedding(tokens), atol=1e-3)
    with pytest.raises(ContextLengthError, match=f"{WINDOW + 1} tokens and the context holds {WINDOW}"):
        mean.submit([[*tokens, SEP]])


@pytest.mark.parametrize("batch", [0, 16, 61])
def test_one_that_looks_back_only_is_read_in_pieces(library: Library, tmp_path: Path, batch: int) -> None:
    config = EngineConfig(threads=1, gpu_layers=0, max_batch_tokens=batch)
    with load_embedding(write_llama(tmp_path / "m.gguf", "last"), config) as service:
        rng, llama = np.random.default_rng(1), NumpyLlama()
        inputs = [[CLS, *rng.integers(5, 60, n).tolist()] for n in (3, 100, 15, 16, 40, 1, 99)]
        found = service.embed(inputs)
        np.testing.assert_allclose(found, [llama.embedding(tokens) for tokens in inputs], atol=2e-3)
        assert service.limits.max_batch_tokens == (batch or 512)
        np.testing.assert_allclose(service.embed(inputs[::-1]), found[::-1], atol=2e-3)


def test_more_texts_than_a_batch_has_tokens(library: Library, tmp_path: Path) -> None:
    config = EngineConfig(threads=1, gpu_layers=0, max_batch_tokens=16)
    with load_embedding(write_bert(tmp_path / "m.gguf"), config) as service:
        assert service.limits.max_batch_tokens == WINDOW
        bert, inputs = NumpyBert(), [[CLS, i % 50 + 5] for i in range(300)]
        np.testing.assert_allclose(service.embed(inputs)[::50], [bert.embedding(t) for t in inputs[::50]], atol=1e-3)


def test_one_that_looks_back_only_and_pools_over_all_is_read_at_once(library: Library, tmp_path: Path) -> None:
    with load_embedding(write_llama(tmp_path / "m.gguf", "mean"), CPU) as service:
        tokens = [CLS, *range(5, 60)]
        np.testing.assert_allclose(service.embed([tokens])[0], NumpyLlama().embedding(tokens, "mean"), atol=2e-3)


def test_settings(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_bert(tmp_path / "m.gguf")
    with load_embedding(path, EngineConfig(threads=1, gpu_layers=0, max_seq_len=20)) as service:
        assert service.limits.max_seq_len == 20
    with load_embedding(path, EngineConfig(threads=1, gpu_layers=0, max_seq_len=WINDOW + 1)) as service:
        assert service.limits.max_seq_len == WINDOW
    gib = 1 << 30
    monkeypatch.setattr("pagedrun.native.embedder.machine.free_memory", lambda gpus: FreeMemory(gib // 3))
    with pytest.raises(NotEnoughMemoryError, match="texts of 128 tokens take"):
        monkeypatch.setattr("pagedrun.native.embedder._BYTES_PER_TOKEN", gib)
        load_embedding(path, EngineConfig(threads=1, gpu_layers=0, max_seq_len=WINDOW))


def test_what_is_no_model_for_embeddings(library: Library, smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="makes no embeddings: it is a model that generates text"):
        load_embedding(smollm2, CPU)
    other = write_gguf(tmp_path / "m.gguf", "t5", {"token_embd.weight": (8, 2)}, **shape_of())
    with pytest.raises(ModelError, match=r"it is a model with an encoder \(T5\)"):
        load_embedding(other, CPU)
