"""A MiniLM-shaped BERT with random weights as GGUF, and the same model in NumPy, which knows nothing of llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

WORDS = ("the", "a", "cat", "dog", "sat", "runs", "on", "mat", "rug", "in", "house", "hello", "world", "red", "blue")
PARTS = ("s", "ing", "ed", "ly", "er")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
CLS, SEP = 2, 3

POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
LAYERS, WIDTH, HEADS, FF, WINDOW = 3, 64, 4, 128, 128
EPSILON = 1e-12


def vocabulary() -> list[str]:
    """As the converter writes WordPiece: words begin with ▁, and what goes on has nothing in front."""
    return list(dict.fromkeys([*SPECIAL, *(f"▁{word}" for word in (*WORDS, *LETTERS)), *PARTS, *LETTERS]))


def weights(seed: int = 0, *, n_scores: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """By the names in a GGUF, as (out, in)."""
    rng = np.random.default_rng(seed)

    def some(*shape: int, spread: float = 0.15, around: float = 0.0) -> npt.NDArray[np.float32]:
        return (around + spread * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> dict[str, npt.NDArray[np.float32]]:
        return {f"{name}.weight": some(WIDTH, around=1.0), f"{name}.bias": some(WIDTH)}

    def linear(name: str, out: int, into: int) -> dict[str, npt.NDArray[np.float32]]:
        return {f"{name}.weight": some(out, into), f"{name}.bias": some(out)}

    found = {
        "token_embd.weight": some(len(vocabulary()), WIDTH, spread=1.0),
        "token_types.weight": some(2, WIDTH),
        "position_embd.weight": some(WINDOW, WIDTH, spread=0.5),
        **norm("token_embd_norm"),
    }
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found |= linear(b + name, WIDTH, WIDTH)
        found |= norm(b + "attn_output_norm") | norm(b + "layer_output_norm")
        found |= linear(b + "ffn_up", FF, WIDTH) | linear(b + "ffn_down", WIDTH, FF)
    if n_scores:
        found |= linear("cls", WIDTH, WIDTH) | linear("cls.output", n_scores, WIDTH)
    return found


def write_bert(path: Path, pooling: str | None = "mean", *, seed: int = 0, n_scores: int = 0) -> Path:
    """The model as a file. n_scores: of a reranker."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny-bert")
    writer.add_block_count(LAYERS)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(EPSILON)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_uint32("bert.pooling_type", POOLINGS[pooling])
    if n_scores:
        writer.add_array("bert.classifier.output_labels", [f"score {i}" for i in range(n_scores)])
    add_tokenizer(writer)
    for name, data in weights(seed, n_scores=n_scores).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """WordPiece."""
    tokens = vocabulary()
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL) for t in tokens])
    writer.add_token_type_count(2)
    for name, token in (("cls", CLS), ("bos", CLS), ("seperator", SEP), ("eos", SEP), ("unknown", 1), ("padding", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_uint32("tokenizer.ggml.mask_token_id", 4)


class NumpyBert:
    """Devlin et al., in double precision."""

    def __init__(self, seed: int = 0, *, n_scores: int = 0) -> None:
        self._w = {name: data.astype(np.float64) for name, data in weights(seed, n_scores=n_scores).items()}

    def hidden(self, tokens: Sequence[int]) -> Array:
        """The last layer's output, shape (tokens, WIDTH)."""
        w = self._w
        x = w["token_embd.weight"][list(tokens)] + w["position_embd.weight"][: len(tokens)] + w["token_types.weight"][0]
        x = self._norm(x, "token_embd_norm")
        for layer in range(LAYERS):
            b = f"blk.{layer}."
            x = self._norm(x + self._linear(self._attention(x, b), b + "attn_output"), b + "attn_output_norm")
            up = _gelu(self._linear(x, b + "ffn_up"))
            x = self._norm(x + self._linear(up, b + "ffn_down"), b + "layer_output_norm")
        return x

    def embedding(self, tokens: Sequence[int], pooling: str = "mean") -> Array:
        """The text's vector, of length 1."""
        hidden = self.hidden(tokens)
        pooled = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        vector: Array = pooled / np.linalg.norm(pooled)
        return vector

    def scores(self, tokens: Sequence[int]) -> Array:
        """What a reranker says."""
        return self._linear(np.tanh(self._linear(self.hidden(tokens)[0], "cls")), "cls.output")

    def _attention(self, x: Array, b: str) -> Array:
        q, k, v = (
            self._linear(x, b + name).reshape(len(x), HEADS, -1).transpose(1, 0, 2)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        seen = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS))
        found: Array = (seen / seen.sum(axis=-1, keepdims=True)) @ v
        return found.transpose(1, 0, 2).reshape(len(x), WIDTH)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._w[f"{name}.weight"].T + self._w[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        return scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
