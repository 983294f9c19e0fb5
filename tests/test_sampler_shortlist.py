"""The sampler looks at the likeliest tokens only, where that gives the same: it must be the same token, always.

The other side is made to walk the whole vocabulary by more biases (of nothing) than a shortlist allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.sampler_lab import PROMPT, Lab

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.real

WHOLE = tuple((token, 0.0) for token in range(2000, 3100))
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "greedy": {"temperature": 0.0},
    "hot and wide": {"temperature": 2.0, "top_k": 300, "top_p": 1.0, "min_p": 0.0},
    "narrow": {"top_k": 1},
    "typical": {"typical_p": 0.6, "top_k": 100},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "repeat penalty": {"repeat_penalty": 1.3, "temperature": 1.5},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repeat_last_n": 256},
    "raised penalty": {"presence_penalty": -1.0, "temperature": 1.2},
    "biases": {"logit_bias": ((7042, -100.0), (260, float("-inf")), (33000, 12.0), (5, 3.0)), "temperature": 1.5},
    "dry": {"dry_multiplier": 0.8},
    "mirostat": {"mirostat": 2},
    "ignore_eos": {"ignore_eos": True, "temperature": 1.5},
}


def pair(lab: Lab, tokens: list[int], settings: dict[str, Any], seed: int) -> tuple[Any, Any]:
    whole = settings | {"logit_bias": (*settings.get("logit_bias", ()), *WHOLE)}
    return tuple(lab.sampler(tokens, s | {"seed": seed}) for s in (settings, whole))  # type: ignore[return-value]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_along_an_answer(lab: Lab, settings: dict[str, Any]) -> None:
    tokens = lab.tokens(PROMPT)
    short, whole = pair(lab, tokens, settings, seed=11)
    lab.decode(tokens, fresh=True)
    for _ in range(40):
        token = short.sample(lab.context, -1)
        assert token == whole.sample(lab.context, -1)
        lab.decode([token])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_on_made_up_logits(lab: Lab, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    tokens = lab.tokens(PROMPT)
    lab.decode(tokens, fresh=True)
    view = np.ctypeslib.as_array(lab.llama.llama_get_logits_ith(lab.context, -1), (lab.n_vocab,))
    for seed in range(30):
        view[:] = rng.standard_normal(lab.n_vocab) * rng.choice([0.1, 3.0, 30.0])
        view[rng.integers(0, lab.n_vocab, 50)] += rng.choice([0.0, 20.0])
        view[rng.integers(0, lab.n_vocab, rng.choice([0, 10, 40_000]))] = -np.inf
        short, whole = pair(lab, tokens, settings, seed)
        assert short.sample(lab.context, -1) == whole.sample(lab.context, -1)
        short.close()
        whole.close()


@pytest.mark.parametrize("kind", ["equal", "mostly banned"])
def test_when_there_is_no_short_list(lab: Lab, kind: str) -> None:
    """Ties and bans leave nothing to tell apart: the whole vocabulary answers."""
    tokens = lab.tokens(PROMPT)
    lab.decode(tokens, fresh=True)
    view = np.ctypeslib.as_array(lab.llama.llama_get_logits_ith(lab.context, -1), (lab.n_vocab,))
    view[:] = 0.0 if kind == "equal" else -np.inf
    view[:3] = 1.0
    short, whole = pair(lab, tokens, {"top_k": 3}, seed=5)
    assert short.sample(lab.context, -1) == whole.sample(lab.context, -1) < 3
