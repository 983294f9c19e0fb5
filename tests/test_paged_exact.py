"""Paged and stock give the same logits, to the bit, over the whole vocabulary.

Every comparison feeds both sides the same tokens in batches of the same sizes: kernels may differ in the last bit
between a batch of 42 tokens and one of 128, with pages or without. So prompts are read up to the token at which they
are forked or cut, and then on.

The same on a GPU, with everything on it: pytest -m gpu.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.kv.layout import Layout
from pagedrun.native.library import Library
from tests.paged_models import ALL_LAYERS, Loaded, Paged, likeliest, loaded, paged, stock, tokens_of

STEPS = 64
SLOT, OTHER = 1, 2


@dataclass(frozen=True)
class Sizes:
    """Prompt, where it is forked and cut, and pages: bytes in the stock layout and in slabs."""

    prompt: int
    cut: int
    cells: int
    stock_page: int
    slab_page: int


ON_CPU = Sizes(prompt=300, cut=170, cells=1024, stock_page=4096, slab_page=16_384)
ON_GPU = Sizes(prompt=9000, cut=5001, cells=16_384, stock_page=2 << 20, slab_page=2 << 20)

_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
]
_KINDS = [(("f16", "f16"), 0), (("f16", "f16"), 1), (("q8_0", "q8_0"), 0), (("q8_0", "q8_0"), ALL_LAYERS)]
_KINDS.append((("q8_0", "q4_0"), ALL_LAYERS))


def _cases() -> Iterator[object]:
    for where, models, marks in (
        ("cpu", ("smollm2", "tiny_hybrid"), [pytest.mark.real]),
        ("gpu", ("tiny_dense", "tiny_hybrid"), _gpu),
    ):
        for model in models:
            for kinds, slab in _KINDS:
                name = f"{where}-{model}-{'-'.join(sorted(set(kinds), reverse=True))}-slab{min(slab, 99)}"
                yield pytest.param((where, model, kinds, slab), id=name, marks=marks)


@dataclass(frozen=True)
class Case:
    """A model, a layout, and what the stock side computed: logits after prompt and answer, and after a cut prompt."""

    model: Loaded
    sizes: Sizes
    layout: Layout
    prompt: list[int]
    answer: list[bytes]
    other_answer: list[bytes]

    def n_frames(self, n_tokens: int) -> int:
        """Frames for that many tokens and two more, found by asking a context."""
        with paged(self.model, self.layout, device=1) as side:
            return side.geometry.pages_for(n_tokens) + 2


@pytest.fixture(scope="module", params=_cases())
def case(request: pytest.FixtureRequest, library: Library) -> Iterator[Case]:
    where, model, kinds, slab = request.param
    sizes = ON_GPU if where == "gpu" else ON_CPU
    path: Path = request.getfixturevalue(model)
    prompt = tokens_of(1, sizes.prompt)
    with loaded(library, path, kv_types=kinds, on_gpu=where == "gpu", n_cells=sizes.cells) as of:
        with stock(of) as side:
            side.feed(SLOT, prompt[: sizes.cut])
            first = side.feed(SLOT, prompt[sizes.cut :])
            answer = [first]
            for _ in range(STEPS):
                answer.append(side.feed(SLOT, [likeliest(answer[-1])]))
            side.feed(OTHER, prompt[: sizes.cut])
            other_answer = [side.feed(OTHER, [token]) for token in tokens_of(2, STEPS)]
        layout = Layout(sizes.slab_page if slab else sizes.stock_page, slab)
        yield Case(of, sizes, layout, prompt, answer, other_answer)


def answered(case: Case, side: Paged, rng: random.Random | None = None) -> tuple[int, list[bytes]]:
    """The prompt and the answer on the paged side, with pages moved between every two steps if there is a `rng`."""
    c, moved = side.manager.open(), 0
    side.feed(c, SLOT, case.prompt[: case.sizes.cut])
    answer = [side.feed(c, SLOT, case.prompt[case.sizes.cut :])]
    for _ in range(STEPS):
        moved += side.shuffle(rng) if rng else 0
        answer.append(side.feed(c, SLOT, [likeliest(answer[-1])]))
    return moved, answer


def test_stock_and_paged(case: Case) -> None:
    with paged(case.model, case.layout, device=case.n_frames(case.sizes.cells)) as side:
        assert answered(case, side)[1] == case.answer
        assert case.sizes is ON_GPU or side.geometry.full_pages(case.sizes.prompt) >= 2


def test_pages_evicted_and_restored_between_every_two_steps(case: Case) -> None:
    n_frames = case.n_frames(case.sizes.prompt + STEPS)
    with paged(case.model, case.layout, device=n_frames, host=2 * n_frames) as side:
        moved, answer = answered(case, side, random.Random(3))
        assert answer == case.answer
        assert moved >= STEPS // 8
        stats = side.manager.stats()
        assert case.sizes is ON_GPU or (stats.clean_victims and stats.dirty_victims)


def test_a_fork_and_the_same_computed_anew(case: Case) -> None:
    """The child goes on in another slot; the parent, whose full pages it shares, goes on as well."""
    with paged(case.model, case.layout, device=case.n_frames(2 * case.sizes.cells)) as side:
        c = side.manager.open()
        side.feed(c, SLOT, case.prompt[: case.sizes.cut])
        state = side.save(SLOT)
        answer = [side.feed(c, SLOT, case.prompt[case.sizes.cut :])]
        child = side.manager.fork(c, case.sizes.cut)
        assert child is not None
        side.load(OTHER, state)
        other_answer = []
        for token in tokens_of(2, STEPS):
            other_answer.append(side.feed(child, OTHER, [token]))
            answer.append(side.feed(c, SLOT, [likeliest(answer[-1])]))
        assert other_answer == case.other_answer
        assert answer == case.answer
        assert side.manager.stats().shared_pages == side.geometry.full_pages(case.sizes.cut)


def test_cut_and_continued_and_the_same_computed_anew(case: Case) -> None:
    with paged(case.model, case.layout, device=case.n_frames(case.sizes.cells)) as side:
        c = side.manager.open()
        side.feed(c, SLOT, case.prompt[: case.sizes.cut])
        state = side.save(SLOT)
        side.feed(c, SLOT, case.prompt[case.sizes.cut :])
        side.manager.truncate(c, case.sizes.cut)
        if state:
            side.load(SLOT, state)
        assert [side.feed(c, SLOT, [token]) for token in tokens_of(2, STEPS)] == case.other_answer
