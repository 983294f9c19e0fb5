"""Plans without a GPU: how long conversations may be, and that they have the RAM for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.gguf_file import read_facts
from pagedrun.load import load_service
from pagedrun.plan import ModelShape, shape_of
from pagedrun.plan.rules import GIB, MIB
from pagedrun.planning import machine_facts, plan_model
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
        beyond = 0
        if spill == "auto":  # without gpu_memory only what rounding the buffers' reach up adds
            beyond = plan.kv.warm + 1 if given else min(plan.kv.warm, 256) + 1
        assert plan.kv.hot + beyond >= plan.settings.max_seq_len * (seqs if paging == "off" else 1)
        assert (plan.kv.warm == 0) or paging == "auto"


def test_a_budget_without_room_for_a_step_is_refused_and_more_is_named(dense: ModelShape) -> None:
    plan = planned(dense, machine_with(0), gpu_memory=150 * MIB, max_seq_len=8192)
    assert plan.missing_in == "gpu_memory"
    assert plan.missing > MIB
    more = next(text for text in plan.nearest if text.startswith("gpu_memory"))
    n_bytes = int(more.split('"')[1].removesuffix("MiB")) * MIB
    assert planned(dense, machine_with(0), gpu_memory=n_bytes, max_seq_len=8192).fits


@pytest.mark.parametrize(
    ("n_mib", "length", "tokens"), [(30, 0, 512), (36, 8192, 1024), (39, 8192, 8192), (30, 8192, 512)]
)
def test_a_window_spills_only_where_its_buffers_leave_room_for_whole_pages_of_a_step(
    tmp_path: Path, n_mib: int, length: int, tokens: int
) -> None:
    """SmolLM2's sizes, with what it was seen to hold."""
    path = write_hollow(
        tmp_path / "s.gguf", dense=True, layers=30, embd=576, ff=1536, heads=9, kv_heads=3, head_dim=64, vocab=49_152,
        context=8192,
    )  # fmt: skip
    shape = shape_of(read_facts(path))
    plan = planned(shape, machine_with(0, 20), gpu_memory=n_mib * MIB, max_seq_len=length)
    assert plan.fits == (tokens >= length)
    if plan.fits:
        assert plan.settings.max_seq_len == tokens
        return
    assert plan.missing_in == "gpu_memory"
    assert 'gpu_memory = "39MiB" in the settings' in plan.nearest
    lengths = [int(text.split()[1]) for text in plan.nearest if text.startswith("--max-seq-len")]
    for shorter in lengths:  # with smaller buffers, more than what is held of the length asked for
        assert tokens <= shorter < length
        assert planned(shape, machine_with(0, 20), gpu_memory=n_mib * MIB, max_seq_len=shorter).fits


WISHES: list[dict[str, Any]] = [
    *({"gpu_memory": n * MIB} for n in (16, 20, 22, 30, 37, 38, 39, 60, 100, 400)),
    *({"gpu_memory": n * MIB, "max_seq_len": 8192} for n in (30, 36, 38, 39, 250)),
    {"gpu_memory": 36 * MIB, "max_seq_len": 5120},
    *({"gpu_memory": n * MIB, "max_seq_len": 72_704, "rope_scaling": "yarn"} for n in (100, 112, 120)),
    *({"gpu_memory": n * MIB, "spill": "off"} for n in (50, 120, 300)),
    *({"gpu_memory": n * MIB, "max_num_seqs": 4} for n in (30, 60)),
    *({"gpu_memory": n * MIB, "max_batch_tokens": 2048} for n in (80, 100, 200)),
    {"gpu_memory": 400 * MIB, "max_batch_tokens": 20_000},
    {"gpu_memory": 60 * MIB, "max_batch_tokens": 20_000, "max_seq_len": 1000},
    *({"gpu_memory": n * MIB, "paging": "off"} for n in (5, 64, 300)),
    {"gpu_memory": 60 * MIB, "page_size": 1000},
    {"gpu_memory": 60 * MIB, "swap_space": 0},
    {"gpu_memory": 60 * MIB, "swap_space": 50 * MIB},
    {},
    {"paging": "off"},
]


@pytest.mark.real
@pytest.mark.parametrize("wishes", WISHES, ids=lambda w: " ".join(f"{k}={v}" for k, v in w.items()) or "none")
def test_a_load_holds_what_the_plan_promised(library: Any, smollm2: Path, wishes: dict[str, Any]) -> None:
    check_promise(smollm2, wishes)


@pytest.mark.real
@pytest.mark.parametrize("n_mib", [28, 30, 60, 90])
@pytest.mark.parametrize("name", ["tiny_hybrid", "tiny_dense"])
def test_a_load_of_other_shapes_too(library: Any, request: pytest.FixtureRequest, name: str, n_mib: int) -> None:
    check_promise(request.getfixturevalue(name), {"gpu_memory": n_mib * MIB})


def check_promise(path: Path, wishes: dict[str, Any]) -> None:
    """The plan's window is that of a service, to the token; where the plan does not fit, there is none so long."""
    config = EngineConfig(gpu_layers=0, **wishes)
    plan = plan_model(read_facts(path), config, machine_facts(path, config, [])).plan
    try:
        with load_service(path, config) as service:
            found = service.limits.max_seq_len
    except NotEnoughMemoryError:
        found = 0
    if plan.fits:
        assert found == plan.settings.max_seq_len
    else:
        assert found < max(config.max_seq_len, 1)
