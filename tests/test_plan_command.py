"""`pagedrun plan`: tables, JSON, what does not fit; and the facts of machines behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pagedrun import machine, speeds
from pagedrun.cli import console, main
from pagedrun.config import EngineConfig
from pagedrun.gguf_file import read_facts
from pagedrun.hub import LocatedModel
from pagedrun.machine import Gpu
from pagedrun.plan import MachineFacts, rules
from pagedrun.plan.rules import GIB
from pagedrun.planning import machine_facts, plan_model
from tests.cli_fakes import folders
from tests.gguf_models import shape_of, write_gguf
from tests.plan_models import write_hollow

CARD = Gpu(0, "RTX 4060", 8 * GIB, 7 * GIB, "89")
MEASURED = {"ram": 50e9, "disk": {}, "gpu": {"RTX 4060, 580": {"pcie": 13e9, "vram": 270e9, "cuda": 300 << 20}}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 32 GiB without a GPU, whose speeds are known; returns the 35B's path."""
    folders(tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "gpus", lambda: [])
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(32 * GIB, 30 * GIB))
    monkeypatch.setattr(machine, "driver_version", lambda: "580")
    monkeypatch.setattr(speeds, "driver_version", lambda: "580")
    monkeypatch.setattr(speeds, "ram_rate", lambda threads: 50e9)
    monkeypatch.setattr(speeds, "disk_rate", lambda path: 3e9)
    return write_hollow(tmp_path / "35b.gguf")


def test_a_card_that_is_not_here(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "--explain"]) == 0
    out, err = capsys.readouterr()
    for text in ("routed experts", "KV pages", "together", "6.0 GiB", "hot", "warm", "131,072", "16.0 GiB of RAM"):
        assert text in out
    assert "- Everything but the routed experts is on the GPU" in out
    assert "reckoned" in err
    assert "assumed" in err


def test_json(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "8g", "--json", "-c", "65536", "--kv-type", "q8_0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert found["totals"]["vram"] <= 8 * GIB == found["vram"]
    assert found["settings"]["max_seq_len"] == 65_536
    assert found["kv"]["token_bytes"] == 10_880
    assert found["machine"]["speeds"]["measured"] == ["disk", "ram"]
    assert [other["ram"] for other in found["with_ram"]] == [16 * GIB, 32 * GIB]


def test_what_does_not_fit_is_an_error_with_what_would(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "--gpu-layers", "41"]) == 1
    out, err = capsys.readouterr()
    assert "routed experts" in out
    assert "of VRAM are missing" in err
    assert "--gpu-layers -1" in err


@pytest.mark.parametrize("size", ["5TiB", "4097GiB", "99999999999GiB"])
def test_a_size_that_no_gpu_has_is_refused(here: Path, capsys: Any, size: str) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", size]) == 2
    err = capsys.readouterr().err
    assert f"--gpu-memory {size}: there is no GPU of more than 4.0 TiB" in err
    assert "hint:" in err
    assert main.run(["plan", str(here), "--gpu-memory", "4TiB"]) == 0


@pytest.mark.parametrize(("threads", "cores"), [(99, "2 cores"), (1, "1 core"), (0, "2 cores")])
def test_more_threads_are_not_more_cores(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, threads: int, cores: str
) -> None:
    monkeypatch.setattr("pagedrun.native.placement.physical_cores", lambda: 2)
    assert main.run(["plan", str(here), "--threads", str(threads)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f"no GPU, {cores}")


def test_no_gpu_and_none_asked_for(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here)]) == 0
    assert "no GPU" in capsys.readouterr().out


def test_a_small_gpu_memory_in_the_settings_is_no_gpu(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_GPU_MEMORY", "20GiB")
    assert main.run(["plan", str(here), "--disk-space", "900TiB"]) == 0
    out, err = capsys.readouterr()
    assert "no GPU" in out
    assert "gpu_memory is 20.0 GiB, and only" in err
    assert "disk_space is 900 TiB" in err
    monkeypatch.setenv("PAGEDRUN_GPU_MEMORY", "1GiB")
    assert main.run(["plan", str(here)]) == 0
    out, err = capsys.readouterr()
    assert "KV pages that left (swap)" in out
    assert "gpu_memory" not in err


def test_no_length_is_counted_that_cannot_be(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "-c", "16384", "--disk-space", "1GiB"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("hot", "warm", "cold"))]
    assert [row[0] for row in rows] == ["hot", "warm", "cold"]
    assert {row[3] for row in rows} == {"-"}
    assert all(int(row[4]) > 0 for row in rows)


def test_without_pages_there_are_no_tiers(here: Path, capsys: Any) -> None:
    here.with_name("off.toml").write_text('paging = "off"')
    settings = ["--config", str(here.with_name("off.toml"))]
    assert main.run(["plan", str(here), "--gpu-memory", "8GiB", *settings, "--disk-space", "1GiB"]) == 0
    out = capsys.readouterr().out
    assert "KV cache" in out
    assert not any(word in out for word in ("KV pages", "warm", "cold"))


def test_a_model_that_is_not_here_is_fetched_where_that_is_agreed_to(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(["plan", "qwen3.6-35b", "--gpu-memory", "6GiB"]) == 1
    assert "--pull" in capsys.readouterr().err
    asked = []

    def found(name: str | None, *, pull: bool) -> LocatedModel:
        asked.append((name, pull))
        return LocatedModel(here, name or "", None)

    monkeypatch.setattr("pagedrun.cli.models.missing.find_or_pull", found)
    assert main.run(["plan", "qwen3.6-35b", "--gpu-memory", "6GiB", "--pull"]) == 0
    assert asked == [("qwen3.6-35b", True)]


@pytest.mark.parametrize(
    ("name", "hint"),
    [(".", "35b.gguf"), ("empty", "no GGUF file"), ("", "list"), ("qwen3-embedding-0.6b", "embed qwen3-embedding")],
)
def test_what_is_no_model_is_said_with_what_to_do(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.chdir(here.parent)
    Path("empty").mkdir()
    assert main.run(["plan", name]) in (1, 2)
    assert hint in capsys.readouterr().err.split("hint:")[1]


def test_a_terminal_gets_whole_words(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(console, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setattr(console, "use_colour", lambda stream: False)
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "--explain"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_help_says_which_gpu(capsys: Any) -> None:
    assert main.run(["plan", "--help"]) == 0
    assert "whether it is here or not" in " ".join(capsys.readouterr().out.split())


def test_a_model_is_called_what_the_user_calls_it(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB"]) == 0
    assert capsys.readouterr().out.startswith("35b.gguf on a GPU that is not here")


def test_no_layer_on_the_gpu_is_a_plan_for_the_cpu(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "700MiB"]) == 0
    err = capsys.readouterr().err
    assert "not one layer fits 700 MiB of VRAM: with the output it takes" in err
    assert "736 MiB of it for CUDA itself; everything is computed on the CPU" in err
    assert main.run(["plan", str(here), "--gpu-memory", "2GiB", "--gpu-layers", "0"]) == 0
    out, err = capsys.readouterr()
    assert "no GPU" in out and "VRAM:" not in err


def test_the_size_of_a_gpu_is_no_limit_on_ram(here: Path, capsys: Any) -> None:
    yarn = ["-c", "1048576", "--rope-scaling", "yarn", "--json"]
    assert main.run(["plan", str(here), "--gpu-memory", "1000MiB", *yarn]) == 1
    refused, err = json.loads((found := capsys.readouterr()).out), found.err
    assert refused["missing_in"] == "RAM"
    assert "gpu_memory" not in err
    assert main.run(["plan", str(here), "--gpu-memory", "700MiB", "--json"]) == 0
    with_card = json.loads(capsys.readouterr().out)
    assert main.run(["plan", str(here), "--json"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert with_card["settings"] == without["settings"]
    assert with_card["items"] == without["items"]
    assert main.run(["plan", str(here), "--gpu-memory", "700MiB", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "- Nothing is on the GPU: not one layer fits 700 MiB" in out
    assert "Without a GPU" not in out


def test_a_kv_cache_that_is_too_large_for_the_gpu_is_named(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "4GiB", "--max-num-seqs", "256"]) in (0, 1)
    err = capsys.readouterr().err
    assert "the KV cache of 256 conversations of 8,192 tokens takes 45.0 GiB" in err
    assert "too much for 4.0 GiB of VRAM; everything is computed on the CPU" in err
    assert "not one layer" not in err


def test_what_the_ram_it_needs_is_for_is_said(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(*arguments: str) -> str:
        main.run(["plan", str(here), *arguments])
        return next(found for found in capsys.readouterr().out.splitlines() if found.startswith("RAM it needs"))

    assert ", all of the above but pages that left VRAM; " in line("--gpu-memory", "6GiB")
    assert ", for a conversation of 2,048 tokens (more holds" in line()
    assert ", for a conversation of 4,096 tokens (more holds" in line("-c", "4096")
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(32 * GIB, 21 * GIB))
    assert line("-c", "262144").endswith(", for a conversation of 262,144 tokens")


def test_the_ram_that_is_needed_is_enough(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["-c", "20000"], []):
        assert main.run(["plan", str(here), "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        least = found["ram_needed"]
        monkeypatch.setattr(machine, "memory", lambda n=least: machine.Memory(32 * GIB, n))
        length = ["-c", str(found["needed_for"])]
        assert main.run(["plan", str(here), *length]) == 0
        monkeypatch.setattr(machine, "memory", lambda n=least: machine.Memory(32 * GIB, n - (2 << 20)))
        assert main.run(["plan", str(here), *length]) == 1
        monkeypatch.setattr(machine, "memory", lambda: machine.Memory(32 * GIB, 30 * GIB))
        capsys.readouterr()


def test_other_ram_is_no_answer_to_what_vram_lacks(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "--gpu-layers", "41"]) == 1
    assert "16.0 GiB of RAM" not in capsys.readouterr().out


def test_a_larger_file_than_the_disk_has_room_for_is_said(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "--gpu-memory", "6GiB", "--disk-space", "900TiB"]) == 0
    assert "disk_space is 900 TiB, and only" in capsys.readouterr().err


def test_what_generates_no_text_is_said_before_it_is_fetched(here: Path, capsys: Any) -> None:
    assert main.run(["plan", "qwen3-embedding-0.6b"]) == 1
    assert "it does not generate text" in capsys.readouterr().err
    path = write_gguf(here.with_name("e.gguf"), "bert", {"token_embd.weight": [32, 8]}, **shape_of())
    assert main.run(["plan", str(path)]) == 1
    assert "pagedrun list" in capsys.readouterr().err


def test_more_tokens_than_the_model_has(here: Path, capsys: Any) -> None:
    assert main.run(["plan", str(here), "-c", "300000"]) == 2
    assert "262,144" in capsys.readouterr().err


def test_an_architecture_that_is_not_known(here: Path, capsys: Any) -> None:
    path = write_gguf(here.with_name("o.gguf"), "falcon", {"blk.0.attn_q.weight": [32, 8]}, **shape_of())
    assert main.run(["plan", str(path)]) == 1
    assert "falcon" in capsys.readouterr().err


def test_a_gpu_that_is_here_gets_what_is_free_or_what_was_said(here: Path) -> None:
    free = machine_facts(here, EngineConfig(), [CARD])
    assert free.vram == 7 * GIB - rules.VRAM_MARGIN
    assert not free.supposed
    assert machine_facts(here, EngineConfig(gpu_memory=4 * GIB), [CARD]).vram == 4 * GIB
    assert machine_facts(here, EngineConfig(gpu_memory=9 * GIB), [CARD]).vram == 7 * GIB
    larger = machine_facts(here, EngineConfig(), [CARD], supposed=24 * GIB)
    assert larger.supposed
    assert larger.vram == 24 * GIB
    smaller = machine_facts(here, EngineConfig(), [CARD], supposed=6 * GIB)
    assert not smaller.supposed
    assert smaller.vram == 6 * GIB


def test_what_was_measured_is_used(here: Path) -> None:
    before = machine_facts(here, EngineConfig(), [CARD])
    assert before.cuda == rules.CUDA_CONTEXT
    assert before.speeds.measured == frozenset()
    speeds.remember(MEASURED)
    after = machine_facts(here, EngineConfig(), [CARD])
    assert (after.cuda, after.speeds.pcie, after.speeds.ram) == (300 << 20, 13e9, 50e9)
    assert after.speeds.measured == {"ram", "pcie", "vram"}
    assert machine_facts(here, EngineConfig(), []).cuda == rules.CUDA_CONTEXT


def test_a_measurement_is_made_once_and_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(speeds, "_gpu_figures", lambda: asked.append(1) or {"pcie": 1e9, "vram": 2e9, "cuda": 3})
    for _ in range(2):
        facts = machine_facts(here, EngineConfig(), [CARD], probe=True)
    assert asked == [1]
    assert facts.speeds.measured == {"ram", "disk", "pcie", "vram"}
    assert facts.cuda == 3


@pytest.mark.parametrize("text", ["", "[]", "{", "\0"])
def test_a_damaged_file_of_measurements_is_none(here: Path, text: str) -> None:
    speeds.remember(MEASURED)
    (file,) = Path("cache").glob("machine.json")
    file.write_text(text)
    assert speeds.remembered() == {}


def test_real_measurements_are_plausible(tmp_path: Path) -> None:
    assert 1e8 < speeds.ram_rate(2) < 1e13
    file = tmp_path / "file"
    file.write_bytes(bytes(32 << 20))
    assert speeds.disk_rate(file) >= 0  # 0: the file system cannot
    assert speeds.disk_rate(tmp_path / "absent") == 0


def test_a_plan_for_the_cpu_whatever_the_machine_has(here: Path) -> None:
    facts = MachineFacts(gpu="RTX", vram=8 * GIB, ram=30 * GIB)
    planned = plan_model(read_facts(here), EngineConfig(), facts, forced_cpu=True)
    assert planned.plan.settings.gpu_layers == 0
