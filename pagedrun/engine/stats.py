"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedrun.kv import KvStats
    from pagedrun.step import StepPlan, StepResult


@dataclass(slots=True)
class EngineStats:
    """Totals since the start, in steps, tokens and seconds. Overhead is step time outside native code.

    max_gap_s: the longest that any answer waited for its next token. prefill_chunk: tokens of prompts that the next
    step may read beside answers. kv: the pages of the KV cache when a request last ended, or somebody had them counted,
    and of its own those that were cold then; None when it has no pages.
    """

    steps: int = 0
    tokens_computed: int = 0
    tokens_sampled: int = 0
    step_s: float = 0.0
    native_s: float = 0.0
    max_gap_s: float = 0.0
    prefill_chunk: int = 0
    kv: KvStats | None = None

    @property
    def overhead_s(self) -> float:
        """Seconds spent outside llama_decode and the samplers."""
        return self.step_s - self.native_s

    def stepped(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """A step was computed, and took so long."""
        self.steps += 1
        self.tokens_computed += plan.n_tokens
        self.tokens_sampled += len(result.sampled)
        self.native_s += result.decode_s + result.sample_s
        self.step_s += step_s
