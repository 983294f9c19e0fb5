"""One engine step: what the scheduler wants computed, and what came of it.

    scheduler --StepPlan--> runner --StepResult--> scheduler

A step feeds, for each running conversation, a run of tokens at consecutive positions of its slot. There
is no prefill or decode phase: a conversation with many uncomputed tokens gets a long run, one that is
generating gets a run of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType, Protocol

from pagedrun.errors import PagedrunError
from pagedrun.request import GenerationRequest, TokenLogprob

Slot = NewType("Slot", int)

#: A recurrent state, read-only.
State = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to append to a slot: tokens[i] goes to position start + i. `sample` asks for the next token."""

    slot: Slot
    start: int
    tokens: tuple[int, ...]
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks in ascending slot order (llama.cpp splits the batch otherwise), at most one per slot."""

    chunks: tuple[Chunk, ...]

    @property
    def n_tokens(self) -> int:
        """How many tokens the step computes."""
        return sum(len(c.tokens) for c in self.chunks)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token chosen for a slot."""

    token: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens sampled, by slot, and slots that failed. Times are seconds spent in native code."""

    sampled: dict[Slot, Sampled] = field(default_factory=dict)
    failed: dict[Slot, PagedrunError] = field(default_factory=dict)
    decode_s: float = 0.0
    sample_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What a runner can hold: slots, tokens per slot, tokens per step."""

    max_num_seqs: int
    max_seq_len: int
    max_batch_tokens: int


class Vocab(Protocol):
    """The model's tokens, for text in and out."""

    n_tokens: int

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; empty for special tokens unless `special`."""
        ...

    def is_eog(self, token: int) -> bool:
        """Whether the token ends an answer (any of the model's end-of-generation tokens)."""
        ...

    def is_control(self, token: int) -> bool:
        """Whether the token is one of a template's and never of text, like <|im_start|>."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`; `add_special` adds BOS/EOS as the model wants, `parse_special` reads <|tags|>."""
        ...


class Runner(Protocol):
    """What the engine needs of the native side. Called from the engine thread only."""

    limits: RunnerLimits
    vocab: Vocab
    can_rewind: bool
    """Whether a slot can forget its last tokens; recurrent and sliding-window models cannot."""

    def open(self, slot: Slot, request: GenerationRequest) -> None:
        """Make the sampler for a request. Raises RequestError (bad grammar, bad parameter) and changes nothing."""
        ...

    def close(self, slot: Slot) -> None:
        """Drop the slot's sampler. What the slot computed stays in the KV cache until `trim`."""
        ...

    def trim(self, slot: Slot, length: int) -> int:
        """Forget everything from position `length` on; returns the length really kept.

        Recurrent and sliding-window models cannot go back: for them the answer is the present length when
        nothing has to be forgotten, else 0.
        """
        ...

    def snapshot(self, slot: Slot) -> State:
        """What a model that cannot go back needs to go on from here later; empty when there is nothing to take."""
        ...

    def restore(self, slot: Slot, snapshot: State, length: int) -> bool:
        """Make the slot what one was when it held `length` tokens and the snapshot was taken.

        A model that can go back needs none. The rows of the KV cache are the caller's affair. False, and the slot is
        empty, when it cannot be done.
        """
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. Raises EngineError when the whole batch failed; nothing was committed then."""
        ...

    def shutdown(self) -> None:
        """Free the context and the model."""
        ...
