"""Damaged files: `show` refuses them with a ModelFileError, or shows them; it never fails, hangs, or takes memory."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedrun.errors import ModelError
from tests import gguf_bytes
from tests.gguf_models import write_varied
from tests.gguf_mutations import DAMAGE, Base, mutate, show_all, take_apart


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    path = write_varied(tmp_path_factory.mktemp("base") / "base.gguf")
    show_all(path)
    return take_apart(path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_shown_or_refused(base: Base, kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(60):
            mutate(base, kind, rng, tmp_path / "m.gguf")
            tracemalloc.reset_peak()
            try:
                show_all(tmp_path / "m.gguf")
            except ModelError as e:
                assert e.message
                refused += 1
            assert tracemalloc.get_traced_memory()[1] < base.size + (8 << 20)
    finally:
        tracemalloc.stop()
    assert refused > 0, "nothing was damaged"


ANY_U64 = st.one_of(
    st.integers(0, 40), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**32 - 1, 2**63, 2**64 - 1])
)
KEYS = st.sampled_from(
    ["general.architecture", "general.type", "general.alignment", "general.file_type", "llama.block_count", "k", "",
     "llama.attention.head_count", "llama.attention.sliding_window_pattern", "tokenizer.ggml.tokens"]
)  # fmt: skip
ENTRIES = st.builds(gguf_bytes.entry, KEYS, st.integers(0, 13), st.binary(max_size=40))
TEXTS = st.builds(lambda key, value: gguf_bytes.entry(key, 8, gguf_bytes.text(value)), KEYS, st.binary(max_size=20))
NUMBERS = st.builds(lambda key, value: gguf_bytes.u32(key, value % 2**32), KEYS, ANY_U64)
TENSORS = st.builds(
    gguf_bytes.tensor,
    st.sampled_from(["a", "blk.0.attn_q.weight", "blk.99999999999999999999.ssm_a", "x" * 70]),
    st.lists(ANY_U64, max_size=5),
    st.integers(0, 45),
    ANY_U64,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.one_of(ENTRIES, TEXTS, NUMBERS), max_size=5), st.lists(TENSORS, max_size=3), st.integers(0, 500))
def test_whatever_stands_in_the_header(tmp_path: Path, entries: list[bytes], tensors: list[bytes], data: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes.gguf_bytes(entries, tensors, data))
    with suppress(ModelError):
        show_all(path)
