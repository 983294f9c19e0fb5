"""Every kind of memory over pages: sliding windows, shared layers, recurrent layers beside; or without pages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pagedrun.gguf_file import read_facts
from pagedrun.kv.layout import Layout
from pagedrun.native.paging import open_paged
from tests.paged_models import ALL_LAYERS, loaded, paged, stock
from tests.test_gguf_kv_real import MODELS, VOCAB, small_model

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

PAGED = ("llama", "gemma3", "gemma4", "gpt-oss", "lfm2")


def random_model(folder: Path, arch: str) -> Path:
    """The small model of that kind, with weights at random in place of zeros."""
    facts = read_facts(small_model(folder, arch))
    weights = np.memmap(facts.parts[0], np.float32, mode="r+", offset=facts.file_size - facts.size)
    weights[:] = np.random.default_rng(0).standard_normal(len(weights), np.float32) * 0.1
    weights.flush()
    return facts.parts[0]


@pytest.mark.parametrize("layout", [Layout(4096, 0), Layout(16_384, ALL_LAYERS)], ids=["stock", "slab"])
@pytest.mark.parametrize("arch", PAGED)
def test_logits_are_those_without_pages(library: Library, tmp_path: Path, arch: str, layout: Layout) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(VOCAB) for _ in range(1500)]  # longer than any window
    with loaded(library, random_model(tmp_path, arch), n_slots=1, n_cells=2048) as model:
        with stock(model) as plain:
            expected = [plain.feed(0, prompt), *(plain.feed(0, [token]) for token in prompt[:8])]
        with paged(model, layout, device=4000, host=4000) as side:
            c = side.manager.open()
            found = [side.feed(c, 0, prompt)]
            for token in prompt[:8]:
                side.shuffle(rng)
                found.append(side.feed(c, 0, [token]))
    assert np.isfinite(np.frombuffer(found[-1], np.float32)).all()
    assert len(set(found)) == len(found)
    assert found == expected


@pytest.mark.parametrize("arch", sorted(set(MODELS) - set(PAGED)))
def test_what_cannot_have_pages_runs_without(library: Library, tmp_path: Path, arch: str) -> None:
    with loaded(library, random_model(tmp_path, arch), n_slots=1, n_cells=2048) as model:
        context, frames = open_paged(model.model, model.params, model.door, Layout(4096, 0), n_kv_reserve=0)
        context.close()
    assert frames is None
