"""From files and machines to a plan: facts are gathered here, and pagedrun.plan reckons.

the GGUF's header ──> ModelShape ─┐
driver, /proc ──────> MachineFacts ├─> make_plan ──> Plan
llama.cpp's answers > BufferModel ─┘
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagedrun import machine, speeds
from pagedrun.config import EngineConfig
from pagedrun.gguf_file import ModelFacts
from pagedrun.paths import cache_dir, spill_dir
from pagedrun.plan import BufferModel, MachineFacts, Measured, ModelShape, Plan, Reckoned, make_plan, rules, shape_of
from pagedrun.runtime.sources import build_id

_ANSWERS = "buffers.json"
_KEPT = 200  # answers


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was made from."""

    plan: Plan
    shape: ModelShape
    machine: MachineFacts
    buffers: BufferModel
    config: EngineConfig

    def with_machine(self, other: MachineFacts) -> Plan:
        """The plan for another machine."""
        return make_plan(self.shape, other, self.config, self.buffers)


def machine_facts(
    path: Path, config: EngineConfig, gpus: Sequence[machine.Gpu], *, supposed: int = 0, probe: bool = False
) -> MachineFacts:
    """This machine. supposed: bytes of a GPU that need not be here. probe: measure what was never measured, in seconds.

    What may be used of a GPU is gpu_memory, as far as it is free; else what is free, less 512 MiB.
    """
    from pagedrun.native.placement import physical_cores

    gpu = gpus[0] if gpus else None
    free = sum(g.vram_free for g in gpus)
    asked = config.gpu_memory if gpus else 0
    memory, cores = machine.memory(), physical_cores()
    facts = MachineFacts(
        gpu=gpu.name if gpu else "",
        vram=min(asked, free) if asked else max(free - rules.VRAM_MARGIN * len(gpus), 0),
        ram=memory.available,
        ram_total=memory.total,
        cores=min(config.threads or cores, cores),
        disk=_free_disk(spill_dir()),
    )
    found = speeds.remembered()
    if probe:
        found = speeds.measure(found, gpu, facts.cores, path)
    facts = speeds.apply(facts, found, gpu, path)
    if supposed and supposed > free:
        return replace(facts, gpu="a GPU that is not here", vram=supposed, supposed=True)
    return replace(facts, vram=supposed) if supposed else facts


def _free_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or would be."""
    there = next(p for p in (folder, *folder.parents) if p.exists())
    return shutil.disk_usage(there).free


def plan_model(
    facts: ModelFacts, config: EngineConfig, found: MachineFacts, library: Any = None, *, forced_cpu: bool = False
) -> Planned:
    """The plan. library: the loaded runtime, where there is a GPU to ask about; None: buffers are reckoned."""
    shape = shape_of(facts)
    config = replace(config, gpu_layers=0) if forced_cpu else config
    buffers: BufferModel = Reckoned(shape, config)
    if library is not None and found.vram and not found.supposed:
        buffers = _asked(library, facts, shape, config)
    return Planned(make_plan(shape, found, config, buffers), shape, found, buffers, config)


def _asked(library: Any, facts: ModelFacts, shape: ModelShape, config: EngineConfig) -> BufferModel:
    """llama.cpp's answers, from the cache folder where it gave them before; reckoned where it has none."""
    from pagedrun.errors import EngineError
    from pagedrun.native.asked import Asker

    path = facts.parts[0]
    status = path.stat()
    file = cache_dir() / _ANSWERS
    of_file = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    key = f"lengths {of_file} {build_id()} {config.kv_types} {config.max_num_seqs}"
    kept = speeds.remembered(file)
    if key not in kept:
        asker = Asker(library, path, shape, config)
        try:
            kept[key] = [asker.answers(copies=copies) for copies in ((True, False) if shape.routed else (False,))]
        except EngineError:
            return Reckoned(shape, config)
        _keep(kept, file)
    return Measured(kept[key][0], kept[key][-1])


def _keep(kept: dict[str, Any], file: Path) -> None:
    with suppress(OSError):
        speeds.remember(dict(list(kept.items())[-_KEPT:]), file)
