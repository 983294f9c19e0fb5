"""From a model file to a running `Service`: checks, placement, loading, engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagedrun import machine
from pagedrun.chat import ChatTemplates
from pagedrun.config import EngineConfig
from pagedrun.engine import Engine
from pagedrun.errors import ModelError, UsageError
from pagedrun.gguf_file import KvFacts, read_facts, why_no_text
from pagedrun.memory import FreeMemory, check_context, check_weights, default_seq_len
from pagedrun.model import ModelInfo
from pagedrun.native.context import NativeContext
from pagedrun.native.door import Door
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel, OnBytes
from pagedrun.native.placement import Placement
from pagedrun.native.runner import NativeRunner
from pagedrun.service import Service
from pagedrun.step import RunnerLimits


def load_service(
    path: Path,
    config: EngineConfig,
    *,
    sampling_defaults: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    on_progress: OnBytes | None = None,
    verbose: bool = False,
) -> Service:
    """Load a model and start its engine.

    sampling_defaults: the registry's settings, used before the GGUF's own. chat_template: replaces the model's.
    on_progress gets (bytes loaded, bytes in all). verbose shows llama.cpp's log on stderr.

    Raises ModelError (a file that generates no text), ModelFileError, NotEnoughMemoryError, RuntimeLibraryError,
    UsageError (settings that do not fit the model) and TemplateError (a broken `chat_template`).
    """
    facts = read_facts(path)
    if what := why_no_text(facts):
        raise ModelError(f"{path.name} does not generate text: it is {what}", hint="what else is here: pagedrun list")
    library = load()
    library.log.verbose = verbose
    gpus = machine.gpus() if config.gpu_layers != 0 and library.llama.llama_supports_gpu_offload() else []
    free = machine.free_memory(gpus)
    check_weights(path.name, facts.file_size, free)
    door = Door(library.common)
    placement = Placement(library.llama, door, path, config)
    model = NativeModel(library, path, placement.model_params, on_progress)
    try:
        info = model.info(gpus[0].name if gpus else "CPU")
        limits = _limits(info, facts.kv or KvFacts(), placement, config, free)
        templates = ChatTemplates(door, model.pointer, chat_template)
        context = NativeContext(model, placement.context_params)
    except BaseException:
        model.close()
        raise
    runner = NativeRunner(model, context, door, limits, can_rewind=info.can_rewind)
    engine = Engine(runner, prefill_chunk=config.prefill_chunk)
    return Service(engine, info, templates, sampling_defaults=sampling_defaults)


def _limits(info: ModelInfo, kv: KvFacts, placement: Placement, config: EngineConfig, free: FreeMemory) -> RunnerLimits:
    """Settle the context length, check that it fits, and write it into the placement."""
    if config.max_seq_len > info.n_ctx_train:
        raise UsageError(
            f"{info.name} was trained for {info.n_ctx_train:,} tokens, and max_seq_len is {config.max_seq_len:,}",
            hint=f"use --max-seq-len {info.n_ctx_train} or less",
        )

    def kv_bytes(seq_len: int) -> int:
        batch = int(placement.context_params.n_ubatch)
        return config.max_num_seqs * kv.bytes_for(seq_len, config.kv_type, batch=batch)

    seq_len = config.max_seq_len or placement.fitted_seq_len
    if not seq_len:
        seq_len = default_seq_len(info.n_ctx_train, kv_bytes, free.total - info.size_bytes)
    check_context(info.size_bytes, kv_bytes(seq_len), free)
    placement.set_seq_len(seq_len, config.max_num_seqs)
    return RunnerLimits(config.max_num_seqs, seq_len, placement.context_params.n_batch)
