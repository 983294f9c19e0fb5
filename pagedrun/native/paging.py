"""A context whose KV cache is in pages, inside a budget of memory. How it is cut is `pagedrun.kv.layout`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pagedrun.errors import EngineError
from pagedrun.kv.layout import STEP, Layout, whole
from pagedrun.native.context import NativeContext
from pagedrun.native.frames import ContextMemory, NativeFrames, PagesDoor
from pagedrun.native.model import NativeModel


@dataclass(frozen=True, slots=True)
class Room:
    """A context with a paged KV cache inside a budget of bytes on the device.

    for_pages: what is left of the budget for pages. max_tokens: what one conversation may have, because buffers were
    reserved for no more.
    """

    context: NativeContext
    frames: NativeFrames
    memory: ContextMemory
    for_pages: int
    max_tokens: int
    on_gpu: bool

    @property
    def enough(self) -> bool:
        """Whether a conversation of max_tokens has its pages."""
        geometry = self.frames.geometry
        return self.for_pages >= geometry.pages_for(self.max_tokens) * geometry.frame_bytes


def open_paged(
    model: NativeModel, params: Any, door: PagesDoor, layout: Layout, *, n_kv_reserve: int
) -> tuple[NativeContext, NativeFrames | None]:
    """A context whose KV cache lives in frames; None in their place for a model that cannot have them.

    n_kv_reserve: tokens of a conversation that buffers are reserved for; 0: a whole slot's. Raises what NativeContext
    does.
    """
    door.ask_for(layout.page_bytes, layout.layers_per_slab, n_kv_reserve)
    try:
        context = NativeContext(model, params)
    finally:
        door.ask_for_none()
    try:
        return context, NativeFrames(door, context.pointer)
    except EngineError:
        return context, None


def open_within(
    budget: int, n_tokens: int, token_bytes: float, *, attempt: Callable[[int, int], Room | None]
) -> Room | None:
    """A context whose buffers and pages fit the budget together, for conversations of up to `n_tokens`.

    Attention's buffers grow with the longest conversation, so that they cannot be reserved for more tokens than there
    is room for pages, nor for less. They grow evenly: two attempts tell how much, and the third is right.

    attempt(budget, n): a context with buffers for n tokens; None where the model cannot be paged, and so is the answer.
    """
    n = whole(min(n_tokens, budget / token_bytes))
    room = attempt(budget, n)
    if room is None or room.enough or n == STEP:
        return room
    room.context.close()
    least = attempt(budget, STEP)
    assert least is not None, "the first attempt had pages"
    least.context.close()
    per_token = (least.for_pages - room.for_pages) / (n - STEP)
    return attempt(budget, whole((least.for_pages + per_token * STEP) / (token_bytes + per_token)))


def attempt_in(
    model: NativeModel, params: Any, door: PagesDoor, layout: Layout, *, on_gpu: bool
) -> Callable[[int, int], Room | None]:
    """What `open_within` needs."""

    def attempt(budget: int, n: int) -> Room | None:
        context, frames = open_paged(model, params, door, layout, n_kv_reserve=n)
        if frames is None:
            context.close()
            return None
        memory = frames.memory(on_gpu=on_gpu)
        return Room(context, frames, memory, budget - memory.device, min(n, context.n_ctx_seq), on_gpu)

    return attempt
