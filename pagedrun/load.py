"""From a model file to a running `Service`: checks, placement, loading, engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedrun import machine
from pagedrun.chat import ChatTemplates
from pagedrun.config import EngineConfig
from pagedrun.engine import Engine
from pagedrun.errors import ModelError, NotEnoughMemoryError, UsageError
from pagedrun.gguf_file import KvFacts, ModelFacts, read_facts, why_no_text
from pagedrun.kv import Budget, DiskSpace, PageManager, validate
from pagedrun.lasting import identity_of, keeper_for
from pagedrun.memory import OVERHEAD_BYTES, FreeMemory, Holds, check_weights
from pagedrun.model import ModelInfo
from pagedrun.native.door import Door
from pagedrun.native.library import Library, load
from pagedrun.native.model import NativeModel, OnBytes
from pagedrun.native.paging import Room
from pagedrun.native.placement import Placement
from pagedrun.native.runner import NativeRunner
from pagedrun.native.vram import free_vram_of
from pagedrun.opening import Opened, Opening
from pagedrun.paths import spill_dir
from pagedrun.plan import Plan, rules, shape_of, text
from pagedrun.planning import machine_facts, plan_model
from pagedrun.rope import yarn_of
from pagedrun.service import Service
from pagedrun.sharing import Share
from pagedrun.slots import PagedSettings, PagedSlots
from pagedrun.slots.pressure import Pressure
from pagedrun.spilling import measure_bus, spill_settings

# Bytes of pages copied to RAM while a batch is computed. Where the pages are in RAM anyway a copy would gain nothing.
_WRITE_BACK = 32 << 20
#: Milliseconds between tokens at which text still seems to flow. A CPU reads little in that time.
_STALL_GPU, _STALL_CPU = 100, 250


def load_service(
    path: Path,
    config: EngineConfig | Share,
    *,
    sampling_defaults: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    on_progress: OnBytes | None = None,
    verbose: bool = False,
    sessions: Path | None = None,
    name: str = "",
) -> Service:
    """Load a model and start its engine.

    config: settings, or a share of what there is for several. sampling_defaults: the registry's settings, used before
    the GGUF's own. chat_template: replaces the model's. sessions: a folder for conversations that outlive the process;
    None: none do. name: of the model, for those who look at them. on_progress gets (bytes loaded, bytes in all).
    verbose shows llama.cpp's log on stderr.

    Raises ModelError (a file that generates no text), ModelFileError, NotEnoughMemoryError, RuntimeLibraryError,
    UsageError (settings that do not fit the model) and TemplateError (a broken `chat_template`).
    """
    share, config = (config, config.config) if isinstance(config, Share) else (None, config)
    facts = read_facts(path)
    if what := why_no_text(facts):
        raise ModelError(f"{path.name} does not generate text: it is {what}", hint="what else is here: pagedrun list")
    yarn = yarn_of(facts, config)
    library = load()
    library.log.verbose = verbose
    gpus = machine.gpus() if config.gpu_layers != 0 and library.llama.llama_supports_gpu_offload() else []
    now = machine.free_memory(gpus)
    free = now if share is None else FreeMemory(min(share.free.ram, now.ram), now.vram)
    plan = _plan(facts, config, gpus, library, share)
    if plan is None:
        check_weights(path.name, facts.file_size, free)
    config, free = _where_it_runs(config, free, plan)
    door = Door(library.common)
    placement = Placement(library.llama, door, path, config, plan=plan, free_vram=free.vram, yarn=yarn)
    model = NativeModel(library, path, placement.model_params, on_progress)
    try:
        if yarn is not None and not model.has_rope:
            raise UsageError(
                f"{path.name} has no positions that could be scaled", hint=f"use --max-seq-len {facts.context} or less"
            )
        info = model.info(gpus[0].name if placement.on_gpu and gpus else "CPU")
        templates = ChatTemplates(door, model.pointer, chat_template)
        opened = Opening(model, info, facts.kv or KvFacts(), placement, config, free).open()
    except BaseException:
        model.close()
        raise
    room = opened.room
    frames = None if room is None else room.frames
    runner = NativeRunner(model, opened.context, door, opened.limits, can_rewind=info.can_rewind, frames=frames)
    slots = None if room is None else _paged(runner, room, config, plan, library, free.ram)
    engine = Engine(runner, slots, prefill_chunk=config.prefill_chunk, max_stall=_stall(config, info.on_gpu))
    identity = None if sessions is None else identity_of(facts, config, frames, templates.source, yarn)
    if sessions is not None and identity is not None and slots is not None and frames is not None:
        where = (sessions, config.cache_disk)
        engine.keeper = keeper_for(engine, slots, frames, where, identity, plan=plan, name=name)
    if yarn is not None and engine.max_tokens < config.max_seq_len:
        runner.shutdown()
        raise _scaled_for_less(engine.max_tokens, config, facts.context or 0)
    gone = max(now.vram - machine.free_memory(gpus).vram, 0) if info.on_gpu else 0
    if share is None or not share.warm:
        gone = max(gone - rules.CUDA_CONTEXT, 0)  # which stays when the model goes
    holds = _holds(opened, info, plan, slots, gone)
    return Service(
        engine, info, templates, sampling_defaults=sampling_defaults, identity=identity, plan=plan, holds=holds
    )


def _holds(opened: Opened, info: ModelInfo, plan: Plan | None, slots: PagedSlots | None, gone: int) -> Holds:
    """What the model has, and may still take. gone: bytes of VRAM that loading it took, without CUDA's own."""
    kv, room = None if slots is None else slots.stats(), opened.room
    pages, swap = (kv.device.limit_bytes, kv.swap.limit) if kv else (0, 0)
    if info.on_gpu:
        weights = max(plan.ram_needed - rules.PROCESS, 0) if plan else max(info.size_bytes - gone, 0)
        buffers = kv.buffer_bytes if kv else 0
        return Holds(gone + pages + rules.CUDA_LATER, weights + swap, buffers + pages, swap)
    context = room.memory.device + pages if room else opened.kv_bytes + OVERHEAD_BYTES
    swap += room.memory.host if room else 0
    return Holds(0, info.size_bytes + context + swap, context, swap)


def _scaled_for_less(n_tokens: int, config: EngineConfig, trained: int) -> NotEnoughMemoryError:
    """Positions would be scaled for a length that memory has no room for: answers would be worse for nothing."""
    instead = f"--max-seq-len {n_tokens}" + ("" if n_tokens > trained else ", without --rope-scaling")
    return NotEnoughMemoryError(
        f"a conversation can have {n_tokens:,} of the {config.max_seq_len:,} tokens that positions are scaled for",
        hint=f"use {instead}, or raise gpu_memory, or swap_space where pages may spill",
    )


def _where_it_runs(config: EngineConfig, free: FreeMemory, plan: Plan | None) -> tuple[EngineConfig, FreeMemory]:
    """Settings and free memory as they count: where a plan leaves the GPU alone, its size is no limit on RAM."""
    if plan is None or plan.settings.gpu_layers:
        return config, free
    return replace(config, gpu_memory=0), replace(free, vram=0)


def _plan(
    facts: ModelFacts, config: EngineConfig, gpus: Sequence[machine.Gpu], library: Library, share: Share | None = None
) -> Plan | None:
    """What goes where; None where llama.cpp decides: without a GPU, with several, and for architectures not known.

    Raises NotEnoughMemoryError for a plan that does not fit.
    """
    if len(gpus) != 1 or not shape_of(facts).known:
        return None
    found = machine_facts(facts.parts[0], config, gpus)
    if share is not None:
        found = replace(found, ram=min(found.ram, share.free.ram), cuda=share.cuda)
    plan = plan_model(facts, config, found, library).plan
    if not plan.fits:
        message, hint = text.refusal(plan)
        raise NotEnoughMemoryError(f"{facts.name}: {message}", hint=hint)
    return plan


def _paged(
    runner: NativeRunner, room: Room, config: EngineConfig, plan: Plan | None, library: Library, ram: int
) -> PagedSlots:
    """Slots over frames, in what memory there is, but never more than all slots can use."""
    geometry = room.frames.geometry
    bus = measure_bus(config, room.frames)
    spill = spill_settings(config, plan, bus, step_tokens=runner.limits.max_batch_tokens)
    most = geometry.frame_bytes * geometry.n_slots * geometry.pages_for(runner.limits.max_seq_len)
    manager = PageManager(
        geometry,
        room.frames,
        gpu_memory=Budget(min(room.for_pages, most + spill.reserve(geometry))),
        swap_space=Budget(_swap(config, plan, room, ram)),
        policy=config.policy,
        disk=DiskSpace(spill_dir(), config.disk_space),
        spill=spill,
    )
    settings = PagedSettings(
        snapshot_interval=config.snapshot_interval,
        max_tokens=room.max_tokens,
        buffer_bytes=room.memory.device,
        write_back=max(_WRITE_BACK // geometry.frame_bytes, 1) if room.on_gpu else 0,
        watch=_watch(room, library) if room.on_gpu else lambda: 0,
        pace=bus.pace(room.frames, manager) if bus else lambda decoding: None,
    )
    if config.debug_kv:
        settings = replace(settings, check=functools.partial(validate, manager))
    return PagedSlots(runner, manager, settings)


def _stall(config: EngineConfig, on_gpu: bool) -> float:
    """Seconds that an answer may wait for its next token while prompts are read."""
    return (config.max_stall or (_STALL_GPU if on_gpu else _STALL_CPU)) / 1000


def _watch(room: Room, library: Library) -> Pressure:
    """Memory that others need. All of ours will be taken at some time, and CUDA's own beside it."""
    free = free_vram_of(library.llama._lib, "CUDA0")
    return Pressure(free, spare=free() - room.for_pages - rules.CUDA_LATER)


def _swap(config: EngineConfig, plan: Plan | None, room: Room, ram: int | None = None) -> int:
    """RAM for pages and snapshots: as configured, as far as it is free; on a GPU it is pinned, and the plan knows."""
    if plan is not None and room.on_gpu:
        return plan.swap
    available = machine.memory().available
    free = min(available, available if ram is None else ram) - rules.RAM_MARGIN - (0 if room.on_gpu else room.for_pages)
    return max(min(config.swap_space - room.memory.host, free), 0)
