"""A Llama with random weights that was trained on to make embeddings, as GGUF and in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.bert_models import POOLINGS, Array, add_tokenizer, vocabulary

LAYERS, WIDTH, HEADS, KV_HEADS, FF, WINDOW = 2, 64, 4, 2, 96, 256
HEAD = WIDTH // HEADS
EPSILON, BASE = 1e-5, 10_000.0


def weights(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """By the names in a GGUF, as (out, in)."""
    rng = np.random.default_rng(seed)

    def some(*shape: int, spread: float = 0.15, around: float = 0.0) -> npt.NDArray[np.float32]:
        return (around + spread * rng.standard_normal(shape)).astype(np.float32)

    n_vocab = len(vocabulary())
    found = {
        "token_embd.weight": some(n_vocab, WIDTH, spread=1.0),
        "output_norm.weight": some(WIDTH, around=1.0),
        "output.weight": some(n_vocab, WIDTH),
    }
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        found[b + "attn_norm.weight"] = some(WIDTH, around=1.0)
        found[b + "ffn_norm.weight"] = some(WIDTH, around=1.0)
        for name, out, into in (
            ("attn_q", WIDTH, WIDTH), ("attn_k", KV_HEADS * HEAD, WIDTH), ("attn_v", KV_HEADS * HEAD, WIDTH),
            ("attn_output", WIDTH, WIDTH), ("ffn_gate", FF, WIDTH), ("ffn_up", FF, WIDTH), ("ffn_down", WIDTH, FF),
        ):  # fmt: skip
            found[f"{b}{name}.weight"] = some(out, into)
    return found


def write_llama(path: Path, pooling: str) -> Path:
    """The model as a file, with BERT's vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(HEAD)
    writer.add_uint32("llama.pooling_type", POOLINGS[pooling])
    add_tokenizer(writer)
    for name, data in weights().items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class NumpyLlama:
    """Touvron et al., in double precision."""

    def __init__(self) -> None:
        self._w = {name: data.astype(np.float64) for name, data in weights().items()}

    def embedding(self, tokens: Sequence[int], pooling: str = "last") -> Array:
        """The text's vector, of length 1."""
        hidden = self._hidden(tokens)
        pooled = hidden.mean(axis=0) if pooling == "mean" else hidden[-1]
        vector: Array = pooled / np.linalg.norm(pooled)
        return vector

    def _hidden(self, tokens: Sequence[int]) -> Array:
        w = self._w
        x = w["token_embd.weight"][list(tokens)]
        for layer in range(LAYERS):
            b = f"blk.{layer}."
            x = x + self._attention(self._norm(x, b + "attn_norm"), b) @ w[b + "attn_output.weight"].T
            inner = self._norm(x, b + "ffn_norm")
            gate = inner @ w[b + "ffn_gate.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (inner @ w[b + "ffn_up.weight"].T)) @ w[b + "ffn_down.weight"].T
        return self._norm(x, "output_norm")

    def _attention(self, x: Array, b: str) -> Array:
        def heads(name: str, n: int) -> Array:
            split: Array = (x @ self._w[f"{b}{name}.weight"].T).reshape(len(x), n, HEAD).transpose(1, 0, 2)
            return np.repeat(split, HEADS // n, axis=0)

        q, k, v = _rotated(heads("attn_q", HEADS)), _rotated(heads("attn_k", KV_HEADS)), heads("attn_v", KV_HEADS)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(HEAD)
        seen = np.where(np.tri(len(x), dtype=bool), np.exp(scores), 0)
        found: Array = (seen / seen.sum(axis=-1, keepdims=True)) @ v
        return found.transpose(1, 0, 2).reshape(len(x), WIDTH)

    def _norm(self, x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
        return scaled * self._w[f"{name}.weight"]


def _rotated(x: Array) -> Array:
    """Pairs of neighbours turn with the position."""
    angles = np.arange(x.shape[1])[:, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)], -1)
    return turned.reshape(x.shape)
