"""The sampler of one request: its settings, grammar and reasoning budget as llama.cpp's common_sampler takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pagedrun.errors import EngineError, GrammarError
from pagedrun.native.door import Door
from pagedrun.request import GenerationRequest, Grammar, Reasoning
from pagedrun.sampling import SamplingParams

_PROMPT_CHUNK = 8192  # tokens shown to the sampler in one call


class Sampler:
    """Chooses the tokens of one request, one after the other.

    model: a llama_model pointer. Raises GrammarError when the grammar cannot be used, ParameterError when a
    setting is refused (a logit bias for a token that the vocabulary does not have).
    """

    def __init__(self, door: Door, model: Any, request: GenerationRequest, sampling: SamplingParams) -> None:
        self._constrained = request.grammar is not None
        self._handle = door.sampler(model, _params(request, sampling))

    @property
    def seed(self) -> int:
        """The seed in use, drawn by llama.cpp when the request has none."""
        return self._handle.seed

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Count prompt tokens for the penalties, DRY and the like; the grammar does not see them."""
        for start in range(0, len(tokens), _PROMPT_CHUNK):
            self._handle.accept(tokens[start : start + _PROMPT_CHUNK])

    def sample(self, context: Any, index: int) -> int:
        """The next token, from output `index` of the context's last batch.

        Raises GrammarError when no token continues the grammar, EngineError otherwise; either ends this request
        only, but every later call raises as well.
        """
        token = self._handle.sample(context, index)
        if token < 0:
            kind = GrammarError if self._constrained else EngineError
            raise kind(f"no token could be chosen: {self._handle.error}")
        return token

    def close(self) -> None:
        """Free the sampler."""
        self._handle.close()


def _params(request: GenerationRequest, sampling: SamplingParams) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value is not None:
            params[field.name] = value
    # JSON has no infinity: null stands for minus infinity, which bans the token
    params["logit_bias"] = [[t, None if math.isinf(b) else b] for t, b in sampling.logit_bias]
    if request.grammar is not None:
        params["grammar"] = _grammar(request.grammar)
    if request.reasoning is not None:
        params["reasoning"] = _reasoning(request.reasoning)
    return params


def _grammar(grammar: Grammar) -> dict[str, Any]:
    return {
        "text": grammar.text,
        "kind": grammar.kind.value,
        "lazy": grammar.lazy,
        "triggers": [{"type": t.type, "value": t.value, "token": t.token} for t in grammar.triggers],
        "generation_prompt": grammar.generation_prompt,
    }


def _reasoning(reasoning: Reasoning) -> dict[str, Any]:
    return {
        "start_tag": reasoning.start_tag,
        "end_tags": list(reasoning.end_tags),
        "budget_tokens": -1 if reasoning.budget_tokens is None else reasoning.budget_tokens,
        "generation_prompt": reasoning.generation_prompt,
    }
