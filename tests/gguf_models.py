"""Small but whole GGUF models, written by the gguf package, with any metadata on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
KINDS = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}


def write_gguf(
    path: Path, arch: str = "llama", tensors: Mapping[str, Sequence[int]] | None = None, /, **metadata: Any
) -> Path:
    """Zeros for tensors (name -> shape as ggml has it; F32). In keys "__" is "."; one that begins with it is arch's."""
    writer = gguf.GGUFWriter(path, arch)
    for name, value in metadata.items():
        key = arch + name.replace("__", ".") if name.startswith("__") else name.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, KINDS[type(value)])
    for name, shape in (tensors or {}).items():
        writer.add_tensor(name, np.zeros(tuple(reversed(shape)), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shape_of(**metadata: Any) -> dict[str, Any]:
    """The metadata of a model's shape: 4 layers, 8 heads of 16, as a start."""
    return {
        "__block_count": 4,
        "__embedding_length": 128,
        "__attention__head_count": 8,
        "__context_length": 4096,
        **metadata,
    }


def write_varied(path: Path) -> Path:
    """A small model with a bit of everything: all types of values, several of tensors, hybrid, with experts."""
    writer = gguf.GGUFWriter(path, "qwen35moe")
    for kind, value in {
        "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "int32": -2_000_000_000, "float32": 0.5,
        "uint64": 2**63, "int64": -(2**62), "float64": 1e300, "bool": True,
    }.items():  # fmt: skip
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    for key, number in {
        "block_count": 4, "context_length": 4096, "embedding_length": 64, "attention.head_count": 4, "expert_count": 4,
        "attention.key_length": 16, "attention.value_length": 16, "expert_used_count": 2, "full_attention_interval": 4,
        "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.group_count": 2,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen35moe.{key}", number)
    writer.add_array("qwen35moe.attention.head_count_kv", [0, 0, 0, 2])
    writer.add_string("general.name", "größer")
    writer.add_uint32("general.file_type", 15)
    writer.add_uint32("general.alignment", 64)
    writer.add_float32("general.sampling.temp", 0.7)
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(40)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 40)
    writer.add_string("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    writer.data_alignment = 64
    for name, rows, kind in (
        ("token_embd.weight", 40, Q.Q8_0), ("blk.0.attn_qkv.weight", 8, Q.Q4_0), ("blk.0.ssm_out.weight", 8, Q.F16),
        ("blk.3.ffn_up_exps.weight", 8, Q.MXFP4), ("output_norm.weight", 1, Q.F32),
    ):  # fmt: skip
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((rows, 64 // block * n_bytes), np.uint8)
        writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
