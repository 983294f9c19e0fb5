"""How long conversations are where the KV cache is not paged, and what is said there, and where they do not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError, UsageError
from pagedrun.gguf_file import KvFacts
from pagedrun.memory import OVERHEAD_BYTES, FreeMemory
from pagedrun.opening import Opening

KIB, MIB = 1 << 10, 1 << 20
#: A token takes 16 KiB in f16.
KV = KvFacts(full_layers=4, full_elements=8 * KIB)


def opening(*, hot: int = 0, window: int = 0, free: int = 1 << 40, kv: KvFacts = KV, **settings: Any) -> Opening:
    """hot: tokens that a plan has room for on the GPU; 0: there is none. The model was trained for 32,768 tokens."""
    token_bytes = 16 * KIB if kv.full_elements else 0
    plan = SimpleNamespace(
        kv=SimpleNamespace(hot=hot, token_bytes=token_bytes), settings=SimpleNamespace(max_seq_len=window)
    )
    placement: Any = SimpleNamespace(
        plan=plan if hot else None,
        on_gpu=bool(hot),
        fitted_seq_len=settings.get("max_seq_len", 0),
        context_params=SimpleNamespace(n_batch=512, n_ubatch=512),
        set_seq_len=lambda seq_len, num_seqs: None,
    )
    info: Any = SimpleNamespace(name="a model", n_ctx_train=32_768, size_bytes=MIB)
    config = EngineConfig(**{"paging": "off", **settings})
    model: Any = SimpleNamespace(library=SimpleNamespace(llama=SimpleNamespace(_lib=None)))
    return Opening(model, info, kv, placement, config, FreeMemory(free))


@pytest.mark.parametrize(
    ("settings", "n_seqs", "n_tokens"),
    [
        ({}, 1, 32_768),
        ({"gpu_memory": 64 * MIB}, 1, 4096),
        ({"gpu_memory": 63 * MIB}, 1, 3840),  # in steps of 256
        ({"gpu_memory": 64 * MIB, "max_seq_len": 4096}, 1, 4096),
        ({"gpu_memory": 64 * MIB, "max_seq_len": 100}, 1, 100),
        ({"gpu_memory": 64 * MIB}, 4, 1024),
        ({"gpu_memory": 64 * MIB, "kv_type": "q8_0"}, 1, 7680),
        ({"gpu_memory": 64 * MIB, "kv_type_v": "f32"}, 1, 2560),  # 24 KiB
        ({"gpu_memory": 1 << 40}, 1, 32_768),
        ({"gpu_memory": 64 * MIB, "free": OVERHEAD_BYTES + 33 * MIB}, 1, 2048),  # 32 MiB beside the weights
    ],
)
def test_gpu_memory_decides_the_length_in_ram(settings: dict[str, Any], n_seqs: int, n_tokens: int) -> None:
    assert opening(**settings)._plain_len(n_seqs) == n_tokens


def test_recurrent_states_are_paid_from_it_once() -> None:
    kv = KvFacts(full_layers=4, full_elements=8 * KIB, recurrent_layers=12, state_bytes=32 * MIB)
    assert opening(kv=kv, gpu_memory=64 * MIB)._plain_len(1) == 2048


@pytest.mark.parametrize(
    ("asked", "n_seqs", "message", "hint"),
    [
        (4097, 1, "of 4,097 tokens takes 68.0 MiB", "lower --max-seq-len to 4096 or less, raise gpu_memory"),
        (4096, 4, "of 4,096 tokens for each of 4 conversations takes 256 MiB", "lower --max-seq-len to 1024 or less"),
        (0, 17, "of 256 tokens for each of 17 conversations takes 68.0 MiB", "raise gpu_memory"),
    ],
)
def test_what_gpu_memory_has_no_room_for_is_refused(asked: int, n_seqs: int, message: str, hint: str) -> None:
    with pytest.raises(NotEnoughMemoryError) as e:
        opening(gpu_memory=64 * MIB, max_seq_len=asked)._plain_len(n_seqs)
    assert message in e.value.message and "the 64.0 MiB that it may have" in e.value.message
    assert e.value.hint.startswith(hint)


def test_on_a_gpu_it_is_what_the_plan_has_room_for() -> None:
    """A plan counts on pages in RAM; where a model cannot be paged, there are none."""
    assert opening(hot=10_000, window=8192)._plain_len(1) == 8192
    assert opening(hot=10_000, window=32_768)._plain_len(1) == 10_000
    assert opening(hot=10_000, window=32_768)._plain_len(4) == 2500
    with pytest.raises(NotEnoughMemoryError, match="has to fit VRAM, beside the weights") as e:
        opening(hot=10_000, window=16_384, max_seq_len=16_384)._plain_len(1)
    assert "to 10000 or less" in e.value.hint
    assert opening(hot=4096, window=32_768, kv=KvFacts(recurrent_layers=4))._plain_len(2) == 32_768


@pytest.fixture
def no_vmm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose driver maps nothing, and contexts that take no memory."""
    door = SimpleNamespace(granularity_of=lambda device: 0 if device == "CUDA0" else 4096)
    monkeypatch.setattr("pagedrun.opening.PagesDoor", lambda lib: door)
    monkeypatch.setattr("pagedrun.opening.NativeContext", lambda model, params: SimpleNamespace())


def test_a_driver_that_maps_nothing_is_told_of(no_vmm: None, caplog: pytest.LogCaptureFixture) -> None:
    opened = opening(hot=32_768, window=8192, paging="auto").open()
    assert opened.room is None and opened.limits.max_seq_len == 8192
    assert caplog.messages == [
        "the KV cache is not paged: this driver has no virtual memory management; long contexts have to fit VRAM"
    ]


@pytest.mark.parametrize("settings", [{"paging": "off"}, {"paging": "auto", "kv": KvFacts(recurrent_layers=4)}])
def test_nothing_is_said_where_nobody_misses_pages(
    no_vmm: None, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    assert opening(hot=32_768, window=8192, **settings).open().room is None
    assert not caplog.messages


def test_pages_that_have_to_be_and_cannot_are_an_error_that_says_why(no_vmm: None) -> None:
    with pytest.raises(UsageError, match="a model cannot be paged here: this driver has no virtual memory") as e:
        opening(hot=32_768, window=8192, paging="on").open()
    assert e.value.hint == "use paging auto or off in the settings"
    with pytest.raises(UsageError, match=r"cannot be paged here$"):
        opening(hot=32_768, window=8192, paging="on", kv=KvFacts(recurrent_layers=4)).open()


def test_without_vmm_a_long_context_has_to_fit_vram(no_vmm: None) -> None:
    with pytest.raises(NotEnoughMemoryError, match="without pages all of it has to fit VRAM"):
        opening(hot=10_000, window=16_384, paging="auto", max_seq_len=16_384).open()
