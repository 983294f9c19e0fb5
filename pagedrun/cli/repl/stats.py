"""Speeds, context and memory, as /stats shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagedrun import units
from pagedrun.cli import pages
from pagedrun.footprint import gpu_memory, process_memory
from pagedrun.request import Finished

if TYPE_CHECKING:
    from pagedrun.kv import KvStats


@dataclass(slots=True)
class Speed:
    """Tokens and seconds of one answer, or of several added up.

    The first token of an answer counts as prompt time, so the decode rate leaves it out. gap_s: median between two
    tokens of the last answer; max_gap_s: the most of any.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_s: float = 0.0
    answer_tokens: int = 0
    decoded_tokens: int = 0
    decode_s: float = 0.0
    gap_s: float = 0.0
    max_gap_s: float = 0.0
    answers: int = 0

    def add(self, finished: Finished) -> None:
        """Count one more answer."""
        usage, timings = finished.usage, finished.timings
        self.answers += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.prompt_s += timings.prompt_s
        self.answer_tokens += usage.completion_tokens
        self.decoded_tokens += max(usage.completion_tokens - 1, 0)
        self.decode_s += timings.decode_s
        self.gap_s = timings.gap_s
        self.max_gap_s = max(self.max_gap_s, timings.max_gap_s)

    @property
    def prompt(self) -> str:
        """What was read and how fast; tokens that were in the cache already do not count as read."""
        read = self.prompt_tokens - self.cached_tokens
        cached = f" + {units.count(self.cached_tokens)} cached" if self.cached_tokens else ""
        return f"{units.count(read, 'token')}{cached}, {units.tokens_per_second(read, self.prompt_s)}"

    @property
    def decode(self) -> str:
        """What was generated and how fast."""
        speed = units.tokens_per_second(self.decoded_tokens, self.decode_s)
        return f"{units.count(self.answer_tokens, 'token')}, {speed}"

    @property
    def gaps(self) -> str:
        """How long the last answer's tokens were apart."""
        return f"{1000 * self.gap_s:.0f} ms, at most {1000 * self.max_gap_s:.0f} ms"


@dataclass(slots=True)
class Stats:
    """Speeds of the last answer and of the whole session."""

    last: Speed | None = None
    session: Speed = field(default_factory=Speed)

    def add(self, finished: Finished) -> None:
        """Count an answer; one that never started (an error) has no speed."""
        self.last = Speed()
        self.last.add(finished)
        self.session.add(finished)

    def summary(self) -> str:
        """The last answer in one line."""
        return f"prompt {self.last.prompt} · answer {self.last.decode}" if self.last else ""

    def rows(
        self, *, used: int, size: int, on_gpu: bool, kv: KvStats | None, pid: int | None = None
    ) -> list[tuple[str, str]]:
        """What /stats shows: (label, value) pairs. `used` and `size` are tokens of the context; kv: of its pages.

        pid: of the process that has the model; None: it is not here.
        """
        rows = []
        if self.last:
            rows += [("last prompt", self.last.prompt), ("last answer", self.last.decode)]
            rows += [("  per token", self.last.gaps)] if self.last.max_gap_s else []
        if self.session.answers:
            rows += [
                ("session", units.count(self.session.answers, "answer")),
                ("  prompts", self.session.prompt),
                ("  answers", self.session.decode),
            ]
        percent = f"{100 * used / size:.0f}%" if size else "-"
        rows.append(("context", f"{units.count(used)} of {units.count(size, 'token')} ({percent})"))
        rows += pages.rows(kv, on_gpu=on_gpu) if kv else []
        return rows + _memory_rows(pid, on_gpu=on_gpu)


def _memory_rows(pid: int | None, *, on_gpu: bool) -> list[tuple[str, str]]:
    import psutil

    if pid is None:
        return []
    try:
        rows = [("memory", units.size(process_memory(pid)))]
    except psutil.Error:  # a server that has ended
        return []
    if on_gpu and (vram := gpu_memory(pid)) is not None:
        rows.append(("GPU memory", units.size(vram)))
    return rows
