"""Sampling settings of one request, and how defaults are layered.

Names and meanings are llama.cpp's; the sampler chain itself is llama.cpp's too (`native.sampler`).
A field left at None is filled, in order, from: the registry (`models.toml`), the GGUF's own
`general.sampling.*` metadata, llama.cpp's defaults (the values in `LLAMA_DEFAULTS`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pagedrun.errors import ParameterError

#: llama.cpp's own defaults (common_params_sampling in common/common.h of the pinned base).
LLAMA_DEFAULTS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
}

# Tokens a penalty may look back: llama.cpp allocates as many. It has no -1 for "the whole context" any more.
_WINDOW = 2**20

# name -> (lowest, highest, is an integer); None is "no bound". Temperature is open above because llama.cpp's is.
_RANGES: dict[str, tuple[float | None, float | None, bool]] = {
    "temperature": (0.0, None, False),
    "top_k": (0, 2**31 - 1, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, False),
    "repeat_penalty": (1e-3, 1e3, False),
    "repeat_last_n": (0, _WINDOW, True),
    "presence_penalty": (-1e3, 1e3, False),
    "frequency_penalty": (-1e3, 1e3, False),
    "dry_multiplier": (0.0, None, False),
    "dry_base": (0.0, None, False),
    "dry_allowed_length": (0, 2**31 - 1, True),
    "dry_penalty_last_n": (0, _WINDOW, True),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, False),
    "mirostat": (0, 2, True),
    "mirostat_tau": (0.0, None, False),
    "mirostat_eta": (0.0, None, False),
    "seed": (0, 2**32 - 2, True),  # llama.cpp reads 2**32 - 1 as "draw one"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. None means "the default", see `with_defaults`.

    Temperature 0 is greedy. `seed` None draws a fresh one per request; the same seed, prompt and settings
    give the same text. `logit_bias` maps token ids to what is added to their logits.

    Raises ParameterError from the constructor when a value is out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, (low, high, integer) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                _check(name, value, low, high, integer=integer)
        for token, bias in self.logit_bias:
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise ParameterError(f"logit_bias {token}: {bias} is not a token id and a number")

    def with_defaults(self, *layers: Mapping[str, Any]) -> SamplingParams:
        """Fill the fields that are None from `layers`, first one that has the name wins.

        Unknown names in a layer are ignored, so that a registry entry may say more than sampling.
        `LLAMA_DEFAULTS` should be the last layer.
        """
        missing = {f.name for f in fields(self) if getattr(self, f.name) is None}
        found: dict[str, Any] = {}
        for layer in layers:
            for name in missing & layer.keys():
                if layer[name] is not None:
                    found.setdefault(name, layer[name])
        return replace(self, **found)

    def override(self, **values: Any) -> SamplingParams:
        """A copy with those of `values` that are not None. Raises ParameterError for an unknown name."""
        known = {f.name for f in fields(self)}
        for name in values:
            if name not in known:
                raise ParameterError(
                    f"there is no sampling setting {name!r}", hint=f"known: {', '.join(sorted(known))}"
                )
        return replace(self, **{k: v for k, v in values.items() if v is not None})


def _check(name: str, value: Any, low: float | None, high: float | None, *, integer: bool) -> None:
    number = isinstance(value, int) if integer else isinstance(value, (int, float))
    if not number or isinstance(value, bool) or not math.isfinite(value):
        raise ParameterError(f"{name} must be {'an integer' if integer else 'a number'}, not {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):
        form = "" if integer else "g"  # g would round a large whole number
        bounds = f"from {low:{form}} to {high:{form}}" if high is not None else f"{low:{form}} or more"
        raise ParameterError(f"{name} must be {bounds}, not {value!r}")
