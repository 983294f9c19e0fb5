"""A request being worked on, from when it is queued until it is done."""

from __future__ import annotations

from dataclasses import dataclass

from pagedrun.request import GenerationRequest, RequestId
from pagedrun.step import Slot


@dataclass(slots=True, eq=False)
class Sequence:
    """See the module.

    computed: how many of its tokens are in the KV cache. cached: how many of the prompt were there when it was
    admitted. turn: its number in the order of arrival. overtaken: how many that came later were taken up before it,
    while it waited or paused. pauses: how often it gave its memory up for others.
    """

    id: RequestId
    request: GenerationRequest
    computed: int = 0
    cached: int = 0
    slot: Slot | None = None
    turn: int = 0
    overtaken: int = 0
    pauses: int = 0
    _tokens: list[int] | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and what was generated so far. Who only waits has no list of its own."""
        if self._tokens is None:
            self._tokens = list(self.request.prompt)
        return self._tokens

    @property
    def place(self) -> tuple[int, int]:
        """Who has the lower one comes first: by priority, and then as they arrived."""
        return self.request.priority, self.turn

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens."""
        return len(self.request.prompt)

    @property
    def n_generated(self) -> int:
        """How many tokens were generated."""
        return 0 if self._tokens is None else len(self._tokens) - self.n_prompt

    @property
    def uncomputed(self) -> int:
        """How many tokens the next steps have to compute."""
        return self.n_prompt + self.n_generated - self.computed

    def left(self, most: int) -> int:
        """How many tokens it may still be given, when a conversation can have `most`."""
        left = most - self.n_prompt - self.n_generated
        if self.request.max_tokens is not None:
            left = min(left, self.request.max_tokens - self.n_generated)
        return max(left, 0)
