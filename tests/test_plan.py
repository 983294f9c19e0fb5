"""Plans of the full shapes on pretended machines: sums, what comes first, and what never happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.config import EngineConfig
from pagedrun.gguf_file import read_facts
from pagedrun.plan import Measured, ModelShape, Plan, Reckoned, Speeds, make_plan, shape_of
from pagedrun.plan.layers import Weights, forced, with_fewer_layers, without_experts
from pagedrun.plan.rules import GIB, HOT_TOKENS, MIB, RAM_MARGIN, WINDOW
from pagedrun.plan.speed import Predictor
from pagedrun.plan.text import kv_rows
from tests.plan_models import machine_with, planned, write_hollow

SMALL_CARDS = (6, 8, 12)
TINY: dict[str, int] = {
    "layers": 8, "embd": 64, "experts": 8, "experts_used": 2, "expert_ff": 64, "heads": 4, "kv_heads": 2,
    "head_dim": 64, "key_heads": 2, "value_heads": 4, "state": 32, "vocab": 8192, "context": 32_768,
}  # fmt: skip


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The 35B's."""
    return shape_of(read_facts(write_hollow(tmp_path_factory.mktemp("hollow") / "35b.gguf")))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The 8B's."""
    return shape_of(read_facts(write_hollow(tmp_path_factory.mktemp("hollow") / "8b.gguf", dense=True)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The 35B's kinds of layers, with so few weights that buffers decide."""
    return shape_of(read_facts(write_hollow(tmp_path_factory.mktemp("hollow") / "tiny.gguf", **TINY)))


def on_gpu(plan: Plan, shape: ModelShape) -> int:
    """Layers whose routed experts are on the GPU."""
    if plan.settings.gpu_layers <= len(shape.layers):
        return 0
    return len(shape.layers) - len(plan.settings.ram_experts)


def test_what_the_shapes_are(big: ModelShape, dense: ModelShape) -> None:
    assert big.known
    assert dense.known
    assert (len(big.layers), sum(layer.attention for layer in big.layers), big.experts) == (40, 10, (256, 8))
    assert big.embeddings + big.output + big.rest + big.routed == big.size
    assert 18 * GIB < big.routed < 19 * GIB
    assert 2e9 < big.active_params < 4e9
    assert 7e9 < dense.active_params < 8.1e9
    assert not dense.tied


@pytest.mark.parametrize("vram", SMALL_CARDS)
def test_a_small_card_gets_all_but_experts_then_a_whole_window_then_experts(big: ModelShape, vram: int) -> None:
    plan = planned(big, machine_with(vram))
    assert plan.fits
    assert plan.settings.gpu_layers == 41
    assert plan.kv.hot >= WINDOW
    assert (0 if vram == 6 else 1) <= on_gpu(plan, big) < 40
    assert plan.settings.max_seq_len == WINDOW
    assert 1536 <= plan.settings.batch <= 2048
    assert plan.settings.pinned
    held = plan.settings.ram_experts
    assert held == tuple(range(len(held)))  # the first layers' experts are in RAM, as llama.cpp's --n-cpu-moe has it
    # not one more layer's experts would have had room
    assert (plan.kv.hot - WINDOW) * plan.kv.token_bytes < big.layers[held[-1]].experts + MIB


@pytest.mark.parametrize("vram", SMALL_CARDS)
def test_a_batch_gives_way_to_one_more_layers_experts(big: ModelShape, vram: int) -> None:
    """To the largest batch with which they fit; one that was asked for stays as it is."""
    plan, large = planned(big, machine_with(vram)), planned(big, machine_with(vram), max_batch_tokens=2048)
    assert large.settings.batch == 2048
    assert on_gpu(plan, big) - on_gpu(large, big) == (plan.settings.batch < 2048)
    assert any("one more layer's experts" in reason for reason in plan.reasons) == (plan.settings.batch < 2048)
    if plan.settings.batch < 2048:
        more = planned(big, machine_with(vram), max_batch_tokens=plan.settings.batch + 128)
        assert on_gpu(more, big) == on_gpu(large, big)


@pytest.mark.parametrize("wishes", [{}, {"max_seq_len": 16_384}, {"max_num_seqs": 3}])
def test_a_small_batch_is_no_reason_to_have_no_experts_and_grows_while_they_stay(
    tiny: ModelShape, wishes: dict[str, int]
) -> None:
    plans = [planned(tiny, machine_with(mib / 1024), **wishes) for mib in range(820, 1300, 4)]
    plans = [plan for plan in plans if plan.settings.gpu_layers > len(tiny.layers)]
    pairs = [(on_gpu(plan, tiny), plan.settings.batch) for plan in plans]
    assert [n for n, _ in pairs] == sorted(n for n, _ in pairs)
    assert pairs[-1] == (8, 2048)
    assert any(n > 0 and batch < 1024 for n, batch in pairs)
    short = [any("less than it should" in reason for reason in plan.reasons) for plan in plans]
    assert short == sorted(short, reverse=True)  # only before all of a window is hot
    assert not any(short[pairs.index(next(pair for pair in pairs if pair[0])) :])


def test_a_length_that_was_asked_for_comes_before_experts(big: ModelShape) -> None:
    usual, long = planned(big, machine_with(8), max_seq_len=32_768), planned(big, machine_with(8))
    assert long.kv.hot >= WINDOW > usual.kv.hot >= 32_768
    assert not long.kv.spills
    assert on_gpu(long, big) < on_gpu(usual, big)
    assert long.speeds[0].decode < usual.speeds[0].decode


def test_256k_on_6_gib_spills(big: ModelShape) -> None:
    plan = planned(big, machine_with(6), max_seq_len=262_144)
    assert plan.fits
    assert plan.kv.spills
    assert on_gpu(plan, big) == 0
    assert plan.kv.hot + plan.kv.warm >= 262_144
    assert 0 < plan.kv.staging < 2 / 10 * 262_144 * plan.kv.token_bytes
    assert not plan.settings.fine_pages
    assert plan.speeds[-1].cold > 0


def test_a_model_that_fits_is_all_on_the_gpu_and_the_window_is_its_own(big: ModelShape, dense: ModelShape) -> None:
    plan = planned(big, machine_with(40))
    assert plan.settings.ram_experts == ()
    assert plan.settings.max_seq_len == 262_144
    assert plan.settings.fine_pages
    assert not plan.settings.pinned
    assert planned(dense, machine_with(24)).settings.gpu_layers == 33


def test_layers_of_a_dense_model_come_before_long_contexts(dense: ModelShape) -> None:
    plan = planned(dense, machine_with(6))
    assert plan.settings.gpu_layers == 33
    assert 4096 <= plan.kv.hot < HOT_TOKENS
    assert plan.kv.spills
    smaller = planned(dense, machine_with(4))
    assert 0 < smaller.settings.gpu_layers < 33
    assert smaller.settings.max_seq_len == 8192
    assert smaller.settings.pinned
    (layers,) = (item for item in smaller.items if item.name == "layers")
    assert layers.vram > 0 < layers.ram


@pytest.mark.parametrize("n_bytes", [1 << 20, 8 << 20, 50 << 20, 300 << 20])
def test_a_gpu_with_room_for_nothing_is_not_used(big: ModelShape, dense: ModelShape, n_bytes: int) -> None:
    for shape in (big, dense):
        plan = planned(shape, machine_with(n_bytes / GIB, 64))
        assert (plan.settings.gpu_layers, plan.total("vram"), plan.kv.staging) == (0, 0, 0)


def test_some_layers_on_the_gpu_are_not_taken_where_the_cpu_alone_is_faster(dense: ModelShape) -> None:
    """A small model: what its layers wait for costs more than reading it does."""
    small = replace(
        dense, layers=tuple(replace(layer, rest=layer.rest // 64) for layer in dense.layers),
        embeddings=dense.embeddings // 64, output=dense.output // 64, size=dense.size // 64,
    )  # fmt: skip
    sizes = [mib / 1024 for mib in range(900, 3400, 100)]
    plans = [planned(small, machine_with(v), max_seq_len=8192) for v in sizes]
    alone = planned(small, machine_with(0), max_seq_len=8192)
    on_cpu = [plan for plan in plans if "decode faster" in plan.off_gpu]
    assert on_cpu
    for v, plan in zip(sizes, plans, strict=True):
        assert plan.settings.gpu_layers == 33 or plan.speeds[0].decode >= alone.speeds[0].decode
        if plan in on_cpu:
            assert (plan.settings, plan.speeds) == (alone.settings, alone.speeds)
            assert any("decode faster" in reason for reason in plan.reasons)
            assert planned(small, machine_with(v), max_seq_len=8192, gpu_layers=5).settings.gpu_layers == 5
    assert plans[-1].settings.gpu_layers == 33


def test_layers_by_force(dense: ModelShape) -> None:
    assert planned(dense, machine_with(8), gpu_layers=10).settings.gpu_layers == 10
    plan = planned(dense, machine_with(4), gpu_layers=99)
    assert plan.missing_in == "VRAM"
    assert plan.missing > 0
    assert "--gpu-layers -1" in plan.nearest
    assert planned(dense, machine_with(8), gpu_layers=0).total("vram") == 0


def test_layers_by_force_have_as_many_hot_tokens_as_fit(dense: ModelShape) -> None:
    small, large = (planned(dense, machine_with(v, 64), gpu_layers=10, max_seq_len=32_768) for v in (3.0, 10))
    assert large.kv.hot == 32_768
    assert not large.kv.spills
    assert large.kv.staging == 0
    assert 4096 <= small.kv.hot < 32_768
    for plan in (small, large, planned(dense, machine_with(10, 64), gpu_layers=10)):
        assert plan.fits
        assert plan.total("vram") <= plan.vram
        assert plan.total("ram") <= plan.ram
    tight = planned(dense, machine_with(10, 9), gpu_layers=10)  # pages of layers in RAM are there too
    assert tight.fits and tight.total("ram") - tight.from_disk <= tight.ram


def test_the_output_alone_on_the_gpu_has_no_pages_there(dense: ModelShape) -> None:
    plan = planned(dense, machine_with(10, 64), gpu_layers=1, max_seq_len=16_384)
    assert plan.kv.hot == 16_384
    assert plan.kv.token_bytes * plan.kv.hot <= plan.context
    rows = {row[0]: row for row in kv_rows(plan)}
    assert rows["hot"] == ("hot", "RAM", "16,384", "-", "2")
    without = planned(dense, machine_with(10, 64), gpu_layers=1, max_seq_len=16_384, paging="off")
    assert [row[4] for row in kv_rows(without)] == ["1"]


def test_what_is_missing_is_what_is_not_left(big: ModelShape, dense: ModelShape) -> None:
    for plan in (planned(big, machine_with(3), gpu_layers=41), planned(dense, machine_with(4), gpu_layers=99)):
        assert plan.missing_in == "VRAM"
        assert plan.total("vram") - plan.vram == plan.missing
    short = planned(big, machine_with(6, 8))
    assert short.ram_needed - short.spared - short.ram == short.missing


def test_pages_that_are_read_directly_have_no_stages_and_cost_more(big: ModelShape) -> None:
    wishes = {"max_seq_len": 262_144}
    staged, direct = (planned(big, machine_with(6), spill=how, **wishes) for how in ("auto", "zero-copy"))
    assert staged.kv.staging > 0 == direct.kv.staging
    slow, fast = direct.speeds[-1], staged.speeds[-1]
    assert 0 < slow.cold < fast.cold
    assert slow.prefill < 0.8 * fast.prefill
    kept = Predictor(without_experts(big), machine_with(6), staged.kv, 2048)
    assert replace(kept, direct=True)._decode(262_144, slow.cold) > kept._decode(262_144, slow.cold)
    assert direct.speeds[0] == staged.speeds[0]


def test_what_would_fit_is_said_and_true(big: ModelShape) -> None:
    wishes = {"max_seq_len": 262_144, "spill": "off", "gpu_layers": 41}
    plan = planned(big, machine_with(6), **wishes)
    assert not plan.fits
    assert plan.nearest
    assert "--gpu-layers -1" in plan.nearest
    for text in plan.nearest:
        if text.startswith("--gpu-layers"):
            assert planned(big, machine_with(6), **wishes | {"gpu_layers": -1}).fits


def test_too_little_ram(big: ModelShape) -> None:
    plan = planned(big, machine_with(6, 8))
    assert not plan.fits
    assert plan.missing_in == "RAM"
    some = planned(big, machine_with(6, 16))
    assert some.fits
    assert some.from_disk > 0
    assert not some.settings.pinned
    assert some.speeds[0].decode < planned(big, machine_with(6, 32)).speeds[0].decode


def test_more_conversations_have_more_hot_tokens_and_states(big: ModelShape) -> None:
    one, four, eight = (planned(big, machine_with(16), max_num_seqs=n) for n in (1, 4, 8))
    assert four.kv.hot >= 4 * HOT_TOKENS
    assert eight.kv.hot >= 8 * HOT_TOKENS > one.kv.hot
    assert on_gpu(eight, big) < on_gpu(four, big) <= on_gpu(one, big)


def test_paging_off_means_that_all_of_the_window_is_in_vram(big: ModelShape) -> None:
    plan = planned(big, machine_with(8), paging="off")
    assert plan.settings.max_seq_len == HOT_TOKENS
    assert not plan.kv.spills
    for without in (planned(big, machine_with(v), paging="off", disk_space=GIB) for v in (0, 8)):
        assert without.kv.warm == without.kv.cold == without.total("disk") == 0
        assert [item.name for item in without.items if "KV" in item.name] == ["KV cache"]


@pytest.mark.parametrize("vram", [0, 8, 40])
def test_a_batch_is_cut_to_what_conversations_can_have(big: ModelShape, dense: ModelShape, vram: int) -> None:
    for shape in (big, dense):
        for seqs in (1, 3):
            wishes = {"max_seq_len": 1024, "max_num_seqs": seqs}
            huge, all_of_it = (
                planned(shape, machine_with(vram, 64), max_batch_tokens=n, **wishes) for n in (99_999_999, 1024 * seqs)
            )
            assert huge.settings.batch == 1024 * seqs
            assert (huge.items, huge.fits) == (all_of_it.items, True)
            assert planned(shape, machine_with(vram, 64), **wishes).settings.batch <= 1024 * seqs


def test_a_smaller_cache_leaves_room_for_experts(big: ModelShape) -> None:
    full, small = (planned(big, machine_with(6), max_seq_len=131_072, kv_type=kind) for kind in ("f16", "q4_0"))
    assert on_gpu(small, big) > on_gpu(full, big)


def test_answers_of_llama_cpp_go_before_reckoning(big: ModelShape) -> None:
    config = EngineConfig()
    rows = [[512, 4096, 100 * MIB, MIB], [512, WINDOW, 300 * MIB, MIB], [2048, 4096, 200 * MIB, 0]]
    asked = Measured([*rows, [2048, WINDOW, 800 * MIB, 4 * MIB]], rows)
    plan = make_plan(big, machine_with(8), replace(config, max_batch_tokens=2048), asked)
    assert not plan.reckoned
    (buffers,) = (item for item in plan.items if item.name == "compute buffers")
    assert buffers.vram == 800 * MIB
    assert asked.device(1280, WINDOW, copies=True) == 550 * MIB  # half way between the batches
    assert asked.device(512, (4096 + WINDOW) // 2, copies=True) == 200 * MIB
    assert asked.device(2048, 2 * WINDOW - 4096, copies=True) == 1400 * MIB
    assert asked.host(2048, WINDOW) == 4 * MIB


def test_reckoned_buffers_are_what_llama_cpp_answers_for_the_cpu(big: ModelShape, dense: ModelShape) -> None:
    """Recorded from pagedrun_memory, f16, one conversation: (batch, tokens) -> MiB."""
    recorded = {
        "35b": {(512, 4096): 76.02, (2048, 32_768): 416.07, (1024, 131_072): 400.04},
        "8b": {(512, 4096): 120.01, (2048, 32_768): 592.05, (1024, 131_072): 488.02},
    }
    for shape, name in ((big, "35b"), (dense, "8b")):
        for (batch, n_kv), n_mib in recorded[name].items():
            assert Reckoned(shape, EngineConfig()).cpu(batch, n_kv) / MIB == pytest.approx(n_mib, abs=0.2)


def test_nothing_is_lost_wherever_layers_are(big: ModelShape, dense: ModelShape) -> None:
    for shape in (big, dense):
        for weights in (without_experts(shape), *with_fewer_layers(shape), forced(shape, 7), Weights(shape, 0)):
            assert weights.vram + weights.ram == shape.size
    tied = replace(dense, tied=True, output=dense.output + dense.embeddings)
    assert Weights(tied, 0).ram == tied.embeddings + tied.rest + tied.output - tied.embeddings
    assert forced(tied, 1).vram == tied.output


KINDS = st.sampled_from(["f16", "q8_0", "q4_0"])


@settings(max_examples=80, deadline=None)
@given(
    vram=st.floats(1, 30), ram=st.floats(4, 64), length=st.sampled_from([0, 4096, 32_768, 131_072, 262_144]),
    seqs=st.integers(1, 8), kind=KINDS, spill=st.sampled_from(["auto", "off"]), name=st.sampled_from(["big", "dense"]),
)  # fmt: skip
def test_a_plan_that_fits_never_takes_more_than_is_free(
    big: ModelShape,
    dense: ModelShape,
    vram: float,
    ram: float,
    length: int,
    seqs: int,
    kind: str,
    spill: str,
    name: str,
) -> None:
    shape = {"big": big, "dense": dense}[name]
    length = min(length, shape.n_ctx_train)
    wishes = {"max_seq_len": length, "max_num_seqs": seqs, "kv_type": kind, "spill": spill}
    plan = planned(shape, machine_with(vram, ram), **wishes)
    if not plan.fits:
        assert plan.missing_in
        return
    assert plan.total("vram") <= plan.vram
    assert plan.total("ram") - plan.from_disk <= plan.ram
    if plan.settings.pinned:
        assert plan.total("ram") <= plan.ram - RAM_MARGIN
    assert plan.kv.hot + (plan.kv.warm if spill == "auto" else 0) >= plan.settings.max_seq_len
    assert plan.context <= plan.ram + plan.vram


@settings(max_examples=60, deadline=None)
@given(
    less=st.floats(1, 30), more=st.floats(0, 10), length=st.sampled_from([0, 16_384, 131_072, 262_144]),
    seqs=st.integers(1, 4), kind=KINDS,
)  # fmt: skip
def test_more_vram_never_gives_fewer_experts_or_a_shorter_window(
    big: ModelShape, dense: ModelShape, less: float, more: float, length: int, seqs: int, kind: str
) -> None:
    for shape in (big, dense):
        wishes = {"max_seq_len": min(length, shape.n_ctx_train), "max_num_seqs": seqs, "kv_type": kind}
        before, after = (planned(shape, machine_with(v, 64), **wishes) for v in (less, less + more))
        assert on_gpu(after, shape) >= on_gpu(before, shape)
        assert after.settings.gpu_layers >= before.settings.gpu_layers
        if before.settings.gpu_layers:  # without any, RAM decides
            assert after.settings.max_seq_len >= before.settings.max_seq_len


def test_speeds_follow_the_machine(big: ModelShape) -> None:
    slow = machine_with(6)
    fast = replace(slow, speeds=replace(slow.speeds, pcie=50e9))
    at = [planned(big, machine, max_seq_len=262_144).speeds for machine in (slow, fast)]
    assert at[1][-1].decode > at[0][-1].decode  # pages in RAM
    assert at[1][0].decode == at[0][0].decode
    assert at[1][0].prefill > at[0][0].prefill  # experts that are copied


def test_speeds_are_near_those_that_were_measured(big: ModelShape, dense: ModelShape) -> None:
    """On an H200 with 16 cores: scripts/results/engine-gpu.md, engine-gpu-6gib.md, paged-35b.md, paged-8b.md."""
    h200 = replace(machine_with(100, 120), speeds=Speeds(vram=4.0e12, ram=83e9, pcie=55e9, disk=3e9))
    whole, small, eight = (
        planned(shape, machine, max_seq_len=32_768).speeds
        for shape, machine in ((big, h200), (big, replace(h200, vram=6 * GIB)), (dense, h200))
    )
    assert [s.decode for s in whole] == pytest.approx([226, 207], rel=0.1)
    assert [s.prefill for s in whole] == pytest.approx([10_000, 7_678], rel=0.1)
    assert small[0].decode == pytest.approx(65, rel=0.1)
    assert small[0].prefill == pytest.approx(4_100, rel=0.15)
    assert [s.decode for s in eight] == pytest.approx([264, 177], rel=0.1)
    assert [s.prefill for s in eight] == pytest.approx([10_268, 5_711], rel=0.15)
