"""What a plan says. Sizes in bytes, lengths in tokens, speeds in tokens a second."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One line: what it is, and how much of each memory it takes."""

    name: str
    vram: int = 0
    ram: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What llama.cpp and the pages are opened with.

    gpu_layers: as llama.cpp counts, with the output as one more. ram_experts: layers whose routed experts are in RAM.
    pinned: whether weights in RAM are read into pinned memory; else they are mapped from the file. fine_pages: pages of
    few tokens, with many layers side by side; else of one layer each, as for conversations that spill.
    """

    gpu_layers: int
    ram_experts: tuple[int, ...]
    max_seq_len: int
    max_num_seqs: int
    batch: int
    pinned: bool
    fine_pages: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlan:
    """The KV cache. token_bytes: of one token in all layers, wherever they are.

    hot, warm, cold: tokens of all conversations that VRAM, RAM and disk have room for (RAM is hot without a GPU).
    staging: VRAM through which the cold part of one full window is read; part of the pages' budget.
    spills: whether one conversation can become longer than what is hot.
    """

    token_bytes: float
    state_bytes: int
    hot: int
    warm: int
    cold: int
    staging: int
    spills: bool


@dataclass(frozen=True, slots=True)
class Speed:
    """At `depth` tokens of context. cold: of them not in VRAM."""

    depth: int
    cold: int
    decode: float
    prefill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan, or why there is none: `missing` bytes of `missing_in`, and what would fit.

    context: bytes on the device for a context's buffers, states and pages together. reckoned: buffers were reckoned
    and not asked of llama.cpp. from_disk: bytes of weights that RAM has no room for, and that are read again each
    time. ram_needed: without RAM for pages that had to leave VRAM, spared: of it, weights that may come from disk
    instead; swap: that for pages, as far as it can be pinned beside everything else. paged: whether the KV cache is.
    off_gpu: why nothing is on a GPU that there is. needed_for: tokens of the conversation that ram_needed is for,
    without a GPU; 0: for all that the plan says.
    """

    model: str
    gpu: str
    vram: int
    ram: int
    disk: int
    items: tuple[Item, ...]
    settings: Settings
    kv: KvPlan
    context: int
    speeds: tuple[Speed, ...] = ()
    reasons: tuple[str, ...] = ()
    missing: int = 0
    missing_in: str = ""
    nearest: tuple[str, ...] = ()
    reckoned: bool = True
    from_disk: int = 0
    ram_needed: int = 0
    spared: int = 0
    swap: int = 0
    paged: bool = True
    off_gpu: str = ""
    needed_for: int = 0

    @property
    def fits(self) -> bool:
        """Whether it can be started."""
        return not self.missing

    def total(self, memory: str) -> int:
        """All lines of "vram", "ram" or "disk"."""
        return sum(int(getattr(item, memory)) for item in self.items)
