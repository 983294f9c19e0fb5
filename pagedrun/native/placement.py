"""llama.cpp's parameters for a model on this machine: what goes on the GPU, how long the context is.

On a GPU a plan (pagedrun.plan) decides. For architectures that it does not know, and for several GPUs, llama.cpp's own
fitting does (common/fit.h): as many layers as free VRAM holds, routed experts moved to the CPU first. On the CPU there
is nothing to place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.native.context import GGML_TYPES
from pagedrun.native.door import Door, FitHandle
from pagedrun.native.override import Overrides
from pagedrun.plan import Plan, rules
from pagedrun.rope import Yarn

_FLASH_ATTENTION_ON = 1  # llama_flash_attn_type; the default is -1, automatic
_LOAD_NONE, _LOAD_MMAP = 0, 1  # llama_load_mode; without a mapping, weights in RAM are in memory that is pinned
_DOES_NOT_FIT = 1  # common_params_fit_status
_MIN_CONTEXT = 8192  # fitting shortens an unasked-for context down to this before it takes layers off the GPU
_BATCH_GPU = rules.BATCHES[0]


class Placement:
    """Model and context parameters. Keep it alive until the model is loaded: llama.cpp reads its arrays then."""

    def __init__(
        self,
        llama: Any,
        door: Door,
        path: Path,
        config: EngineConfig,
        *,
        plan: Plan | None = None,
        free_vram: int = 0,
        yarn: Yarn | None = None,
    ) -> None:
        """plan: what was decided; None leaves it to llama.cpp. free_vram: before anything is loaded, for gpu_memory.

        yarn: how positions are scaled; None: as the file has them.
        """
        self._llama = llama
        self.plan = plan
        self.model_params = llama.llama_model_default_params()
        self.context_params = llama.llama_context_default_params()
        self.on_gpu = config.gpu_layers != 0 and bool(llama.llama_supports_gpu_offload())
        if plan is not None:
            self.on_gpu = plan.settings.gpu_layers > 0
        self._fill_context(config)
        if yarn is not None:
            yarn.fill(self.context_params)
        self._fit: FitHandle | None = None
        if plan is not None:
            self._follow(plan)
        elif not self.on_gpu:
            self.model_params.n_gpu_layers = 0
        elif config.gpu_layers > 0:
            self.model_params.n_gpu_layers = config.gpu_layers
        else:
            beyond = free_vram - config.gpu_memory if config.gpu_memory else 0
            self._let_fit(door, path, max(rules.VRAM_MARGIN, beyond), config.max_num_seqs)

    def _follow(self, plan: Plan) -> None:
        settings, params = plan.settings, self.model_params
        params.n_gpu_layers = settings.gpu_layers
        if settings.ram_experts:
            self._overrides = Overrides(self._llama, settings.ram_experts)
            params.tensor_buft_overrides = self._overrides.pointer
        if settings.pinned:
            params.load_mode = _LOAD_NONE
        elif plan.from_disk:
            params.load_mode = _LOAD_MMAP

    def _let_fit(self, door: Door, path: Path, margin: int, n_seqs: int) -> None:
        self._fit = door.fit(
            str(path), self.model_params, self.context_params, margin=margin, n_ctx_min=_MIN_CONTEXT * n_seqs
        )
        if self._fit.report["status"] == _DOES_NOT_FIT:
            raise NotEnoughMemoryError(
                f"no placement of {path.name} fits the VRAM that is free",
                hint="lower --max-seq-len, use --kv-type q8_0, or --gpu-layers 0 for the CPU",
            )

    def set_seq_len(self, seq_len: int, num_seqs: int) -> None:
        """The context: tokens per conversation, and conversations."""
        self.context_params.n_ctx = seq_len * num_seqs
        self.context_params.n_seq_max = num_seqs
        # One token is sampled per conversation and step. llama.cpp would otherwise reserve logits for a whole batch:
        # 2 GB of VRAM with 2,048 tokens and the 35B's vocabulary.
        self.context_params.n_outputs_max = num_seqs

    @property
    def fitted_seq_len(self) -> int:
        """Tokens per conversation that fitting chose, or 0 when it left the model's own length."""
        return int(self.context_params.n_ctx // self.context_params.n_seq_max)

    def _fill_context(self, config: EngineConfig) -> None:
        params = self.context_params
        batch = config.max_batch_tokens or (_BATCH_GPU if self.on_gpu else rules.CPU_BATCH)
        if self.plan is not None and self.on_gpu:
            batch = self.plan.settings.batch
        self.set_seq_len(config.max_seq_len, config.max_num_seqs)
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = config.threads or physical_cores()
        params.type_k, params.type_v = (GGML_TYPES[kind] for kind in config.kv_types)
        if config.kv_types[1] not in ("f16", "bf16", "f32"):
            params.flash_attn_type = _FLASH_ATTENTION_ON  # a quantised V cache needs it
        params.no_perf = True
        params.swa_full = False


def physical_cores() -> int:
    """CPU cores without hyper-threads, of those this process may use."""
    usable = len(os.sched_getaffinity(0))
    return min(psutil.cpu_count(logical=False) or usable, usable)
