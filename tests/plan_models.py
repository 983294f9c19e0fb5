"""Headers of models in their full shape, with a hole where the weights would be, and machines to put them on."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np

from pagedrun.config import EngineConfig
from pagedrun.plan import MachineFacts, ModelShape, Plan, Reckoned, Speeds, make_plan
from pagedrun.plan.rules import GIB

_SCRIPT = Path(__file__).parents[1] / "scripts" / "random_model.py"
N_VOCAB = 128_256


@cache
def random_model() -> ModuleType:
    """The script that knows the shapes."""
    spec = importlib.util.spec_from_file_location("random_model", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["random_model"] = module
    spec.loader.exec_module(module)
    return module


def write_hollow(path: Path, *, dense: bool = False, **sizes: Any) -> Path:
    """The 35B's shape, or the 8B's; no weights, so that 20 GB take a few KiB. sizes: fields of the shape."""
    script = random_model()
    shape = (script.DenseShape if dense else script.Shape)(**sizes)
    writer = gguf.GGUFWriter(path, "llama" if dense else "qwen35moe")
    (script.dense_metadata if dense else script.metadata)(writer, shape)
    n_vocab = shape.vocab or N_VOCAB
    writer.add_vocab_size(n_vocab)
    total = 0
    for tensor in (script.dense_tensors if dense else script.tensors)(shape, n_vocab):
        _describe(writer, tensor, script.n_bytes(tensor))
        total += script.n_bytes(tensor) + writer.data_alignment
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + total)
    return path


def _describe(writer: gguf.GGUFWriter, tensor: Any, n_bytes: int) -> None:
    ne = tuple(reversed(tensor.ne))
    if tensor.type is gguf.GGMLQuantizationType.F32:
        writer.add_tensor_info(tensor.name, ne, np.dtype(np.float32), n_bytes)
        return
    block, size = gguf.GGML_QUANT_SIZES[tensor.type]
    in_bytes = (*ne[:-1], ne[-1] // block * size)
    writer.add_tensor_info(tensor.name, in_bytes, np.dtype(np.uint8), n_bytes, raw_dtype=tensor.type)


def machine_with(vram: float, ram: float = 30, **more: Any) -> MachineFacts:
    """A machine with so many GiB free."""
    speeds = Speeds(vram=300e9, ram=50e9, pcie=25e9, disk=3e9, measured=frozenset(["vram", "ram", "pcie", "disk"]))
    facts: dict[str, Any] = {"gpu": "RTX" if vram else "", "cores": 8, "speeds": speeds, "disk": 100 * GIB}
    return MachineFacts(vram=int(vram * GIB), ram=int(ram * GIB), ram_total=int(ram * GIB) + GIB, **(facts | more))


def planned(shape: ModelShape, machine: MachineFacts, **wishes: Any) -> Plan:
    """The plan of a shape, with reckoned buffers."""
    config = EngineConfig(**wishes)
    return make_plan(shape, machine, config, Reckoned(shape, config))
