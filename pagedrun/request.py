"""What one generation is asked to do and what comes back: plain values, no behaviour.

A request enters through `Service.submit` and answers as a stream of events: any number of `TextDelta`
and then exactly one `Finished`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from pagedrun.errors import PagedrunError, ParameterError
from pagedrun.sampling import SamplingParams

RequestId = NewType("RequestId", int)


class FinishReason(str, enum.Enum):
    """Why an answer ended."""

    STOP = "stop"  # the model's end-of-generation token, or a stop string
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


class GrammarKind(str, enum.Enum):
    """Where a grammar comes from; llama.cpp treats the prompt's tail differently for each."""

    USER = "user"  # given as GBNF by the caller
    OUTPUT_FORMAT = "output_format"  # made from a JSON schema, with the template's framing
    TOOL_CALLS = "tool_calls"  # made by the chat template from the tools


@dataclass(frozen=True, slots=True)
class GrammarTrigger:
    """What switches a lazy grammar on. `type` is llama.cpp's: 0 token, 1 word, 2 pattern, 3 full pattern."""

    type: int
    value: str
    token: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A GBNF grammar that constrains the answer."""

    text: str
    kind: GrammarKind = GrammarKind.USER
    lazy: bool = False
    triggers: tuple[GrammarTrigger, ...] = ()
    generation_prompt: str = ""  # what the template already wrote of the answer, e.g. "<think>"
    preserved_tokens: tuple[str, ...] = ()  # special tokens that must appear as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The tags around a model's thinking, so that a grammar starts only after it, and an optional budget."""

    start_tag: str
    end_tags: tuple[str, ...]
    budget_tokens: int | None = None  # None: unlimited
    generation_prompt: str = ""  # what the template already wrote of the answer: it may have opened the thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One answer to generate.

    prompt: token ids, at least one.
    max_tokens: None generates until the model stops or the context is full.
    stop: strings that end the answer; they are never part of it.
    logprobs: None, or how many alternatives to report per token (0: only the chosen token's).
    preserved_tokens: special tokens to be shown as text (the chat template needs them to parse a tool call).
    priority: who has the lower one is served first, as in vLLM; among equals who came first.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    reasoning: Reasoning | None = None
    logprobs: int | None = None
    preserved_tokens: tuple[str, ...] = ()
    priority: int = 0

    def __post_init__(self) -> None:
        check_can_end(self.sampling, constrained=self.grammar is not None)


def check_can_end(sampling: SamplingParams, *, constrained: bool) -> None:
    """Raise ParameterError for `ignore_eos` with a grammar: nothing may follow a finished one but the end token."""
    if constrained and sampling.ignore_eos:
        raise ParameterError(
            "ignore_eos cannot be combined with a grammar or a JSON schema",
            hint="leave it out: a finished grammar needs the end token",
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token under the model's own distribution (before any sampler)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # alternatives, most likely first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` of the prompt were already in the KV cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: waiting for a slot, reading the prompt, generating. First token counts as prompt time.

    gap_s, max_gap_s: between two tokens of the answer, the median and the most; 0 when it has no two.
    """

    queued_s: float
    prompt_s: float
    decode_s: float
    gap_s: float = 0.0
    max_gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some more of the answer: whole characters only, stop strings excluded.

    `tokens` are the ids whose text ended in this delta; with `logprobs` asked for, one entry per token.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. `error` is set when reason is ERROR; `stop` is the stop string that matched."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    error: PagedrunError | None = None
    stop: str | None = None


Event = TextDelta | Finished
