"""SmolLM2 as a Hugging Face folder, made from its GGUF: what the converter is given in tests.

The weights lose nothing but what the GGUF had lost already; the tokenizer is put together from the GGUF's vocabulary
and merges, so that the converter recognises it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# llama.cpp's names -> those of Hugging Face's Llama
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # token type


def make_folder(model: Path, folder: Path) -> Path:
    """Write config.json, tokenizer.json and model.safetensors into the new `folder`."""
    reader = gguf.GGUFReader(model)
    folder.mkdir()
    config = _config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    _write_safetensors(folder / "model.safetensors", {_name(t.name): _weights(t, heads) for t in reader.tensors})
    _write_json(folder / "config.json", config)
    _write_tokenizer(folder, reader)
    return folder


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _value(reader, "llama.embedding_length"),
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": _value(reader, "llama.attention.head_count"),
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rms_norm_eps": float(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_value(reader, "llama.rope.freq_base")),
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }


def _name(name: str) -> str:
    *layer, part, suffix = name.split(".")
    inside = f"model.layers.{layer[1]}." if layer else ""
    return f"{inside}{_NAMES[part]}.{suffix}"


def _weights(tensor: gguf.ReaderTensor, heads: dict[str, int]) -> np.ndarray:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
    n_head = heads.get(tensor.name.split(".")[-2], 0)
    if n_head:  # llama.cpp interleaves the halves that rotate together; see LlamaModel.permute in its converter
        n_out, n_in = values.shape
        values = values.reshape(n_head, n_out // n_head // 2, 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)
    return np.ascontiguousarray(values)


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.tobytes())


def _write_tokenizer(folder: Path, reader: gguf.GGUFReader) -> None:
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    types: list[int] = _value(reader, "tokenizer.ggml.token_type")
    merges: list[str] = _value(reader, "tokenizer.ggml.merges")
    control = [i for i, kind in enumerate(types) if kind == _CONTROL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in control],
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                ],
            },
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
        },
    )
    special = {name: tokens[_value(reader, f"tokenizer.ggml.{name}_token_id")] for name in ("bos", "eos")}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "bos_token": special["bos"],
            "eos_token": special["eos"],
            "unk_token": special["bos"],
            "chat_template": _value(reader, "tokenizer.chat_template"),
        },
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
