"""A plan carried out: llama.cpp's parameters, budgets, and its own answers about memory."""

from __future__ import annotations

import ctypes
import re
import types
from pathlib import Path
from typing import Any

import pytest

from pagedrun import load, machine, opening
from pagedrun.config import EngineConfig
from pagedrun.errors import EngineError, NotEnoughMemoryError
from pagedrun.gguf_file import KvFacts, read_facts
from pagedrun.machine import Gpu
from pagedrun.memory import FreeMemory
from pagedrun.native.override import pattern
from pagedrun.native.placement import Placement
from pagedrun.opening import Opening
from pagedrun.plan import Plan, Reckoned, make_plan, shape_of
from pagedrun.plan.rules import CUDA_LATER, GIB, VRAM_MARGIN
from pagedrun.request import GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from tests.plan_models import machine_with, write_hollow

CARD = Gpu(0, "RTX 4060", 8 * GIB, 8 * GIB, "89")


def fake_llama() -> Any:
    return types.SimpleNamespace(
        _lib=types.SimpleNamespace(ggml_backend_cpu_buffer_type=ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: 4711)),
        llama_model_default_params=lambda: types.SimpleNamespace(
            n_gpu_layers=-1, load_mode=-1, tensor_buft_overrides=0
        ),
        llama_context_default_params=types.SimpleNamespace,
        llama_supports_gpu_offload=lambda: True,
    )


@pytest.fixture
def big(tmp_path: Path) -> Path:
    return write_hollow(tmp_path / "35b.gguf")


def plan_of(path: Path, vram: float, ram: float = 30, **wishes: Any) -> Plan:
    shape, config = shape_of(read_facts(path)), EngineConfig(**wishes)
    return make_plan(shape, machine_with(vram, ram), config, Reckoned(shape, config))


def placed(path: Path, vram: float, ram: float = 30, **wishes: Any) -> Placement:
    plan = plan_of(path, vram, ram, **wishes)
    return Placement(fake_llama(), None, path, EngineConfig(**wishes), plan=plan)  # type: ignore[arg-type]


def entries(pointer: int, n: int) -> list[tuple[bytes | None, int | None]]:
    """What llama.cpp would read there: patterns and buffer types."""
    array = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))
    return [(ctypes.cast(array[2 * i], ctypes.c_char_p).value, array[2 * i + 1]) for i in range(n)]


def test_parameters_follow_the_plan(big: Path) -> None:
    placement = placed(big, 8)
    assert placement.plan is not None
    held = placement.plan.settings.ram_experts
    params = placement.model_params
    assert (params.n_gpu_layers, params.load_mode) == (41, 0)
    found = entries(params.tensor_buft_overrides, len(held) + 1)
    assert found == [*((pattern(layer).encode(), 4711) for layer in held), (None, None)]
    assert placement.context_params.n_ubatch == placement.plan.settings.batch
    assert placement.on_gpu


def test_where_a_plan_leaves_the_gpu_alone_its_size_limits_nothing(big: Path) -> None:
    free = FreeMemory(ram=30 * GIB, vram=GIB)
    config = EngineConfig(gpu_memory=GIB)
    alone = plan_of(big, 1, gpu_memory=GIB)
    assert alone.settings.gpu_layers == 0
    assert load._where_it_runs(config, free, alone) == (EngineConfig(), FreeMemory(ram=30 * GIB))
    for plan in (None, plan_of(big, 6)):
        assert load._where_it_runs(config, free, plan) == (config, free)


def test_patterns_mean_routed_experts_of_one_layer(big: Path) -> None:
    names = [t.name for t in read_facts(big).tensors]
    found = [name for name in names if re.search(pattern(3), name)]
    assert sorted(found) == [f"blk.3.ffn_{part}_exps.weight" for part in ("down", "gate", "up")]


def test_weights_that_ram_has_no_room_for_are_mapped(big: Path) -> None:
    assert placed(big, 6, 16).model_params.load_mode == 1
    assert placed(big, 30).model_params.load_mode == -1


def test_a_plan_without_layers_on_the_gpu_is_the_cpus(big: Path) -> None:
    placement = placed(big, 0.5)
    assert (placement.on_gpu, placement.model_params.n_gpu_layers, placement.context_params.n_ubatch) == (False, 0, 512)


def opened(plan: Plan | None, config: EngineConfig, monkeypatch: pytest.MonkeyPatch, *, now: int) -> Opening:
    """On a card of 8 GiB of which `now` bytes are free after the weights."""
    monkeypatch.setattr(opening.machine, "gpus", lambda: [CARD])
    monkeypatch.setattr(opening.machine, "free_memory", lambda gpus: FreeMemory(30 * GIB, now))
    placement = types.SimpleNamespace(plan=plan, on_gpu=True)
    kv = KvFacts(full_layers=10, full_elements=10_240)
    return Opening(None, None, kv, placement, config, FreeMemory(30 * GIB, 8 * GIB))  # type: ignore[arg-type]


def test_the_context_gets_what_the_plan_says_or_less_where_more_is_taken(
    big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(gpu_memory=6 * GIB)
    plan = plan_of(big, 6, gpu_memory=6 * GIB)
    as_planned = 8 * GIB - (6 * GIB - plan.context - CUDA_LATER)
    assert opened(plan, config, monkeypatch, now=as_planned)._budget() == plan.context
    assert opened(plan, config, monkeypatch, now=as_planned + GIB)._budget() == plan.context
    assert opened(plan, config, monkeypatch, now=as_planned - 99)._budget() == plan.context - 99
    assert opened(plan, config, monkeypatch, now=0)._budget() == 0


def test_without_a_plan_gpu_memory_is_all_of_the_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5 * GIB  # 3 are taken
    limited = opened(None, EngineConfig(gpu_memory=4 * GIB), monkeypatch, now=now)._budget()
    assert limited == GIB - CUDA_LATER
    assert opened(None, EngineConfig(), monkeypatch, now=now)._budget() == now - VRAM_MARGIN - CUDA_LATER


def test_pages_are_of_one_layer_where_conversations_will_spill(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spilling, fitting = plan_of(big, 6, max_seq_len=262_144), plan_of(big, 8, max_seq_len=32_768)
    assert opened(spilling, EngineConfig(), monkeypatch, now=GIB)._page_size(2 << 20, 20_480.0) == 1024
    assert opened(fitting, EngineConfig(), monkeypatch, now=GIB)._page_size(2 << 20, 20_480.0) == 0
    off = opened(spilling, EngineConfig(spill="off"), monkeypatch, now=GIB)
    assert off._page_size(2 << 20, 20_480.0) == 0
    asked = opened(spilling, EngineConfig(page_size=64), monkeypatch, now=GIB)
    assert asked._page_size(2 << 20, 20_480.0) == 64


def test_pages_in_ram_are_never_more_than_there_is_room_for(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(host=100)
    on_gpu, on_cpu = (types.SimpleNamespace(on_gpu=gpu, memory=memory, for_pages=GIB) for gpu in (True, False))
    config = EngineConfig(swap_space=16 * GIB)
    assert plan_of(big, 6, 64, swap_space=16 * GIB).swap == 16 * GIB
    tight = plan_of(big, 6, 24, swap_space=16 * GIB)
    assert 0 < tight.swap < 8 * GIB
    assert load._swap(config, tight, on_gpu) == tight.swap  # type: ignore[arg-type]
    for available, swap in ((32 * GIB, 16 * GIB - 100), (10 * GIB, 8 * GIB), (GIB, 0)):
        monkeypatch.setattr(machine, "memory", lambda free=available: machine.Memory(64 * GIB, free))
        assert load._swap(config, None, on_cpu) == swap  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_before_it_is_loaded(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(9 * GIB, 8 * GIB))
    facts = read_facts(big)
    with pytest.raises(NotEnoughMemoryError, match="RAM are missing"):
        load._plan(facts, EngineConfig(), [CARD], None)  # type: ignore[arg-type]
    assert load._plan(facts, EngineConfig(), [], None) is None  # type: ignore[arg-type]
    assert load._plan(facts, EngineConfig(), [CARD, CARD], None) is None  # type: ignore[arg-type]


@pytest.mark.real
def test_llama_cpp_answers_what_is_reckoned_for_the_cpu(library: Any, tiny_hybrid: Path, tiny_dense: Path) -> None:
    from pagedrun.native.door import Door

    door, llama = Door(library.common), library.llama
    for path in (tiny_hybrid, tiny_dense):
        facts = read_facts(path)
        model, context = llama.llama_model_default_params(), llama.llama_context_default_params()
        model.n_gpu_layers = 0
        context.n_ctx, context.n_seq_max, context.n_outputs_max = 4096, 1, 1
        context.n_batch = context.n_ubatch = 512
        context.flash_attn_type = 1
        (ram,) = door.memory(str(path), model, context)
        assert ram["name"] == "CPU"
        assert facts.kv is not None
        assert ram["context"] == facts.kv.bytes_for(4096, "f16")
        assert ram["free"] > 0
        assert ram["compute"] > 4096 * 512 * 2


@pytest.mark.real
def test_answers_without_a_gpu_have_no_part_on_it(library: Any, tiny_hybrid: Path) -> None:
    from pagedrun.native.asked import Asker

    config = EngineConfig()
    asker = Asker(library, tiny_hybrid, shape_of(read_facts(tiny_hybrid)), config)
    answers = asker.answers(copies=True)
    assert sorted({(batch, length) for batch, length, _, _ in answers}) == [
        (batch, length) for batch in (512, 2048) for length in sorted({4096, min(asker._shape.n_ctx_train, 131_072)})
    ]
    if not library.llama.llama_supports_gpu_offload():
        assert {on_gpu for *_, on_gpu, _ in answers} == {0}
    by_size = {(batch, length): ram for batch, length, _, ram in answers}
    assert max(by_size.values()) == by_size[max(by_size)] > by_size[min(by_size)] > 0


@pytest.mark.real
def test_a_file_that_is_no_model_is_an_error(library: Any, tmp_path: Path) -> None:
    from pagedrun.native.door import Door

    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    llama = library.llama
    with pytest.raises(EngineError, match="failed to load"):
        Door(library.common).memory(str(path), llama.llama_model_default_params(), llama.llama_context_default_params())


@pytest.mark.real
def test_a_service_with_a_plan_answers_as_without(
    library: Any, tiny_hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, with a card that only we believe in: llama.cpp of a build for the CPU computes all of it there."""
    if library.llama.llama_supports_gpu_offload():
        pytest.skip("there is a GPU, and test_gpu.py")
    config = EngineConfig(max_seq_len=1024, max_num_seqs=2, paging="off", max_batch_tokens=256)
    with load.load_service(tiny_hybrid, config) as service:
        expected = answer(service)
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(load, "load", lambda: library)
    monkeypatch.setattr(library.llama, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: [CARD])
    plans: list[Plan] = []
    make = load._plan
    monkeypatch.setattr(load, "_plan", lambda *a: plans.append(make(*a)) or plans[-1])  # type: ignore[func-returns-value]
    with load.load_service(tiny_hybrid, config) as service:
        assert service.model.on_gpu
        assert answer(service) == expected
    (plan,) = plans
    assert plan.settings.gpu_layers == 9
    assert not plan.reckoned
    assert (tmp_path / "cache" / "buffers.json").exists()


def answer(service: Service) -> list[int]:
    request = GenerationRequest(
        prompt=tuple(range(1000, 1100)), sampling=SamplingParams(temperature=0.0, ignore_eos=True), max_tokens=6
    )
    return [token for event in service.submit(request) if isinstance(event, TextDelta) for token in event.tokens]
