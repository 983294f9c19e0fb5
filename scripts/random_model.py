"""Write a GGUF with the shape of Qwen3.6-35B-A3B (arch qwen35moe), its real tokenizer, and random weights.

    .venv/bin/python scripts/random_model.py OUT.gguf                the full shape: 20.8 GB, Q4_K_M-like
    .venv/bin/python scripts/random_model.py OUT.gguf --tiny         the same kinds of layers in 40 MB, for tests
    .venv/bin/python scripts/random_model.py OUT.gguf --dense        the shape of Llama-3.1-8B: 4.8 GB, all attention
    .venv/bin/python scripts/random_model.py OUT.gguf --dense --tiny its kind of attention in 64 MB

Speed and memory are those of the real model; the text is noise, and routing is uniform (the real one has locality).
The tokenizer comes from the vocabulary file in the pinned sources, so `pagedrun setup` has to have run.
"""

from __future__ import annotations

import argparse
import math
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are Qwen3.6-35B-A3B's. Every fourth layer has full attention."""

    layers: int = 40
    embd: int = 2048
    experts: int = 256
    experts_used: int = 8
    expert_ff: int = 512
    heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
    key_heads: int = 16  # of the recurrent layers
    value_heads: int = 32
    state: int = 128
    vocab: int = 248_320  # the vocabulary file has fewer tokens; unused ones make up the difference
    context: int = 262_144
    interval: int = 4


TINY = Shape(
    layers=8, embd=64, experts=8, experts_used=2, expert_ff=64, heads=4, kv_heads=2, head_dim=64, key_heads=2,
    value_heads=4, state=32, vocab=0, context=32_768,
)  # fmt: skip


@dataclass(frozen=True)
class DenseShape:
    """Sizes of a model whose layers all have attention and one feed-forward network; Llama-3.1-8B's."""

    layers: int = 32
    embd: int = 4096
    ff: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 0
    context: int = 131_072


TINY_DENSE = DenseShape(layers=4, embd=256, ff=512, heads=16, context=262_144)


class Tensor(NamedTuple):
    """ne: sizes in ggml's order. spread: standard deviation of the weights, or a constant for norms and decays."""

    name: str
    ne: tuple[int, ...]
    type: Q
    spread: float


def weight(name: str, *ne: int, type: Q = Q.Q4_K, spread: float | None = None) -> Tensor:
    """A matrix, in a type whose blocks divide its rows."""
    block = gguf.GGML_QUANT_SIZES[type][0]
    return Tensor(name, ne, type if ne[0] % block == 0 else Q.Q8_0, spread or 1 / math.sqrt(ne[0]))


def plain(name: str, *ne: int, spread: float) -> Tensor:
    """Numbers that are not quantised."""
    return Tensor(name, ne, Q.F32, spread)


def dense_tensors(s: DenseShape, n_vocab: int) -> Iterator[Tensor]:
    """All tensors of the dense shape, with the quantisation mix of a Q4_K_M file."""
    yield weight("token_embd.weight", s.embd, n_vocab, spread=0.4)
    yield plain("output_norm.weight", s.embd, spread=1.0)
    yield weight("output.weight", s.embd, n_vocab, type=Q.Q6_K)
    for layer in range(s.layers):
        finer = layer < s.layers // 8 or layer >= 7 * s.layers // 8 or (layer - s.layers // 8) % 3 == 2
        down = Q.Q6_K if finer else Q.Q4_K
        b = f"blk.{layer}."
        yield plain(b + "attn_norm.weight", s.embd, spread=1.0)
        yield weight(b + "attn_q.weight", s.embd, s.head_dim * s.heads)
        yield weight(b + "attn_k.weight", s.embd, s.head_dim * s.kv_heads)
        yield weight(b + "attn_v.weight", s.embd, s.head_dim * s.kv_heads, type=down)
        yield weight(b + "attn_output.weight", s.head_dim * s.heads, s.embd)
        yield plain(b + "ffn_norm.weight", s.embd, spread=1.0)
        yield weight(b + "ffn_gate.weight", s.embd, s.ff)
        yield weight(b + "ffn_up.weight", s.embd, s.ff)
        yield weight(b + "ffn_down.weight", s.ff, s.embd, type=down)


def tensors(s: Shape, n_vocab: int) -> Iterator[Tensor]:
    """All tensors, with the quantisation mix of a Q4_K_M file."""
    yield weight("token_embd.weight", s.embd, n_vocab, spread=0.4)
    yield plain("output_norm.weight", s.embd, spread=1.0)
    yield weight("output.weight", s.embd, n_vocab, type=Q.Q6_K)
    eighth = max(s.layers // 8, 1)
    for layer in range(s.layers):
        finer = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        down = Q.Q6_K if finer else Q.Q4_K
        b = f"blk.{layer}."
        yield plain(b + "attn_norm.weight", s.embd, spread=1.0)
        yield plain(b + "post_attention_norm.weight", s.embd, spread=1.0)
        if (layer + 1) % s.interval == 0:
            yield weight(b + "attn_q.weight", s.embd, 2 * s.head_dim * s.heads)
            yield weight(b + "attn_k.weight", s.embd, s.head_dim * s.kv_heads)
            yield weight(b + "attn_v.weight", s.embd, s.head_dim * s.kv_heads, type=down)
            yield weight(b + "attn_output.weight", s.head_dim * s.heads, s.embd)
            yield plain(b + "attn_q_norm.weight", s.head_dim, spread=1.0)
            yield plain(b + "attn_k_norm.weight", s.head_dim, spread=1.0)
        else:
            keys, values = s.state * s.key_heads, s.state * s.value_heads
            yield weight(b + "attn_qkv.weight", s.embd, 2 * keys + values)
            yield weight(b + "attn_gate.weight", s.embd, values)
            yield plain(b + "ssm_conv1d.weight", 4, 2 * keys + values, spread=0.3)
            yield plain(b + "ssm_dt.bias", s.value_heads, spread=0.1)
            yield plain(b + "ssm_a", s.value_heads, spread=-1.0)
            yield weight(b + "ssm_beta.weight", s.embd, s.value_heads, type=Q.Q8_0)
            yield weight(b + "ssm_alpha.weight", s.embd, s.value_heads, type=Q.Q8_0)
            yield plain(b + "ssm_norm.weight", s.state, spread=1.0)
            yield weight(b + "ssm_out.weight", values, s.embd)
        yield plain(b + "ffn_gate_inp.weight", s.embd, s.experts, spread=0.02)
        yield weight(b + "ffn_gate_exps.weight", s.embd, s.expert_ff, s.experts)
        yield weight(b + "ffn_up_exps.weight", s.embd, s.expert_ff, s.experts)
        yield weight(b + "ffn_down_exps.weight", s.expert_ff, s.embd, s.experts, type=down)
        yield plain(b + "ffn_gate_inp_shexp.weight", s.embd, spread=0.02)
        yield weight(b + "ffn_gate_shexp.weight", s.embd, s.expert_ff)
        yield weight(b + "ffn_up_shexp.weight", s.embd, s.expert_ff)
        yield weight(b + "ffn_down_shexp.weight", s.expert_ff, s.embd, type=down)


def n_bytes(tensor: Tensor) -> int:
    """Size of a tensor's data."""
    block, size = gguf.GGML_QUANT_SIZES[tensor.type]
    return math.prod(tensor.ne) // block * size


class Weights:
    """Random bytes that decode to weights of a given spread. Blocks are made once per kind and repeated.

    Each repetition has another scale: equal rows in the output layer would give equal logits, and which of equals is
    the likeliest token is nobody's promise.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._blocks: dict[Q, np.ndarray[Any, Any]] = {}

    def write(self, out: Any, tensor: Tensor) -> None:
        """Append a tensor's data to a file."""
        if tensor.type is Q.F32:
            out.write(self._floats(tensor).astype(np.float32).tobytes())
            return
        left = n_bytes(tensor)
        while left > 0:
            tile = self._tile(tensor.type, tensor.spread * self._rng.uniform(0.8, 1.2))
            out.write(tile[:left])
            left -= len(tile)

    def _floats(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        count = math.prod(tensor.ne)
        if tensor.spread == 1.0:
            return np.ones(count)
        if tensor.spread == -1.0:  # decays of the recurrent layers: negative, over several magnitudes
            return -np.exp(self._rng.uniform(-4, 1, count))
        return self._rng.standard_normal(count) * tensor.spread

    def _tile(self, type: Q, spread: float) -> bytes:
        """16,384 blocks of random quants under scales that give them the spread (block layouts: ggml-common.h)."""
        size = gguf.GGML_QUANT_SIZES[type][1]
        if type not in self._blocks:
            self._blocks[type] = self._rng.integers(0, 256, (1 << 14, size), dtype=np.uint8)
        blocks = self._blocks[type]

        def scale(value: float) -> np.ndarray[Any, Any]:
            return np.frombuffer(np.float16(value).tobytes(), np.uint8)

        if type is Q.Q4_K:  # d, dmin, 12 bytes of 6-bit scales, 128 bytes of 4-bit quants
            d = spread / (32 * 4.6)
            blocks[:, 0:2], blocks[:, 2:4] = scale(d), scale(7.5 * d)
        elif type is Q.Q6_K:  # quants, 16 8-bit scales, d at the end
            blocks[:, 208:210] = scale(spread / (74 * 18.5))
        else:  # Q8_0: d, 32 bytes
            blocks[:, 0:2] = scale(spread / 74)
        return blocks.tobytes()


def dense_metadata(writer: gguf.GGUFWriter, s: DenseShape) -> None:
    """Everything about the dense architecture."""
    writer.add_name("llama-3.1-8b-random")
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.embd)
    writer.add_feed_forward_length(s.ff)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_chat_template(TEMPLATE)


def metadata(writer: gguf.GGUFWriter, s: Shape) -> None:
    """Everything about the architecture."""
    rope = s.head_dim // 4
    writer.add_name("qwen3.6-35b-a3b-random")
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.embd)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(rope)
    writer.add_rope_dimension_sections([rope * 11 // 64, rope * 11 // 64, rope * 10 // 64, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(s.experts)
    writer.add_expert_used_count(s.experts_used)
    writer.add_expert_feed_forward_length(s.expert_ff)
    writer.add_expert_shared_feed_forward_length(s.expert_ff)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(s.state)
    writer.add_ssm_group_count(s.key_heads)
    writer.add_ssm_time_step_rank(s.value_heads)
    writer.add_ssm_inner_size(s.state * s.value_heads)
    writer.add_full_attention_interval(s.interval)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_chat_template(TEMPLATE)


def tokenizer(writer: gguf.GGUFWriter, vocab: Path, at_least: int) -> int:
    """Copy the tokenizer's metadata, filled up with unused tokens; returns the vocabulary's size."""
    reader = gguf.GGUFReader(vocab)
    missing = max(at_least - len(reader.fields["tokenizer.ggml.tokens"].data), 0)
    fill = {
        "tokenizer.ggml.tokens": [f"[unused{i}]" for i in range(missing)],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * missing,
    }
    for key, field in reader.fields.items():
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
            value = field.contents() + fill[key] if key in fill else field.contents()
            writer.add_key_value(key, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
    return len(reader.fields["tokenizer.ggml.tokens"].data) + missing


def write_model(path: Path, shape: Shape | DenseShape, vocab: Path) -> None:
    """Write the whole file."""
    writer = gguf.GGUFWriter(path, "llama" if isinstance(shape, DenseShape) else "qwen35moe")
    if isinstance(shape, DenseShape):
        dense_metadata(writer, shape)
        everything = list(dense_tensors(shape, tokenizer(writer, vocab, shape.vocab)))
    else:
        metadata(writer, shape)
        everything = list(tensors(shape, tokenizer(writer, vocab, shape.vocab)))
    for tensor in everything:
        numpy_shape = tuple(reversed(tensor.ne))
        if tensor.type is Q.F32:
            writer.add_tensor_info(tensor.name, numpy_shape, np.dtype(np.float32), n_bytes(tensor))
            continue
        block, size = gguf.GGML_QUANT_SIZES[tensor.type]
        in_bytes = (*numpy_shape[:-1], numpy_shape[-1] // block * size)
        dtype = np.dtype(np.uint8)
        writer.add_tensor_info(tensor.name, in_bytes, dtype, n_bytes(tensor), raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out, weights = writer.fout[0], Weights()
    for tensor in everything:
        out.write(bytes(-out.tell() % writer.data_alignment))
        weights.write(out, tensor)
    out.write(bytes(-out.tell() % writer.data_alignment))
    out.close()


def vocab_of_the_sources(folder: Path) -> Path:
    """The Qwen3.5 vocabulary out of the sources that `pagedrun setup` downloaded, unpacked into `folder`."""
    from pagedrun.paths import cache_dir

    (archive, *_) = (cache_dir() / "sdist").glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as tar:
        member = next(m for m in tar if m.name.endswith("models/ggml-vocab-qwen35.gguf"))
        source = tar.extractfile(member)
        assert source is not None
        target = folder / "vocab.gguf"
        target.write_bytes(source.read())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--vocab", type=Path, help="a GGUF to take the tokenizer from")
    args = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        dense, other = (TINY_DENSE, TINY) if args.tiny else (DenseShape(), Shape())
        shape = dense if args.dense else other
        write_model(args.out, shape, args.vocab or vocab_of_the_sources(Path(folder)))
    size = args.out.stat().st_size / 1e9
    print(f"{args.out}: {size:.2f} GB in {time.perf_counter() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
