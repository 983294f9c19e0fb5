"""The memory of one machine for several models of one process: what the next one may have beside those that are loaded.

gpu_memory    of the whole server: the next model gets what those that are loaded neither have nor may still take
swap_space    divided evenly, by the models that may be loaded at once; so is disk_space
cache_disk    of the folder, whoever writes there

A model is loaded beside others where it is placed as it would be alone: the same layers on the GPU, conversations at
least half as long, and half as much room for them before they spill. Else there is no room for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.gguf_file import ModelFacts, read_facts
from pagedrun.memory import FreeMemory, Holds, check_weights, fit
from pagedrun.native.library import Library, load
from pagedrun.plan import MachineFacts, Plan, rules, shape_of, text
from pagedrun.planning import machine_facts, plan_model


@dataclass(frozen=True, slots=True)
class Share:
    """What a model is loaded with: settings, and the memory that may be counted on.

    warm: CUDA is there already. cuda: bytes that it takes out of the budget.
    """

    config: EngineConfig
    free: FreeMemory
    warm: bool = False
    cuda: int = rules.CUDA_CONTEXT


class SharedMemory:
    """See the module. config: of the whole server. n_models: that may be loaded at once, by swap_space."""

    def __init__(self, config: EngineConfig, n_models: int) -> None:
        self.config = replace(
            config, swap_space=config.swap_space // n_models, disk_space=config.disk_space // n_models
        )
        self._n_models = n_models
        self._alone = Share(self.config, FreeMemory(0))  # when no model was loaded
        self._warm = False

    def share(self, beside: Iterable[Holds]) -> Share | None:
        """What the next model may have; None: those that are there leave nothing."""
        others = list(beside)
        gpus = self._gpus(load())
        now = machine.free_memory(gpus)
        warm, self._warm = self._warm, bool(gpus)
        if not others:  # once it is there CUDA is not in what is free, but in what was asked for
            cuda = 0 if warm and not self.config.gpu_memory else rules.CUDA_CONTEXT
            self._alone = Share(self.config, now, warm, cuda)
            return self._alone
        alone = self._alone.free
        taken = reduce(add, others)
        free = FreeMemory(min(alone.ram - taken.ram, now.ram), now.vram)
        asked = self.config.gpu_memory
        if gpus:
            most = min(asked or alone.vram - rules.VRAM_MARGIN * len(gpus), alone.vram)
            left = most - taken.vram
        else:
            left = asked - taken.context
        if free.ram <= 0 or len(others) >= self._n_models or (left <= 0 and (gpus or asked)):
            return None
        return Share(replace(self.config, gpu_memory=left if gpus or asked else 0), free, warm, self._alone.cuda)

    def fits(self, path: Path, beside: Iterable[Holds]) -> bool:
        """Whether a model has a place beside others that is as good as alone. Raises what `load_service` would, also
        where it would not fit without them.
        """
        others, facts = list(beside), read_facts(path)
        share, library = self.share(others), load()
        alone = self._plan(facts, self._alone, library)
        if alone is None:
            check_weights(path.name, facts.file_size, self._alone.free)
            return share is not None and fit(facts.file_size, _left(share)) == fit(facts.file_size, self._alone.free)
        if not alone.fits:
            message, hint = text.refusal(alone)
            raise NotEnoughMemoryError(f"{facts.name}: {message}", hint=hint)
        found = None if share is None else self._plan(facts, share, library)
        return found is not None and found.fits and _as_good(found, alone)

    def _gpus(self, library: Library) -> list[machine.Gpu]:
        wanted = self.config.gpu_layers != 0 and library.llama.llama_supports_gpu_offload()
        return machine.gpus() if wanted else []

    def _plan(self, facts: ModelFacts, share: Share, library: Library) -> Plan | None:
        """None where nothing can be planned."""
        gpus = self._gpus(library)
        if len(gpus) > 1 or not shape_of(facts).known:
            return None
        found = machine_facts(facts.parts[0], share.config, gpus)
        return plan_model(facts, share.config, _with(found, share), library).plan


def _with(found: MachineFacts, share: Share) -> MachineFacts:
    """The machine as a model may use it. Where others have VRAM what was free without them counts."""
    limited = share.config.gpu_memory or share.free.vram - rules.VRAM_MARGIN
    vram = max(min(limited, share.free.vram), 0)
    return replace(found, ram=max(share.free.ram, 0), vram=vram, cuda=share.cuda)


def _left(share: Share) -> FreeMemory:
    limit = share.config.gpu_memory
    return FreeMemory(share.free.ram, min(share.free.vram, limit) if limit else share.free.vram)


def _as_good(plan: Plan, alone: Plan) -> bool:
    """Whether all of the model is where it would be, and conversations are neither much shorter nor spill much more."""
    here, there = plan.settings, alone.settings
    placed = (here.gpu_layers, here.ram_experts, here.pinned) == (there.gpu_layers, there.ram_experts, there.pinned)
    hot = min(alone.kv.hot, there.max_seq_len)
    return placed and here.max_seq_len * 2 >= there.max_seq_len and plan.kv.hot * 2 >= hot
