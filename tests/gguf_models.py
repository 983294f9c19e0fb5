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
