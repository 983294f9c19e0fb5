"""Frames of the host that a thread of the native side makes before they are needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pagedrun import machine
from pagedrun.kv import FrameError, Op, Tier
from pagedrun.kv.layout import Layout
from pagedrun.native.frames import NativeFrames
from pagedrun.native.library import Library
from pagedrun.native.paging import open_paged
from tests.cold_pages import STAGED, ZERO_COPY, answers, anywhere, cold_pages, plain
from tests.paged_models import Loaded, loaded

LAYOUT = Layout(2 << 20, 1)
PROMPT, STEPS = 5000, 8


def _on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    skip = pytest.mark.skipif(not machine.has_nvidia_gpu(), reason="this machine has no NVIDIA GPU")
    marked: Callable[..., None] = pytest.mark.gpu(skip(test))
    return marked


@pytest.fixture(scope="module")
def model(library: Library, tiny_dense: Path) -> Iterator[Loaded]:
    with loaded(library, tiny_dense, on_gpu=True, n_cells=8192, batch=512) as of:
        yield of


@pytest.fixture(params=[True, False], ids=["mapped", "pinned"])
def mapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether frames of the host can be mapped."""
    if request.param and "PAGEDRUN_NO_HOST_VMM" in os.environ:
        pytest.skip("PAGEDRUN_NO_HOST_VMM is set: frames of the host cannot be mapped")
    if not request.param:
        monkeypatch.setenv("PAGEDRUN_NO_HOST_VMM", "1")
    return bool(request.param)


def wait_for(frames: NativeFrames, n: int) -> None:
    """Until so many are ready. That it never happens is a failure, not how long it takes."""
    deadline = time.monotonic() + 60
    while frames.stocked() < n and time.monotonic() < deadline:
        time.sleep(0.001)
    assert frames.stocked() == n


@pytest.mark.real
def test_the_cpu_always_has_enough(library: Library, smollm2: Path) -> None:
    with loaded(library, smollm2) as of, cold_pages(of, Layout(4096, 0)) as side:
        assert side.frames.stocked() > 1 << 60
        side.frames.stock(3)
        side.apply(*((Op.CREATE, i, Tier.HOST) for i in range(4)))
        assert side.frames.stocked() > 1 << 60 and side.frames.n_frames(Tier.HOST) == 4
        assert not side.frames.read(3).any()
        side.frames.stock(0)


@_on_gpu
def test_frames_are_taken_from_the_stock(model: Loaded, mapped: bool) -> None:
    """They are zeros, and hold what is written to them; in other frames too, through the device."""
    with cold_pages(model, LAYOUT) as side:
        assert side.geometry.zero_copy == mapped
        assert side.frames.stocked() == 0
        side.frames.stock(8)
        wait_for(side.frames, 8)
        assert side.frames.n_frames(Tier.HOST) == 0
        for i in range(8):
            side.apply((Op.CREATE, i, Tier.HOST))
            assert side.frames.stocked() == 7 - i
        assert side.frames.n_frames(Tier.HOST) == 8
        assert not any(side.frames.read(i).any() for i in range(8))
        data = np.random.default_rng(1).integers(0, 256, side.geometry.frame_bytes, np.uint8)
        side.frames.write(3, data)
        side.apply((Op.CREATE, 8, Tier.DEVICE), (Op.COPY, 8, 3))
        side.apply((Op.COPY, 5, 8))
        assert np.array_equal(side.frames.read(5), data) and not side.frames.read(4).any()
        side.apply(*((Op.DESTROY, i) for i in range(9)), (Op.CREATE, 9, Tier.HOST))
        assert not side.frames.read(9).any() and side.frames.stocked() == 0


@_on_gpu
def test_the_stock_is_never_more_than_is_wanted(model: Loaded) -> None:
    """What CREATE makes itself counts, and fewer are wanted at once."""
    with cold_pages(model, LAYOUT) as side:
        side.frames.stock(6)
        side.apply(*((Op.CREATE, i, Tier.HOST) for i in range(4)))  # before they can all be there
        wait_for(side.frames, 2)
        side.frames.stock(1)
        assert side.frames.stocked() == 1
        side.frames.stock(3)
        wait_for(side.frames, 3)
        side.frames.fail_at(1)
        with pytest.raises(FrameError, match="a test wants it so"):
            side.apply((Op.CREATE, 4, Tier.HOST))
        side.frames.stock(0)
        assert side.frames.stocked() == 0
        side.apply((Op.CREATE, 4, Tier.HOST))
        assert side.frames.n_frames(Tier.HOST) == 5


@_on_gpu
def test_a_context_is_closed_while_frames_are_made(model: Loaded, mapped: bool) -> None:
    for pause in (0.0, 0.002, 0.02):
        context, frames = open_paged(model.model, model.params, model.door, LAYOUT, n_kv_reserve=0)
        with closing(context):
            assert frames is not None
            frames.stock(64)
            time.sleep(pause)
    with cold_pages(model, LAYOUT) as side:
        assert side.frames.stocked() == 0


@_on_gpu
def test_logits_are_the_same_while_frames_are_made(model: Loaded, mapped: bool) -> None:
    """Pages go to frames of the stock, and are read there or through stages; it is filled anew before every step."""
    with plain(model) as stock:
        expected = answers(stock, {1: PROMPT}, steps=STEPS)
    with cold_pages(model, LAYOUT) as side:
        choose = anywhere((ZERO_COPY, STAGED) if mapped else (STAGED,))
        cold = 0

        def between(i: int) -> None:
            nonlocal cold
            side.frames.stock(4 + i % 3)
            cold += side.move(choose)

        assert answers(side, {1: PROMPT}, steps=STEPS, between=between) == expected
        assert cold and side.frames.n_frames(Tier.HOST)
