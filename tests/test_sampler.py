"""llama.cpp's sampler through the door, on SmolLM2: what each setting does.

Most tests look at one fixed set of logits ("The capital of France is"): many samplers draw from it, and what they
drew tells what the setting did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagedrun.errors import ParameterError
from tests.sampler_lab import PROMPT, Lab

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("silence")]


def ranked(lab: Lab) -> list[int]:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    return [int(t) for t in np.argsort(-lab.logits())]


def probabilities(lab: Lab) -> Any:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    logits = lab.logits().astype(np.float64)
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def test_temperature_zero_is_the_argmax_of_the_logits(lab: Lab) -> None:
    tokens = lab.tokens(PROMPT)
    sampler = lab.sampler(tokens, {"temperature": 0.0})
    lab.decode(tokens, fresh=True)
    for _ in range(16):
        expected = int(lab.logits().argmax())
        assert sampler.sample(lab.context, -1) == expected
        lab.decode([expected])


def test_same_seed_same_answer_and_the_seed_is_told(lab: Lab) -> None:
    answers = [lab.generate(settings={"seed": seed, "temperature": 1.2}) for seed in (1, 1, 2, 3)]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1
    assert lab.sampler([1], {"seed": 5}).seed == 5


def test_without_a_seed_each_sampler_draws_one(lab: Lab) -> None:
    seeds = {lab.sampler([1], {}).seed for _ in range(4)}
    assert len(seeds) == 4
    seed = seeds.pop()
    assert lab.sampler([1], {"seed": seed}).seed == seed


def test_temperature_spreads(lab: Lab) -> None:
    assert len(lab.draw(temperature=0.3)) < len(lab.draw(temperature=1.0)) < len(lab.draw(temperature=3.0))


def test_top_k(lab: Lab) -> None:
    best = ranked(lab)
    assert set(lab.draw(top_k=1)) == set(best[:1])
    assert set(lab.draw(top_k=3, temperature=3.0)) == set(best[:3])


def test_top_p_and_min_p_and_typical_p(lab: Lab) -> None:
    order, p = ranked(lab), probabilities(lab)
    nucleus = order[: int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 1]
    assert len(nucleus) < 40
    assert set(lab.draw(top_p=0.5)) <= set(nucleus)
    assert not set(lab.draw(top_p=1.0)) <= set(nucleus)
    likely = {int(t) for t in np.flatnonzero(p >= 0.1 * p.max())}
    assert set(lab.draw(min_p=0.1)) <= likely
    assert not set(lab.draw(min_p=0.0)) <= likely
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    typical = [int(t) for t in np.argsort(np.abs(-np.log(np.maximum(p, 1e-300)) - entropy))]
    kept = typical[: int(np.searchsorted(np.cumsum(p[typical]), 0.2)) + 1]
    assert set(lab.draw(typical_p=0.2)) <= set(kept)


def test_xtc_leaves_out_the_best(lab: Lab) -> None:
    best = ranked(lab)[0]
    assert lab.draw()[best] > 0
    assert lab.draw(xtc_probability=1.0, xtc_threshold=0.02)[best] == 0
    assert lab.draw(xtc_probability=1.0, xtc_threshold=0.6)[best] > 0, "a threshold above 0.5 switches it off"
    assert lab.draw(xtc_probability=0.0, xtc_threshold=0.02)[best] > 0


FOX = "The quick brown fox jumps over the lazy dog."
REPEATED = f"{FOX} {FOX} The quick brown fox jumps over the"


@pytest.mark.parametrize(
    "setting",
    [{"repeat_penalty": 5.0}, {"presence_penalty": 50.0}, {"frequency_penalty": 50.0}],
    ids=lambda s: next(iter(s)),
)
def test_penalties_look_back_at_the_prompt(lab: Lab, setting: dict[str, Any]) -> None:
    (lazy,) = lab.draw(REPEATED, 1, temperature=0.0)
    assert lab.text(lazy) == " lazy"
    assert lab.draw(REPEATED, 1, temperature=0.0, **setting)[lazy] == 0
    assert lab.draw(REPEATED, 1, temperature=0.0, repeat_last_n=0, **setting)[lazy] == 1
    assert lab.draw(REPEATED, 1, temperature=0.0, repeat_last_n=2, **setting)[lazy] == 1, "it was ten tokens ago"


def test_dry_breaks_a_repetition(lab: Lab) -> None:
    (lazy,) = lab.draw(REPEATED, 1, temperature=0.0)
    dry = {"temperature": 0.0, "dry_multiplier": 50.0}
    assert lab.draw(REPEATED, 1, **dry)[lazy] == 0
    assert lab.draw(REPEATED, 1, **dry, dry_allowed_length=40)[lazy] == 1
    assert lab.draw(REPEATED, 1, **dry, dry_penalty_last_n=0)[lazy] == 1
    assert lab.draw(REPEATED, 1, **dry, dry_base=0.5)[lazy] == 1, "a base below 1 switches it off"
    assert lab.draw(REPEATED, 1, **dry, dry_sequence_breakers=(" over",))[lazy] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_aims_at_a_surprise(lab: Lab, version: int) -> None:
    low = lab.draw(mirostat=version, mirostat_tau=0.1)
    high = lab.draw(mirostat=version, mirostat_tau=9.0)
    assert len(low) < len(high)

    def answer(eta: float) -> str:
        return lab.generate(settings={"mirostat": version, "mirostat_eta": eta, "mirostat_tau": 3.0, "seed": 4}, n=12)

    assert answer(0.0) != answer(0.9)


def test_logit_bias(lab: Lab) -> None:
    best = ranked(lab)
    assert set(lab.draw(logit_bias=((best[50], 100.0),))) == {best[50]}
    banned = tuple((t, -float("inf")) for t in best[:5])
    assert not set(lab.draw(logit_bias=banned)) & set(best[:5])
    with pytest.raises(ParameterError, match="not in the vocabulary"):
        lab.sampler([1], {"logit_bias": ((lab.n_vocab, 1.0),)})


def test_ignore_eos(lab: Lab) -> None:
    eog = {t for t in range(lab.n_vocab) if lab.llama.llama_vocab_is_eog(lab.vocab, t)}
    tokens = lab.tokens("<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n")
    lab.decode(tokens, fresh=True)
    while (best := int(lab.logits().argmax())) not in eog:  # up to where the model wants to end
        assert len(tokens) < 200
        tokens.append(best)
        lab.decode([best])
    greedy = {"temperature": 0.0}
    assert lab.sampler(tokens, greedy).sample(lab.context, -1) == best
    assert lab.sampler(tokens, greedy | {"ignore_eos": True}).sample(lab.context, -1) not in eog
