"""Cold pages that are read in every step give the logits of llama.cpp's own KV cache, to the bit.

On the CPU frames of the host are shown where they are. On a GPU (pytest -m gpu) they are shown, or copied to stages
layer by layer while others compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pagedrun import machine
from pagedrun.kv import FrameError, Op, Tier
from pagedrun.kv.layout import Layout
from pagedrun.native.frames import Copier, Route, Staging
from pagedrun.native.library import Library
from pagedrun.step import Slot
from tests.cold_pages import HOT, STAGED, ZERO_COPY, ColdPages, answers, anywhere, cold_pages, plain
from tests.paged_models import ALL_LAYERS, Loaded, likeliest, loaded, tokens_of

F16, Q8, Q4, MIXED = ("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0")
STEPS = 64

_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU"),
]


@dataclass(frozen=True)
class Case:
    """A model, a layout, and the logits of llama.cpp's own KV cache."""

    model: Loaded
    layout: Layout
    prompts: dict[int, int]
    expected: list[dict[int, bytes]]
    steps: int


_CASES = [
    ("cpu", "smollm2", F16, 0),
    ("cpu", "smollm2", MIXED, ALL_LAYERS),
    ("cpu", "tiny_hybrid", F16, 0),
    ("cpu", "tiny_hybrid", Q8, 1),
    *(("gpu", "tiny_dense", kinds, slab) for kinds in (F16, Q8, Q4) for slab in (0, 1, 2)),
    *(("gpu", "tiny_dense", MIXED, slab) for slab in (1, 2)),
    *(("gpu", "tiny_hybrid", F16, slab) for slab in (0, 1)),
    ("gpu", "tiny_hybrid", Q8, 1),
]


def _param(where: str, model: str, kinds: tuple[str, str], slab: int) -> object:
    name = f"{where}-{model}-{'-'.join(sorted(set(kinds), reverse=True))}-slab{min(slab, 99)}"
    marks = _gpu if where == "gpu" else [pytest.mark.real]
    return pytest.param((where, model, kinds, slab), id=name, marks=marks)


def _opened(
    stack: ExitStack, library: Library, path: Path, kinds: tuple[str, str], layout: Layout, *, gpu: bool
) -> Case:
    n_cells, batch, prompt, steps = (16_384, 512, 9000, STEPS) if gpu else (1024, 128, 300, 16)
    of = stack.enter_context(loaded(library, path, kv_types=kinds, on_gpu=gpu, n_cells=n_cells, batch=batch))
    with plain(of) as side:
        return Case(of, layout, {1: prompt}, answers(side, {1: prompt}, steps=steps), steps)


@pytest.fixture(scope="module", params=[_param(*case) for case in _CASES])
def case(request: pytest.FixtureRequest, library: Library) -> Iterator[Case]:
    where, model, kinds, slab = request.param
    gpu = where == "gpu"
    layout = Layout(2 << 20 if gpu else 65_536 if slab == ALL_LAYERS else 16_384, slab)
    with ExitStack() as stack:
        yield _opened(stack, library, request.getfixturevalue(model), kinds, layout, gpu=gpu)


@pytest.fixture(scope="module")
def dense(library: Library, tiny_dense: Path) -> Iterator[Case]:
    """Four layers of K|V on a GPU, 512 tokens a page: four groups in two areas."""
    with ExitStack() as stack:
        yield _opened(stack, library, tiny_dense, F16, Layout(2 << 20, 1), gpu=True)


@pytest.fixture(scope="module")
def cpu(library: Library, smollm2: Path) -> Iterator[ColdPages]:
    with loaded(library, smollm2) as of, cold_pages(of, Layout(4096, 0)) as side:
        yield side


def run(case: Case, side: ColdPages, *phases: tuple[str, ...]) -> list[dict[int, bytes]]:
    """The answers with full pages moved before every step: at random to the places of a phase, one phase by one.

    Places that there are none of here are left out, and so are phases without any.
    """
    possible = [[place for place in phase if place in side.ways] for phase in phases]
    choices = [anywhere(phase) for phase in possible if phase]
    cold = 0

    def between(i: int) -> None:
        nonlocal cold
        cold += side.move(choices[i * len(choices) // (case.steps + 1)])

    said = answers(side, case.prompts, steps=case.steps, between=between)
    assert cold >= case.steps // 4
    return said


def test_wherever_pages_are_the_logits_are_the_same(case: Case) -> None:
    """All staged, all zero-copy, and mixed at random anew before every step; a second prompt over a mixed past."""
    with cold_pages(case.model, case.layout) as side:
        assert run(case, side, (ZERO_COPY,), (STAGED,), side.ways) == case.expected
        assert (STAGED in side.ways) == case.model.on_gpu


@pytest.mark.real
def test_the_cpu_has_no_stages_and_shows_the_host(cpu: ColdPages) -> None:
    assert (cpu.geometry.stage_bytes, cpu.geometry.zero_copy, cpu.frames.n_groups) == (0, True, 0)
    with pytest.raises(FrameError, match="no stages") as failure:
        cpu.apply((Op.CREATE, 0, Tier.DEVICE), (Op.CREATE, 7, Tier.STAGE))
    assert failure.value.done == 1
    cpu.apply((Op.CREATE, 1, Tier.HOST))
    with pytest.raises(FrameError, match="no stages"):
        cpu.apply((Op.MAP_STAGED, 0, 1, 0))
    cpu.apply((Op.DESTROY, 0), (Op.DESTROY, 1))
    assert cpu.frames.n_frames(Tier.STAGE) == 0


@pytest.mark.real
def test_settings_of_staging_are_checked_everywhere(cpu: ColdPages) -> None:
    cpu.frames.staging(Staging(decode=Copier.ENGINE, blocks=4, timing=True))
    with pytest.raises(FrameError, match="no such way"):
        cpu.frames.staging(Staging(blocks=1 << 20))
    stats = cpu.frames.spill_stats()
    assert (stats.n_bytes, stats.copies, stats.waited_s) == (0, 0, 0.0)
    assert [cpu.frames.bandwidth(route) for route in Route] == [0.0] * 4


def _on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    for mark in _gpu:
        test = mark(test)
    return test


@_on_gpu
@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "late"])
@pytest.mark.parametrize("copier", Copier)
def test_each_group_is_copied_once_a_step(dense: Case, copier: Copier, prefetch: bool) -> None:
    """A copy for each of four groups, and with prefetch one ahead, for the step that comes next."""
    with cold_pages(dense.model, dense.layout) as side:
        frames, ahead = side.frames, int(prefetch)
        frames.staging(Staging(decode=copier, prefill=copier, prefetch=prefetch, timing=True))
        assert (side.geometry.stage_bytes, frames.n_groups) == (2 * side.geometry.page_bytes, 4)
        counts = []

        def between(i: int) -> None:
            side.move(lambda cell: STAGED)
            counts.append(frames.spill_stats())

        assert answers(side, dense.prompts, steps=STEPS, between=between) == dense.expected
        assert frames.n_frames(Tier.STAGE) == len(side.sealed()) == 18
        assert (counts[0].n_bytes, counts[0].copies) == (0, 0)
        assert counts[1].copies == 4 + ahead
        assert {c.copies for c in counts[2:10]} == {4}
        assert {c.n_bytes for c in counts[2:10]} == {17 * side.geometry.frame_bytes}  # before the 18th was full
        assert all(c.waited_s >= 0 for c in counts) and sum(c.waited_s for c in counts) > 0


@_on_gpu
@pytest.mark.parametrize("slots", [(0,), (0, 1, 2), (0, 2)], ids=["one", "three", "gap"])
def test_several_slots_in_one_batch(dense: Case, slots: tuple[int, ...]) -> None:
    """Conversations of different lengths; with a gap, one whose pages are cold rests in the slot between."""
    prompts = {slot: (9000, 3000, 5000)[slot] for slot in slots}
    resting = {1: tokens_of(5, 3000)}
    with plain(dense.model) as side:
        if 1 not in slots:
            side.feed(resting)
        expected = answers(side, prompts, steps=32)
    with cold_pages(dense.model, dense.layout) as side:
        if 1 not in slots:
            side.feed(resting)
        case = replace(dense, prompts=prompts, steps=32)
        assert run(case, side, (STAGED,), (HOT, ZERO_COPY, STAGED)) == expected


@_on_gpu
def test_graphs_are_captured_hot_left_out_cold_and_replayed(dense: Case) -> None:
    """With the same logits before, meanwhile and after, and twice."""
    with cold_pages(dense.model, dense.layout) as side:
        assert run(dense, side, (HOT,), (STAGED,), (HOT,), (STAGED,), (ZERO_COPY,), (HOT,)) == dense.expected


@_on_gpu
def test_without_frames_of_the_host_that_can_be_mapped(dense: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_NO_HOST_VMM", "1")
    with cold_pages(dense.model, dense.layout) as side:
        assert not side.geometry.zero_copy and side.geometry.stage_bytes
        assert run(dense, side, (STAGED,), (HOT, STAGED)) == dense.expected
        cell = next(cell for cell in side.sealed() if side.places[cell] == STAGED)
        with pytest.raises(FrameError, match="cannot map frames of the host"):
            side.apply((Op.MAP_SHARED, *divmod(cell, side.geometry.n_pages), cell + side.n_cells))
        assert side.frames.bandwidth(Route.ZERO_COPY) == 0.0 < side.frames.bandwidth(Route.KERNEL)


@_on_gpu
def test_what_is_read_is_what_the_host_holds_now(dense: Case) -> None:
    """Also when it changes after it was copied ahead; and stages of a slot that is left do not count any more."""
    with cold_pages(dense.model, dense.layout) as side:
        first = side.feed({1: tokens_of(1, 9000)})
        side.move(lambda cell: STAGED)
        once = side.feed({1: [7]})[1]
        host = side.sealed()[3] + side.n_cells
        page = side.frames.read(host)
        logits = []
        for data in (np.roll(page, 4096), page):
            side.frames.write(host, data)
            side.context.forget(Slot(1), 9000)
            logits.append(side.feed({1: [7]})[1])
        assert first[1] == dense.expected[0][1]
        assert logits[0] != once == logits[1]


@_on_gpu
def test_what_cannot_be_is_refused_and_changes_nothing(dense: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with cold_pages(dense.model, dense.layout) as side:
        n = side.n_cells
        side.feed({1: tokens_of(1, 9000)})
        side.move(lambda cell: STAGED)
        a, b = side.sealed()[:2]
        side.apply((Op.CREATE, 4 * n, Tier.STAGE), (Op.CREATE, 5 * n, Tier.DEVICE))
        for op in (
            (Op.MAP_STAGED, a, a + n, b + 2 * n),  # that stage serves another cell
            (Op.MAP_STAGED, a, 5 * n, 4 * n),  # a frame of the device
            (Op.MAP_STAGED, a, a + n, 5 * n),  # no stage
            (Op.MAP_STAGED, n, a + n, 4 * n),  # no cell
            (Op.MAP_STAGED, a, 9 * n, 4 * n),  # no frame
            (Op.MAP, 1, 0, 4 * n),
            (Op.COPY, 4 * n, a + n),
            (Op.ZERO, 4 * n),
            (Op.DESTROY, a + n),  # a page is filled from it
            (Op.DESTROY, a + 2 * n),
        ):
            with pytest.raises(FrameError) as failure:
                side.apply(op)
            assert failure.value.done == 0
        side.apply((Op.DESTROY, 4 * n), (Op.DESTROY, 5 * n))
        monkeypatch.setenv("GGML_CUDA_GRAPH_OPT", "1")
        with pytest.raises(FrameError, match="GGML_CUDA_GRAPH_OPT"):
            side.apply((Op.CREATE, 4 * n, Tier.STAGE))
        assert side.feed({1: [likeliest(dense.expected[0][1])]}) == dense.expected[1]


@_on_gpu
def test_stages_and_frames_are_given_back(dense: Case) -> None:
    with cold_pages(dense.model, dense.layout) as side:
        side.feed({1: tokens_of(1, 9000)})
        side.move(lambda cell: STAGED)
        side.feed({1: [7]})
        for page in range(side.geometry.pages_for(9001)):
            side.apply((Op.UNMAP, 1, page))
        for cell, place in side.places.items():
            numbers = [cell] if place == HOT else [cell + side.n_cells, cell + 2 * side.n_cells]
            side.apply(*((Op.DESTROY, number) for number in numbers))
        assert [side.frames.n_frames(tier) for tier in Tier] == [0, 0, 0]


@_on_gpu
def test_bandwidths_are_plausible(dense: Case) -> None:
    """Every way that there is is measured; none is faster than the fastest bus or slower than a disk."""
    with cold_pages(dense.model, dense.layout) as side:
        found = {route: side.frames.bandwidth(route) for route in Route}
        if ZERO_COPY not in side.ways:
            assert found.pop(Route.ZERO_COPY) == 0.0
        assert all(1e9 < rate < 1e12 for rate in found.values()), found
        assert [side.frames.n_frames(tier) for tier in Tier] == [0, 0, 0]
