"""How many tokens of prompts a step reads while answers are running, so that they keep flowing.

    step     | a token of each answer, weights | tokens of a prompt |
    seconds  | fixed_s                         | n * token_s        |   AIM * max_stall, by what the last steps took

An answer waits for its next token as long as a step lasts. Reading gets slower as a conversation grows, and faster
again with the next: the line through what was measured follows within a few steps. Where the fixed part alone is most
of max_stall (experts that are copied to the GPU for every chunk, say), chunks take as long again and no less: smaller
ones would hardly shorten the step, and reading would take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedrun.step import StepPlan

#: Of max_stall, what a step should take: reading gets slower with depth, and no two steps take the same.
AIM = 0.8
#: Tokens of the first chunk, when nothing is known yet.
FIRST = 256
#: Never fewer. Chunks are multiples of it.
LEAST = 32
#: What a step counts for when another has come, of 1.
_KEPT = 0.9
#: Chunks are of different lengths when they differ by so much of their mean, squared.
_DIFFERENT = 0.01


@dataclass(slots=True)
class Chunks:
    """fixed: tokens of every chunk; 0: as many as `max_stall` seconds allow, between `LEAST` and `most`."""

    fixed: int
    most: int
    max_stall: float
    _answers_s: float = 0.0  # of a step that reads no prompt
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # of weights, n, t, n * n, n * t
    _token_s: float = 0.0  # when chunks last differed; 0: they never did
    _chunk: int = FIRST

    @property
    def size(self) -> int:
        """Tokens of prompts in a step that computes answers too."""
        return min(self.fixed or self._chunk, self.most)

    def took(self, plan: StepPlan, seconds: float) -> None:
        """A step lasted so long."""
        if self.fixed or seconds <= 0:
            return
        n = sum(len(c.tokens) for c in plan.chunks if len(c.tokens) > 1)
        if not n:
            self._answers_s = _KEPT * self._answers_s + (1 - _KEPT) * seconds if self._answers_s else seconds
        elif n >= LEAST:
            new = (1.0, n, seconds, n * n, n * seconds)
            self._sums = [_KEPT * old + more for old, more in zip(self._sums, new, strict=True)]
            fixed_s, token_s = self._line()
            fits = int(max(AIM * self.max_stall - fixed_s, fixed_s) / token_s)
            if not self._token_s and seconds > self.max_stall:  # which part is to blame shows when chunks differ
                fits = n // 2 if n > 2 * LEAST else 2 * n
            self._chunk = max(min(fits, 2 * self._chunk) // LEAST * LEAST, LEAST)

    def _line(self) -> tuple[float, float]:
        """Seconds of a step beside its tokens of prompts, and for each of these."""
        w, n, t, nn, nt = self._sums
        n, t, variance, covariance = n / w, t / w, nn / w - (n / w) ** 2, nt / w - n * t / w**2
        if variance > _DIFFERENT * n * n and covariance > 0:
            self._token_s = covariance / variance
        fixed_s = t - self._token_s * n
        if not self._token_s or fixed_s < self._answers_s:
            fixed_s = min(self._answers_s, 0.9 * t)
        return fixed_s, (t - fixed_s) / n
