"""How large pages are, and how a budget is divided between pages and buffers that grow with them. Arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from pagedrun.gguf_file import KvFacts
from pagedrun.kv import layout as cut
from pagedrun.kv.layout import Layout, choose_layout
from pagedrun.native.paging import Room, open_within

MIB = 1 << 20


def kv(layers: int) -> KvFacts:
    return KvFacts(full_layers=layers)


@pytest.mark.parametrize(
    ("page_size", "layers", "token_bytes", "layout"),
    [
        (0, 10, 20_480, Layout(2 * MIB, 10)),  # a 35B, f16: 102 tokens; 8 layers would leave 2 in a slab for 8
        (200, 10, 20_480, Layout(2 * MIB, 5)),
        (0, 7, 14_336, Layout(2 * MIB, 7)),  # no other number divides 7 but 1
        (0, 36, 147_456, Layout(2 * MIB, 4)),
        (1000, 10, 20_480, Layout(2 * MIB, 1)),
        (2000, 10, 20_480, Layout(2 * MIB, 0)),  # 2,048 rows of K, or of V
        (16, 32, 131_072, Layout(2 * MIB, 32)),  # an 8B: all layers side by side
        (0, 32, 131_072, Layout(2 * MIB, 4)),
        (8000, 10, 20_480, Layout(8 * MIB, 0)),  # more than 2 MiB of one layer's K
        (1, 10, 20_480, Layout(2 * MIB, 10)),  # there are no more layers
    ],
)
def test_on_a_gpu_page_size_decides_how_many_layers_lie_side_by_side(
    page_size: int, layers: int, token_bytes: int, layout: Layout
) -> None:
    assert choose_layout(page_size, kv(layers), token_bytes, 2 * MIB, on_gpu=True) == layout


def test_on_the_cpu_a_page_has_what_is_asked_for_rounded_up_to_what_can_be_mapped() -> None:
    assert choose_layout(0, kv(30), 23_040, 4096, on_gpu=False) == Layout(98_304, 0)  # 256 rows of 384 bytes
    assert choose_layout(10, kv(30), 23_040, 4096, on_gpu=False) == Layout(4096, 0)
    assert choose_layout(11, kv(30), 23_040, 4096, on_gpu=False) == Layout(8192, 0)


def test_on_the_cpu_pages_grow_before_linux_runs_out_of_mappings(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "_MAX_MAP_COUNT", tmp_path / "count")
    (tmp_path / "count").write_text("2000\n")
    layout = choose_layout(1, kv(30), 23_040, 4096, on_gpu=False, all_pages=1000 * MIB)
    assert (layout.page_bytes % 4096, layout.layers_per_slab) == (0, 0)
    assert 990 < 1000 * MIB / layout.page_bytes <= 1000


@dataclass
class FakeRoom:
    """Buffers of 10 MiB and 1 KiB per token; pages of 2 KiB per token."""

    budget: int
    max_tokens: int
    closed: bool = False

    @property
    def for_pages(self) -> int:
        return self.budget - 10 * MIB - 1024 * self.max_tokens

    @property
    def enough(self) -> bool:
        return self.for_pages >= 2048 * self.max_tokens

    @property
    def context(self) -> FakeRoom:
        return self

    def close(self) -> None:
        self.closed = True


def within(budget: int, n_tokens: int) -> tuple[FakeRoom, list[FakeRoom]]:
    made: list[FakeRoom] = []

    def attempt(budget: int, n: int) -> Room:
        made.append(FakeRoom(budget, n))
        return cast(Room, made[-1])

    room = open_within(budget, n_tokens, 2048, attempt=attempt)
    return cast(FakeRoom, room), made[:-1]


def test_a_budget_that_holds_everything_takes_one_attempt() -> None:
    room, before = within(100 * MIB, 4096)
    assert (room.max_tokens, before) == (4096, [])


def test_a_window_beyond_the_budget_gets_buffers_for_what_its_pages_hold() -> None:
    room, before = within(40 * MIB, 262_144)
    assert room.max_tokens == 10_240  # 30 MiB over 3 KiB
    assert room.for_pages == 2048 * room.max_tokens
    assert len(before) == 2 and all(r.closed for r in before)


def test_a_budget_below_everything_still_gives_the_smallest() -> None:
    room, _ = within(MIB, 262_144)
    assert (room.max_tokens, room.for_pages < 0) == (256, True)


def test_a_model_without_pages_is_none() -> None:
    assert open_within(MIB, 100, 2048, attempt=lambda budget, n: None) is None
