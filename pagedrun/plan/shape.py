"""What a model is made of, layer by layer, as far as placing it needs to know. Sizes in bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pagedrun.gguf_file import KvFacts, ModelFacts, Tensor

_LAYER = re.compile(r"blk\.(\d+)\.")

#: Their tensors go where this says. Of others llama.cpp's own fitting decides.
KNOWN = frozenset(
    ["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gpt-oss", "gemma3"]
)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer. experts: its routed experts; rest: everything else; attention: whether it keeps every token."""

    experts: int
    rest: int
    attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model. embeddings: of tokens, which stay in RAM. output: what comes after the layers; tied: its matrix
    is the embeddings.

    expert_piece: the largest tensor of routed experts. experts: how many in a layer, and how many a token uses; (0, 0)
    for a dense model. heads: of queries. ff: numbers that a token's feed-forward networks need at once.
    """

    name: str
    architecture: str
    size: int
    layers: tuple[LayerShape, ...]
    embeddings: int
    output: int
    tied: bool
    expert_piece: int
    experts: tuple[int, int]
    n_embd: int
    n_ctx_train: int
    n_vocab: int
    heads: int
    kv_heads: int
    ff: int
    n_params: int
    kv: KvFacts

    @property
    def known(self) -> bool:
        """Whether a plan may place it."""
        full = sum(layer.attention for layer in self.layers) + self.kv.window_layers + self.kv.recurrent_layers
        return self.architecture in KNOWN and self.kv.accuracy == "exact" and full == len(self.layers) > 0

    @property
    def routed(self) -> int:
        """All routed experts."""
        return sum(layer.experts for layer in self.layers)

    @property
    def rest(self) -> int:
        """All layers without their routed experts."""
        return sum(layer.rest for layer in self.layers)

    @property
    def active_share(self) -> float:
        """Of the routed experts: what a token uses."""
        count, used = self.experts
        return used / count if count else 0.0

    @property
    def active_params(self) -> float:
        """Weights that a token is multiplied with, about: as many as their share of the bytes."""
        idle = self.routed * (1 - self.active_share) + self.embeddings
        return self.n_params * max(1 - idle / max(self.size, 1), 0.0)


def shape_of(facts: ModelFacts) -> ModelShape:
    """The shape of a model from its file's header."""
    header, arch = facts.header, facts.architecture
    kv = facts.kv or KvFacts(accuracy="about")

    def number(key: str) -> int:
        return max(header.number(f"{arch}.{key}") or 0, 0)

    count = max((facts.n_layers or 0) - number("nextn_predict_layers"), 0)  # llama.cpp does not load the others
    used = facts.experts or (0, 0)
    ff = number("feed_forward_length")
    experts_ff = used[1] * (number("expert_feed_forward_length") or ff)
    outside = [t for t in facts.tensors if not _LAYER.match(t.name)]
    embeddings = sum(t.n_bytes for t in outside if t.group == "token embeddings")
    output = sum(t.n_bytes for t in outside if t.group != "token embeddings")
    tied = not any(t.name == "output.weight" for t in outside)
    if tied:
        output += embeddings  # the same matrix once more, on the GPU
    return ModelShape(
        name=facts.title or facts.name,
        architecture=arch,
        size=facts.size,
        layers=_layers(facts.tensors, count, kv),
        embeddings=embeddings,
        output=output,
        tied=tied,
        expert_piece=max((t.n_bytes for t in facts.tensors if t.group == "routed experts"), default=0),
        experts=used,
        n_embd=number("embedding_length"),
        n_ctx_train=facts.context or 0,
        n_vocab=facts.n_vocab or 0,
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv") or number("attention.head_count"),
        ff=experts_ff or ff,
        n_params=facts.n_params,
        kv=kv,
    )


def _layers(tensors: Iterable[Tensor], count: int, kv: KvFacts) -> tuple[LayerShape, ...]:
    experts, rest = [0] * count, [0] * count
    recurrent: set[int] = set()
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None or int(match[1]) >= count:
            continue
        layer = int(match[1])
        if tensor.group == "recurrent":
            recurrent.add(layer)
        if tensor.group == "routed experts":
            experts[layer] += tensor.n_bytes
        else:
            rest[layer] += tensor.n_bytes
    attention = _keeping_all(count, recurrent, kv)
    return tuple(LayerShape(experts[i], rest[i], i in attention) for i in range(count))


def _keeping_all(count: int, recurrent: set[int], kv: KvFacts) -> set[int]:
    """Layers that keep every token. Which of the others have the window does not matter here; their number does."""
    candidates = [i for i in range(count) if i not in recurrent]
    if not kv.window_layers:
        return set(candidates)
    step = len(candidates) / max(kv.full_layers, 1)
    return {candidates[min(round((i + 1) * step) - 1, len(candidates) - 1)] for i in range(kv.full_layers)}
