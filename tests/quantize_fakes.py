"""Small GGUF files, Hugging Face folders and importance matrices for the tests of `pagedrun quantize`."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from pagedrun.native.quantizer import Plan


def make_gguf(path: Path, *, weights: str = "F16", layer: int = 0) -> Path:
    """A GGUF of two tensors, which no llama.cpp could load."""
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType[weights]
    data = gguf.quants.quantize(np.ones((16, 32), np.float32), kind)
    writer.add_tensor(f"blk.{layer}.attn_q.weight", data, raw_dtype=kind)
    writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(32, np.float32))
    _write(writer)
    return path


def make_imatrix(
    path: Path, sums: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray], *, with_keys: bool = True
) -> Path:
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    if with_keys:
        writer.add_array("imatrix.datasets", ["some.txt"])
        writer.add_uint32("imatrix.chunk_count", 7)
        writer.add_uint32("imatrix.chunk_size", 512)
    for suffix, tensors in ((".in_sum2", sums), (".counts", counts)):
        for name, values in tensors.items():
            writer.add_tensor(name + suffix, values)
    _write(writer)
    return path


def legacy_imatrix(values: Mapping[str, tuple[int, list[float]]], *, tail: bytes = b"") -> bytes:
    """The older format: name -> (calls, sums)."""
    data = struct.pack("<i", len(values))
    for name, (calls, sums) in values.items():
        data += struct.pack(f"<i{len(name)}sii{len(sums)}f", len(name), name.encode(), calls, len(sums), *sums)
    return data + tail


def make_folder(folder: Path) -> Path:
    """A Hugging Face folder that is whole, with weights that are no model's."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors({"a": 8, "b": 4}))
    return folder


def safetensors(tensors: Mapping[str, int]) -> bytes:
    """Name -> bytes."""
    header, end = {}, 0
    for name, n_bytes in tensors.items():
        header[name] = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def plan(before: Mapping[str, str], after: Mapping[str, str], **more: object) -> Plan:
    values = {"sizes": dict.fromkeys(after, 32), "file_size": 1000, "needs_imatrix": False, "fallbacks": 0, **more}
    return Plan(before=before, after=after, **values)  # type: ignore[arg-type]


def first_layers(model: Path, target: Path, *, layers: int, split: int = 0) -> list[Path]:
    """The first `layers` of the model, in parts of `split` tensors; the paths."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, "llama", split_max_tensors=split)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = layers if field.name == "llama.block_count" else field.contents()
        writer.add_key_value(
            field.name, value, field.types[0], sub_type=field.types[1] if len(field.types) > 1 else None
        )
    for tensor in reader.tensors:
        _, _, rest = tensor.name.partition("blk.")
        if not rest or int(rest.partition(".")[0]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    _write(writer)
    return sorted(target.parent.glob(f"{target.stem}*"))


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
