"""Sampling settings: ranges, layers of defaults, and what of a request reaches llama.cpp. No library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.errors import EngineError, GrammarError, ParameterError
from pagedrun.native.sampler import Sampler
from pagedrun.request import GenerationRequest, Grammar, GrammarKind, GrammarTrigger, Reasoning
from pagedrun.sampling import _RANGES, LLAMA_DEFAULTS, SamplingParams

INTEGERS = [name for name, (_, _, integer) in _RANGES.items() if integer]
NAMES = st.sampled_from(sorted(_RANGES))


class FakeDoor:
    """Keeps what the sampler was made of; samples `tokens`, then fails."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)
        self.params: dict[str, Any] = {}
        self.accepted: list[list[int]] = []
        self.closed = 0
        self.seed = 7
        self.error = "the grammar is at its end"

    def sampler(self, model: Any, params: Mapping[str, Any]) -> FakeDoor:
        self.params = json.loads(json.dumps(params, allow_nan=False))  # what crosses the door
        return self

    def accept(self, tokens: list[int]) -> None:
        self.accepted.append(list(tokens))

    def sample(self, context: Any, index: int) -> int:
        return self.tokens.pop(0) if self.tokens else -1

    def close(self) -> None:
        self.closed += 1


def sampler(door: FakeDoor, sampling: SamplingParams | None = None, **request: Any) -> Sampler:
    return Sampler(door, None, GenerationRequest(prompt=(1,), **request), sampling or SamplingParams())  # type: ignore[arg-type]


def params(sampling: SamplingParams | None = None, **request: Any) -> dict[str, Any]:
    door = FakeDoor()
    sampler(door, sampling, **request)
    return door.params


@given(NAMES, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40))
def test_a_value_is_taken_exactly_when_it_is_in_range(name: str, value: float) -> None:
    low, high, integer = _RANGES[name]
    fits = (low is None or value >= low) and (high is None or value <= high)
    if fits and (isinstance(value, int) or not integer):
        assert getattr(SamplingParams(**{name: value}), name) == value
    else:
        with pytest.raises(ParameterError, match=name):
            SamplingParams(**{name: value})


@given(NAMES, st.sampled_from([math.nan, math.inf, -math.inf, "1", True, [], 1 + 2j]))
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_integers(name: str) -> None:
    with pytest.raises(ParameterError, match="integer"):
        SamplingParams(**{name: 1.0})


@pytest.mark.parametrize("bias", [(-1, 0.0), (5, math.nan), (5, math.inf)])
def test_biases_that_cannot_be(bias: tuple[int, float]) -> None:
    with pytest.raises(ParameterError, match="logit_bias"):
        SamplingParams(logit_bias=(bias,))


LAYER = st.dictionaries(st.sampled_from(["temperature", "top_k", "min_p", "unknown"]), st.none() | st.just(1))


@given(LAYER, LAYER, LAYER)
def test_the_first_layer_that_has_a_value_wins(given_: dict[str, Any], a: dict[str, Any], b: dict[str, Any]) -> None:
    own = {k: v for k, v in given_.items() if k != "unknown"}
    result = SamplingParams(**own).with_defaults(a, b, LLAMA_DEFAULTS)
    for name in ("temperature", "top_k", "min_p"):
        values = [layer[name] for layer in (own, a, b, LLAMA_DEFAULTS) if layer.get(name) is not None]
        assert getattr(result, name) == values[0]
    assert result.with_defaults(LLAMA_DEFAULTS) == result


def test_llama_defaults_name_every_setting_that_has_one() -> None:
    complete = SamplingParams().with_defaults(LLAMA_DEFAULTS)
    missing = {f.name for f in fields(complete) if getattr(complete, f.name) is None}
    assert missing == {"seed", "dry_sequence_breakers"}


def test_a_layer_is_checked_too() -> None:
    with pytest.raises(ParameterError, match="top_p"):
        SamplingParams().with_defaults({"top_p": 2.0})


def test_override() -> None:
    assert SamplingParams(top_k=1, min_p=0.5).override(top_k=2, min_p=None) == SamplingParams(top_k=2, min_p=0.5)
    with pytest.raises(ParameterError, match="wat"):
        SamplingParams().override(wat=1)


def test_settings_cross_under_their_own_names() -> None:
    complete = SamplingParams(seed=3, ignore_eos=True, dry_sequence_breakers=("\n", "é")).with_defaults(LLAMA_DEFAULTS)
    sent = params(complete)
    expected = {f.name: getattr(complete, f.name) for f in fields(complete)}
    assert sent == expected | {"dry_sequence_breakers": ["\n", "é"], "logit_bias": []}


def test_settings_left_open_are_llama_cpps_own() -> None:
    assert params() == {"ignore_eos": False, "logit_bias": []}


def test_a_ban_crosses_as_null() -> None:
    assert params(SamplingParams(logit_bias=((5, 1.5), (6, -math.inf))))["logit_bias"] == [[5, 1.5], [6, None]]


def test_the_grammar_and_the_reasoning() -> None:
    grammar = Grammar(
        text="root ::= x",
        kind=GrammarKind.TOOL_CALLS,
        lazy=True,
        triggers=(GrammarTrigger(1, "<tool>"), GrammarTrigger(0, "", 17)),
        generation_prompt="<think>",
    )
    reasoning = Reasoning(start_tag="<think>", end_tags=("</think>", "x"), generation_prompt="<think>\n")
    sent = params(grammar=grammar, reasoning=reasoning)
    assert sent["grammar"] == {
        "text": "root ::= x",
        "kind": "tool_calls",
        "lazy": True,
        "triggers": [{"type": 1, "value": "<tool>", "token": -1}, {"type": 0, "value": "", "token": 17}],
        "generation_prompt": "<think>",
    }
    assert sent["reasoning"] == {
        "start_tag": "<think>",
        "end_tags": ["</think>", "x"],
        "budget_tokens": -1,
        "generation_prompt": "<think>\n",
    }


def test_a_budget_of_nothing_is_not_no_budget() -> None:
    reasoning = Reasoning(start_tag="<think>", end_tags=("</think>",), budget_tokens=0)
    assert params(reasoning=reasoning)["reasoning"]["budget_tokens"] == 0


def test_the_prompt_is_accepted_in_pieces() -> None:
    door = FakeDoor()
    sampler(door).accept_prompt(tuple(range(20_000)))
    assert [t for piece in door.accepted for t in piece] == list(range(20_000))
    assert len(door.accepted) > 1


def test_sampling_and_its_failure() -> None:
    free = sampler(FakeDoor(4, 5))
    assert [free.sample(None, 0), free.sample(None, 0)] == [4, 5]
    with pytest.raises(EngineError, match="at its end"):
        free.sample(None, 0)
    with pytest.raises(GrammarError, match="at its end"):
        sampler(FakeDoor(), grammar=Grammar(text="root ::= x")).sample(None, 0)


def test_seed_and_close() -> None:
    door = FakeDoor()
    made = sampler(door)
    assert made.seed == 7
    made.close()
    assert door.closed == 1
