"""A context for a loaded model: how long a conversation can be, whether the KV cache is paged, what memory pages get.

    gpu_memory   | CUDA | weights | buffers of the context | recurrent states | pages ... |     on the device
    swap_space   | what llama.cpp notes of each row | pages that had to leave | snapshots |     in RAM

Without a GPU both are RAM: weights are beside gpu_memory then, and everything but the last two is paid from it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError, UsageError
from pagedrun.gguf_file import KvFacts
from pagedrun.kv.layout import STEP, choose_layout, whole
from pagedrun.memory import OVERHEAD_BYTES, FreeMemory, check_context, default_seq_len
from pagedrun.model import ModelInfo
from pagedrun.native.context import NativeContext
from pagedrun.native.frames import PagesDoor
from pagedrun.native.model import NativeModel
from pagedrun.native.paging import Room, attempt_in, open_within
from pagedrun.native.placement import Placement
from pagedrun.plan import rules
from pagedrun.step import RunnerLimits
from pagedrun.units import size

log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62  # bytes
_NO_VMM = "this driver has no virtual memory management"


@dataclass(frozen=True, slots=True)
class Opened:
    """A context, and the room that its pages have; None: it is not paged. kv_bytes: of a cache without pages."""

    context: NativeContext
    limits: RunnerLimits
    room: Room | None = None
    kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """What a context is made from. free: before the model was loaded."""

    model: NativeModel
    info: ModelInfo
    kv: KvFacts
    placement: Placement
    config: EngineConfig
    free: FreeMemory

    def open(self) -> Opened:
        """The context, paged where that is wanted and possible. A warning says where only the driver is in the way.

        Raises NotEnoughMemoryError, and UsageError for settings that do not fit the model.
        """
        if self.config.paging == "off":
            return self._plain()
        if opened := self._paged():
            return opened
        lacking = self.kv.full_layers and not self._granularity
        if self.config.paging == "on":
            why = f": {_NO_VMM}" if lacking else ""
            raise UsageError(
                f"the KV cache of {self.info.name} cannot be paged here{why}",
                hint="use paging auto or off in the settings",
            )
        if lacking:
            log.warning("the KV cache is not paged: %s; long contexts have to fit VRAM", _NO_VMM)
        return self._plain()

    def _plain(self) -> Opened:
        """llama.cpp's own KV cache, which has all of its memory from the start."""
        n_seqs = self.config.max_num_seqs
        n_tokens = self._plain_len(n_seqs)
        kv_bytes = self._kv_bytes(n_tokens, n_seqs)
        check_context(self.info.size_bytes, kv_bytes, self.free)
        limits = self._limits(n_tokens)
        return Opened(NativeContext(self.model, self.placement.context_params), limits, kv_bytes=kv_bytes)

    def _plain_len(self, n_seqs: int) -> int:
        """Tokens of a conversation. Raises NotEnoughMemoryError where there is no room for what was asked for."""
        plan = self.placement.plan
        if self.placement.on_gpu:
            n_tokens = self._seq_len(n_seqs, self._left)
            if plan is None or not plan.kv.token_bytes:  # llama.cpp's own fitting has kept to gpu_memory
                return n_tokens
            most, room = plan.kv.hot // n_seqs, "VRAM, beside the weights"
        elif not self.config.gpu_memory:
            return self._seq_len(n_seqs, self._left)
        else:
            n_tokens = self._seq_len(n_seqs, _NO_LIMIT)
            budget = max(min(self.config.gpu_memory, self._left - OVERHEAD_BYTES), 0)
            lengths = range(STEP, whole(n_tokens) + 1, STEP)
            most = STEP * bisect_right(lengths, budget, key=lambda n: self._kv_bytes(n, n_seqs))
            room = f"the {size(budget)} that it may have"
        wanted = self.config.max_seq_len or min(STEP, n_tokens)
        if wanted > most:
            raise self._no_room(wanted, n_seqs, most, room)
        return min(n_tokens, most)

    def _no_room(self, wanted: int, n_seqs: int, most: int, room: str) -> NotEnoughMemoryError:
        """What is said of a KV cache that is not paged and too large."""
        of = f" for each of {n_seqs} conversations" if n_seqs > 1 else ""
        lower = f"lower --max-seq-len to {most} or less, " if most else ""
        return NotEnoughMemoryError(
            f"the KV cache of {wanted:,} tokens{of} takes {size(self._kv_bytes(whole(wanted), n_seqs))}, and without "
            f"pages all of it has to fit {room}",
            hint=f"{lower}raise gpu_memory, or use --kv-type q8_0",
        )

    @property
    def _granularity(self) -> int:
        """Bytes that the device maps at a time; 0: this GPU's driver maps nothing."""
        door = PagesDoor(self.model.library.llama._lib)
        return door.granularity_of("CUDA0" if self.placement.on_gpu else None)

    def _paged(self) -> Opened | None:
        door, on_gpu, granularity = PagesDoor(self.model.library.llama._lib), self.placement.on_gpu, self._granularity
        if not granularity or not self.kv.full_layers:
            return None
        budget = self._budget()
        reach = budget if on_gpu or not self._spills else budget + self.config.swap_space
        limits = self._limits(self._seq_len(1, 2 * reach))
        token_bytes = sum(self.kv.bytes_per_token(kind) / 2 for kind in self.config.kv_types)
        all_pages = min(reach, limits.max_num_seqs * limits.max_seq_len * token_bytes)
        most_needed = whole(limits.max_seq_len)
        page_size = min(self._page_size(granularity, token_bytes), most_needed)
        layout = choose_layout(page_size, self.kv, token_bytes, granularity, on_gpu=on_gpu, all_pages=all_pages)
        attempt = attempt_in(self.model, self.placement.context_params, door, layout, on_gpu=on_gpu)
        room = self._whole_window(budget, limits.max_seq_len, attempt) if self._spills else None
        if room is None:
            room = open_within(budget, limits.max_seq_len, token_bytes, attempt=attempt)
        if room is None:
            return None
        if room.for_pages < room.frames.geometry.frame_bytes:
            room.context.close()
            raise _no_page(room, budget, self.config.page_size)
        return Opened(room.context, limits, room)

    def _whole_window(self, budget: int, window: int, attempt: Callable[[int, int], Room | None]) -> Room | None:
        """With buffers for the whole window, as pages that are not on the device are read too.

        None where that leaves no room for the pages of a step, of which none can be elsewhere.
        """
        room = attempt(budget, window)
        if room is None:
            return None
        geometry = room.frames.geometry
        step = min(int(self.placement.context_params.n_batch), window)
        if self.placement.on_gpu or room.for_pages >= (geometry.pages_for(step) + 1) * geometry.frame_bytes:
            return room
        room.context.close()
        return None

    @property
    def _spills(self) -> bool:
        """Whether conversations may become longer than what is on the device: the plan says so.

        Without a GPU they may where gpu_memory is given: RAM is what is left of it, and of swap_space.
        """
        plan = self.placement.plan
        if self.config.spill == "off":
            return False
        if not self.placement.on_gpu:
            return bool(self.config.gpu_memory and self.config.swap_space)
        return plan is not None and plan.kv.spills

    @property
    def _left(self) -> int:
        return self.free.total - self.info.size_bytes

    def _budget(self) -> int:
        """Bytes that the context may take on the device, beside weights and CUDA itself."""
        if not self.placement.on_gpu:
            left = max(self._left, 0)
            return min(self.config.gpu_memory, left) if self.config.gpu_memory else left // 2
        gpus = machine.gpus()
        now = machine.free_memory(gpus).vram
        taken = max(self.free.vram - now, 0)
        allowed = self.config.gpu_memory or self.free.vram - rules.VRAM_MARGIN * len(gpus)
        left = min(allowed, self.free.vram) - taken - rules.CUDA_LATER
        plan = self.placement.plan
        return max(left if plan is None else min(left, plan.context), 0)

    def _page_size(self, granularity: int, token_bytes: float) -> int:
        """Tokens in a page: as asked for, or of one layer each where a plan says that pages will be read from RAM."""
        if self.config.page_size or not self.placement.on_gpu or not self._spills:
            return self.config.page_size
        return max(round(granularity * self.kv.full_layers / token_bytes), 1)

    def _kv_bytes(self, n_tokens: int, n_seqs: int) -> int:
        batch = int(self.placement.context_params.n_ubatch)
        keys_and_values = (self.kv.bytes_for(n_tokens, kind, batch=batch) for kind in self.config.kv_types)
        return n_seqs * (sum(keys_and_values) // 2)

    def _seq_len(self, n_seqs: int, left: int) -> int:
        """Tokens of a conversation: as asked for, or so many that `n_seqs` take half of what is left."""
        asked, most = self.config.max_seq_len, self.info.n_ctx_train
        if self.placement.plan is not None and self.placement.on_gpu:
            return self.placement.plan.settings.max_seq_len
        return (
            asked or self.placement.fitted_seq_len or default_seq_len(most, lambda n: self._kv_bytes(n, n_seqs), left)
        )

    def _limits(self, n_tokens: int) -> RunnerLimits:
        self.placement.set_seq_len(n_tokens, self.config.max_num_seqs)
        return RunnerLimits(self.config.max_num_seqs, n_tokens, self.placement.context_params.n_batch)


def _no_page(room: Room, budget: int, page_size: int) -> NotEnoughMemoryError:
    """What is short where not even one page has room."""
    buffers = f"the context's buffers take {size(room.memory.device)} of the {size(budget)} that it may have"
    if room.for_pages <= 0:
        return NotEnoughMemoryError(
            f"{buffers}, which leaves no room for a page", hint="raise gpu_memory, or lower max_batch_tokens"
        )
    geometry = room.frames.geometry
    called = f"page_size is {page_size:,}, and " if page_size else ""
    return NotEnoughMemoryError(
        f"{called}one page of {geometry.tokens_per_page:,.0f} tokens takes {size(geometry.frame_bytes)}: {buffers}, "
        "which leaves no room for a page",
        hint="lower page_size, or raise gpu_memory",
    )
