"""Requests and events as JSON and back: nothing of them is lost."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun import wire
from pagedrun.errors import ContextLengthError, EngineError, GrammarError, PagedrunError
from pagedrun.kv import KvStats
from pagedrun.kv.stats import DiskStats, PrefetchStats, SpillStats, SwapStats, TierStats
from pagedrun.request import (
    Finished,
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    GrammarTrigger,
    Reasoning,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
)
from pagedrun.sampling import SamplingParams
from pagedrun.server.direct import GenerateRequest
from pagedrun.sessions import NotSavedError

TOKENS = st.integers(0, 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SOME = st.lists(TEXTS, max_size=3).map(tuple)
SHARE = st.floats(0, 1)

samplings = st.builds(
    SamplingParams,
    temperature=st.none() | st.floats(0, 1e3),
    top_k=st.none() | st.integers(0, 2**31 - 1),
    top_p=st.none() | SHARE,
    dry_sequence_breakers=st.none() | SOME,
    presence_penalty=st.none() | st.floats(-1e3, 1e3),
    mirostat=st.none() | st.integers(0, 2),
    seed=st.none() | st.integers(0, 2**32 - 2),
    logit_bias=st.lists(st.tuples(TOKENS, st.floats(max_value=1e6, allow_nan=False)), max_size=3).map(tuple),
)
grammars = st.builds(
    Grammar,
    text=TEXTS,
    kind=st.sampled_from(GrammarKind),
    lazy=st.booleans(),
    triggers=st.lists(st.builds(GrammarTrigger, st.integers(0, 3), TEXTS, st.integers(-1, 100)), max_size=2).map(tuple),
    generation_prompt=TEXTS,
    preserved_tokens=SOME,
)
requests = st.builds(
    GenerationRequest,
    prompt=st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
    sampling=samplings,
    max_tokens=st.none() | st.integers(1, 10**6),
    stop=SOME,
    grammar=st.none() | grammars,
    reasoning=st.none()
    | st.builds(
        Reasoning, start_tag=TEXTS, end_tags=SOME, budget_tokens=st.none() | st.integers(0, 99), generation_prompt=TEXTS
    ),
    logprobs=st.none() | st.integers(0, 20),
    preserved_tokens=SOME,
    priority=st.integers(-5, 5),
)
LOGPROB = st.floats(max_value=0, allow_nan=False)
deltas = st.builds(
    TextDelta,
    TEXTS,
    st.lists(TOKENS, max_size=3).map(tuple),
    st.lists(
        st.builds(TokenLogprob, TOKENS, LOGPROB, st.lists(st.tuples(TOKENS, LOGPROB), max_size=2).map(tuple)),
        max_size=3,
    ).map(tuple),
)


def sent(data: Any) -> Any:
    """As the other side gets it: strict JSON, one line."""
    text = json.dumps(data, allow_nan=False)
    assert "\n" not in text
    return json.loads(text)


@given(requests)
def test_a_request_comes_as_it_was(request: GenerationRequest) -> None:
    body = {"id": "0" * 32, "request": sent(wire.request_to_json(request))}
    assert GenerateRequest.model_validate(body).request == request


@given(deltas)
def test_text_comes_as_it_was(delta: TextDelta) -> None:
    assert wire.event_from_json(sent(wire.delta_to_json(delta))) == delta


@pytest.mark.parametrize("reason", FinishReason)
def test_an_end_comes_as_it_was(reason: FinishReason) -> None:
    finished = Finished(reason, Usage(3, 4, 1), Timings(0.1, 0.2, 0.3, 0.04, 0.05), None, "stop here")
    tier = TierStats(1, 2, 3, 4, 5, "no")
    kv = KvStats(tier, tier, *range(5), *range(5), 0, spill=SpillStats("auto", 1), disk=DiskStats(2, lost=3))  # type: ignore[arg-type]
    ended = wire.Ended(finished, kv, {"saved": 1})
    back = wire.event_from_json(sent(wire.ended_to_json(ended)))
    assert back == ended and isinstance(back, wire.Ended) and back.kv is not None
    assert isinstance(back.kv.prefetch, PrefetchStats) and isinstance(back.kv.swap, SwapStats)
    assert wire.event_from_json(sent(wire.ended_to_json(wire.Ended(finished)))) == wire.Ended(finished)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GrammarError("a", hint="b"), GrammarError),
        (ContextLengthError(10, 5, hint="shorter"), ContextLengthError),
        (NotSavedError("x"), NotSavedError.__mro__[1]),  # those that `errors` has not become their next of kin
    ],
)
def test_an_error_comes_as_it_was(error: PagedrunError, kind: type[PagedrunError]) -> None:
    back = wire.error_from_json(sent(wire.error_to_json(error)))
    assert type(back) is kind and (back.message, back.hint) == (error.message, error.hint)
    if isinstance(error, ContextLengthError):
        assert isinstance(back, ContextLengthError) and (back.prompt_tokens, back.max_seq_len) == (10, 5)
    finished = Finished(FinishReason.ERROR, Usage(1, 0), Timings(0, 0, 0), error)
    ended = wire.event_from_json(sent(wire.ended_to_json(wire.Ended(finished))))
    assert isinstance(ended, wire.Ended) and type(ended.finished.error) is kind
    with pytest.raises(kind):
        wire.event_from_json(sent({"error": wire.error_to_json(error)}))


def test_a_ban_is_no_number() -> None:
    request = GenerationRequest(prompt=(1,), sampling=SamplingParams(logit_bias=((3, -math.inf),)))
    assert sent(wire.request_to_json(request))["sampling"]["logit_bias"] == [[3, "-inf"]]


@pytest.mark.parametrize("data", [{}, {"text": "a"}, {"finished": "stop"}, {"finished": "maybe"}, {"error": {}}])
def test_what_is_no_event(data: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        wire.event_from_json(data)


def test_an_unknown_kind_of_error_is_the_engines() -> None:
    assert type(wire.error_from_json({"kind": "Path", "message": "a", "hint": ""})) is EngineError
