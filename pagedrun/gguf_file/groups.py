"""What a tensor is for, by its name in llama.cpp (src/llama-arch.cpp): the unit in which sizes and placement are told.

Routed experts are most of a mixture-of-experts model, and of each token only a few of them are used: they are what
can stay in RAM when the rest is on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: In the order in which they are shown.
GROUPS = (
    "token embeddings",
    "attention",
    "recurrent",
    "feed-forward",
    "shared experts",
    "routed experts",
    "router",
    "norms",
    "output",
    "other",
)

_LAYER = re.compile(r"(?:\w+\.)?blk\.(\d+)\.")
_ATTENTION = re.compile(r"attn_|cross_attn_|vis_attn_|indexer")

# The first that matches counts.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("router", re.compile(r"ffn_gate_inp|exp_probs_b|ffn_gate_tid2eid")),
    ("norms", re.compile(r"\w*norm|ln[12]\b|post_ln|pre_ln")),
    ("token embeddings", re.compile(r"(token_embd|position_embd|token_types|per_layer_token_embd)\b")),
    ("output", re.compile(r"(output|cls|cls\.output|dense_[23])(\.weight|\.bias)?$")),
    ("shared experts", re.compile(r"ffn_\w+_shexp\b")),
    ("routed experts", re.compile(r"ffn_\w+_(ch)?exps\b|ffn_(gate|up|down)\.\d+\b")),
    ("recurrent", re.compile(r"ssm_|shortconv|time_mix_|channel_mix_")),
    ("attention", _ATTENTION),
    ("feed-forward", re.compile(r"ffn_|vis_(gate|up|down)")),
)


def group_names(names: Iterable[str]) -> dict[str, str]:
    """Tensor's name -> its group, one of GROUPS, for all tensors of a model."""
    names = list(names)
    linear = _linear_layers(names)
    return {name: _group(name, linear) for name in names}


def _group(name: str, linear: set[str]) -> str:
    layer = _LAYER.match(name)
    rest = name[layer.end() :] if layer else name
    group = next((group for group, rule in _RULES if rule.match(rest)), "other")
    return "recurrent" if group == "attention" and layer and layer[1] in linear else group


def _linear_layers(names: Iterable[str]) -> set[str]:
    """Layers of linear attention (Qwen3.5, Kimi): its tensors are named attn_ and ssm_, and all are recurrent.

    Layers with `ssm_in` are Mamba's, which may have real attention beside it (Falcon-H1).
    """
    layers: dict[str, set[str]] = {}
    for name in names:
        if match := _LAYER.match(name):
            layers.setdefault(match[1], set()).add(name[match.end() :].split(".", maxsplit=1)[0])
    return {layer for layer, parts in layers.items() if "ssm_in" not in parts and any(p[:4] == "ssm_" for p in parts)}
