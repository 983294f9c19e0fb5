"""Plans without a GPU: how long conversations may be, and that they have the RAM for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.gguf_file import read_facts
from pagedrun.plan import ModelShape, shape_of
from pagedrun.plan.rules import GIB, MIB
from tests.plan_models import machine_with, planned, write_hollow


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The 35B's."""
    return shape_of(read_facts(write_hollow(tmp_path_factory.mktemp("hollow") / "35b.gguf")))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The 8B's."""
    return shape_of(read_facts(write_hollow(tmp_path_factory.mktemp("hollow") / "8b.gguf", dense=True)))


def test_without_a_gpu(dense: ModelShape) -> None:
    plan = planned(dense, machine_with(0, 16))
    assert plan.fits
    assert (plan.settings.gpu_layers, plan.total("vram")) == (0, 0)
    assert plan.total("ram") <= plan.ram
    assert planned(dense, machine_with(0, 3)).missing_in == "RAM"


def test_without_a_gpu_and_a_length_memory_decides_how_long_conversations_are(big: ModelShape) -> None:
    plan = planned(big, machine_with(0, 22.6), gpu_memory=6 * GIB)  # more than is there
    assert plan.fits
    assert plan.settings.max_seq_len < big.n_ctx_train
    assert plan.total("ram") <= plan.ram
    asked = planned(big, machine_with(0, 22.6), gpu_memory=6 * GIB, max_seq_len=262_144)
    assert asked.missing_in == "RAM"
    (length,) = (int(text.split()[1]) for text in asked.nearest if text.startswith("--max-seq-len"))
    assert planned(big, machine_with(0, 22.6), gpu_memory=6 * GIB, max_seq_len=length).fits


def test_without_a_gpu_conversations_spill_only_where_gpu_memory_is_given(dense: ModelShape) -> None:
    given = planned(dense, machine_with(0), gpu_memory=GIB)
    assert given.kv.hot < given.settings.max_seq_len <= given.kv.hot + given.kv.warm
    for plan in (planned(dense, machine_with(0), gpu_memory=GIB, spill="off"), planned(dense, machine_with(0, 8))):
        assert plan.settings.max_seq_len <= plan.kv.hot
        assert plan.kv.warm > 0
    little = planned(dense, machine_with(0), gpu_memory=GIB, spill="off", max_seq_len=32_768)
    assert little.missing_in == "gpu_memory"
    more = next(text for text in little.nearest if text.startswith("gpu_memory"))
    n_bytes = int(more.split('"')[1].removesuffix("MiB")) * MIB
    assert planned(dense, machine_with(0), gpu_memory=n_bytes, spill="off", max_seq_len=32_768).fits


@settings(max_examples=60, deadline=None)
@given(
    ram=st.floats(2, 64), given=st.sampled_from([0, 300 * MIB, GIB, 6 * GIB]),
    length=st.sampled_from([0, 5000, 32_768]), seqs=st.integers(1, 4),
    spill=st.sampled_from(["auto", "off"]), paging=st.sampled_from(["auto", "off"]),
)  # fmt: skip
def test_a_plan_for_the_cpu_holds_what_it_promises(
    big: ModelShape, dense: ModelShape, ram: float, given: int, length: int, seqs: int, spill: str, paging: str
) -> None:
    for shape in (big, dense):
        plan = planned(
            shape, machine_with(0, ram), gpu_memory=given, max_seq_len=length, max_num_seqs=seqs, spill=spill,
            paging=paging,
        )  # fmt: skip
        if not plan.fits:
            assert plan.missing_in
            continue
        assert plan.total("ram") <= plan.ram
        beyond = plan.kv.warm + 1 if given and spill == "auto" else 0
        assert plan.kv.hot + beyond >= plan.settings.max_seq_len * (seqs if paging == "off" else 1)
        assert (plan.kv.warm == 0) or paging == "auto"


def test_a_budget_without_room_for_a_step_is_refused_and_more_is_named(dense: ModelShape) -> None:
    plan = planned(dense, machine_with(0), gpu_memory=150 * MIB, max_seq_len=8192)
    assert plan.missing_in == "gpu_memory"
    assert plan.missing > MIB
    more = next(text for text in plan.nearest if text.startswith("gpu_memory"))
    n_bytes = int(more.split('"')[1].removesuffix("MiB")) * MIB
    assert planned(dense, machine_with(0), gpu_memory=n_bytes, max_seq_len=8192).fits
