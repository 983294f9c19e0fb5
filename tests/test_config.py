"""Settings: sizes as people write them, switches, and what is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.config import EngineConfig, load_config, n_bytes
from pagedrun.errors import UsageError


@pytest.mark.parametrize(
    ("written", "n"),
    [
        ("4GiB", 4 << 30),
        ("512 MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("64k", 65_536),
        ("7", 7),
        (8, 8),
        ("2TB", 2 << 40),
        ("4G", 4 << 30),
        ("4gb", 4 << 30),
    ],
)
def test_sizes(written: str | int, n: int) -> None:
    assert n_bytes(written, "swap_space") == n


@pytest.mark.parametrize("written", ["", "much", "-1", "4 GiB or so", "1e9", "4.5", "1.5e9"])
def test_what_is_no_size(written: str) -> None:
    with pytest.raises(UsageError, match="swap_space must be a size"):
        n_bytes(written, "swap_space")


def test_settings_of_paging_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('gpu_memory = "1GiB"\nkv_type = "q8_0"\nkv_type_v = "q4_0"\npolicy = "lru"\ndebug_kv = true\n')
    monkeypatch.setenv("PAGEDRUN_SWAP_SPACE", "64 MiB")
    monkeypatch.setenv("PAGEDRUN_PAGING", "off")
    config = load_config(file=file)
    assert (config.gpu_memory, config.swap_space, config.paging) == (1 << 30, 64 << 20, "off")
    assert (config.kv_types, config.policy, config.debug_kv) == (("q8_0", "q4_0"), "lru", True)


@pytest.mark.parametrize("written", ["1", "true", "ON"])
def test_a_switch_in_the_environment(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_DEBUG_KV", written)
    assert load_config().debug_kv


def test_a_switch_that_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_DEBUG_KV", "maybe")
    with pytest.raises(UsageError, match="PAGEDRUN_DEBUG_KV must be true or false"):
        load_config()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 257},
        {"paging": "yes"},
        {"policy": "fifo"},
        {"page_size": -1},
        {"swap_space": -1},
        {"kv_type_k": "q3"},
        {"spill": "on"},
        {"prefetch_mode": "all"},
        {"disk_space": -1},
    ],
)
def test_out_of_range(wrong: dict[str, str | int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        EngineConfig(**wrong)  # type: ignore[arg-type]


def test_settings_of_spilling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('spill = "staged"\nprefetch_mode = "off"\ndisk_space = "20GiB"\n')
    monkeypatch.setenv("PAGEDRUN_SPILL", "zero-copy")
    config = load_config({"prefetch_mode": "sequential"}, file=file)
    assert (config.spill, config.prefetch_mode, config.disk_space) == ("zero-copy", "sequential", 20 << 30)
    assert (EngineConfig().spill, EngineConfig().prefetch_mode, EngineConfig().disk_space) == ("auto", "hybrid", 0)


def test_names_from_a_list_may_be_written_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('paging = "ON"\npolicy = "Working-Set"\n')
    monkeypatch.setenv("PAGEDRUN_SPILL", "Off")
    config = load_config({"kv_type": "Q8_0"}, file=file)
    assert (config.paging, config.policy, config.spill, config.kv_type) == ("on", "working-set", "off", "q8_0")


@pytest.mark.parametrize(
    ("line", "name", "hint"),
    [
        ("gpu_memory = 4.5", "gpu_memory must be a size, not 4.5", 'with its unit: "4.5GiB"'),
        ("gpu_memory = inf", "gpu_memory must be a size, not inf", "for example 6GiB"),
        ("swap_space = 5000.5", "swap_space must be a size", "a whole number of bytes"),
        ("max_seq_len = 4096.5", "max_seq_len must be a whole number, not 4096.5", ""),
        ("threads = -2", "threads must be 0 or more, not -2", ""),
        ('policy = "fifo"', "policy 'fifo' is not known", "one of clock"),
        ('gpu_memoy = "4GiB"', "gpu_memoy: there is no such setting", "did you mean gpu_memory?"),
        ("GPU_MEMORY = 4", "GPU_MEMORY: there is no such setting", "did you mean gpu_memory?"),
        ("colour = 1", "colour: there is no such setting", "known: cache_disk, debug_kv, "),
        ("swap_space = []", "swap_space cannot be []", ""),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_the_file(tmp_path: Path, line: str, name: str, hint: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(line)
    with pytest.raises(UsageError) as e:
        load_config(file=file)
    assert e.value.message.startswith(f"{file}: {name}")
    assert e.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("paging", "yes", "the environment: PAGEDRUN_PAGING 'yes' is not known"),
        ("max_num_seqs", "257", "the environment: PAGEDRUN_MAX_NUM_SEQS must be 256 or less, not 257"),
        ("gpu_memory", "4.5", "the environment: PAGEDRUN_GPU_MEMORY must be a size, not '4.5'"),
    ],
)
def test_what_is_wrong_in_the_environment_is_said_so(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"PAGEDRUN_{name.upper()}", value)
    with pytest.raises(UsageError, match=says):
        load_config()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"prefetch_mode": "all"}, "--prefetch-mode 'all' is not known"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be 1 or more, not 0"),
        ({"gpu_memory": "much"}, "--gpu-memory must be a size, not 'much'"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said_with_the_flag(flags: dict[str, str | int], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}"):
        load_config(flags)
