"""What a GGUF model is, from its header alone: all that `show`, `list` and `quantize` say without loading it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file.check import split_parts
from pagedrun.gguf_file.groups import GROUPS
from pagedrun.gguf_file.kv import KvFacts, kv_facts
from pagedrun.gguf_file.reader import Header, Stored, Tensor, Value, read_header
from pagedrun.gguf_file.types import FILE_TYPES

Kind = Literal["model", "vocabulary", "projector", "adapter", "imatrix"]

_KINDS: dict[str, Kind] = {"mmproj": "projector", "adapter": "adapter", "imatrix": "imatrix"}
_TEMPLATE = "tokenizer.chat_template"

# general.sampling.KEY -> the name in SamplingParams, and its type
_SAMPLING: dict[str, tuple[str, type[int] | type[float]]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_last_n": ("repeat_last_n", int),
    "penalty_repeat": ("repeat_penalty", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The tensors of one group together. types: how many tensors have each, most first."""

    name: str
    n_tensors: int
    n_params: int
    n_bytes: int
    types: Mapping[str, int]


@dataclass(frozen=True)
class ModelFacts:
    """A model, or another kind of GGUF file. parts: its files in order; the metadata are the first one's.

    file_size: of all parts. kv: None where it cannot be told.
    """

    parts: tuple[Path, ...]
    file_size: int
    header: Header
    tensors: tuple[Tensor, ...]
    kv: KvFacts | None

    @property
    def name(self) -> str:
        """The first file's name."""
        return self.parts[0].name

    @property
    def metadata(self) -> Mapping[str, Value]:
        """By key, in the file's order; arrays are `Stored` and are read with `header.elements`."""
        return self.header.metadata

    @property
    def kind(self) -> Kind:
        """What the file is for."""
        said = self.header.text("general.type") or ""
        if said in _KINDS or self.architecture == "clip":
            return _KINDS.get(said, "projector")
        return "model" if self.tensors or not self.n_vocab else "vocabulary"

    @property
    def architecture(self) -> str:
        """As llama.cpp calls it; "" where the file does not say."""
        return self.header.text("general.architecture") or ""

    @property
    def title(self) -> str:
        """What its makers call it, or ""."""
        return self.header.text("general.name") or ""

    @property
    def license(self) -> str | None:
        """As the file has it: an SPDX id, a name, or a link."""
        return self.header.text("general.license")

    @cached_property
    def n_params(self) -> int:
        """Numbers in all tensors."""
        return sum(t.n_elements for t in self.tensors)

    @cached_property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Over all tensors; 0 without any."""
        return 8 * self.size / self.n_params if self.n_params else 0.0

    @property
    def quantization(self) -> str:
        """As the file calls its mix of types ("Q4_K_M"), else the type that most of its bytes have; "" without any."""
        if not self.size or self.kind == "imatrix":
            return ""
        called = FILE_TYPES.get(-1 if (number := self.header.number("general.file_type")) is None else number)
        bytes_of: Counter[str] = Counter()
        for tensor in self.tensors:
            bytes_of[tensor.type] += tensor.n_bytes
        return called or bytes_of.most_common(1)[0][0]

    @property
    def n_layers(self) -> int | None:
        """Blocks, with those that only predict further tokens."""
        return self._number("block_count")

    @property
    def context(self) -> int | None:
        """Tokens it was trained for."""
        return self._number("context_length")

    @property
    def n_vocab(self) -> int | None:
        """Tokens of its vocabulary."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, Stored) and tokens.is_array else self._number("vocab_size")

    @property
    def experts(self) -> tuple[int, int] | None:
        """How many it has in a layer, and how many of them a token uses; None for a dense model."""
        count, key = self._number("expert_count"), f"{self.architecture}.expert_used_count"
        used = self.header.number(key) or max(
            (v for v in self.header.elements(key, 512) if isinstance(v, int)), default=0
        )
        return (count, used) if count else None

    @property
    def chat_templates(self) -> dict[str, str]:
        """Chat templates by name; "" is the one in use."""
        found = {}
        for key in self.metadata:
            if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
                text = self.header.text(key)
                if text is not None:
                    found[key[len(_TEMPLATE) + 1 :]] = text
        return found

    @property
    def chat_template(self) -> str | None:
        """The template in use."""
        return self.header.text(_TEMPLATE)

    @property
    def sampling(self) -> dict[str, float | int]:
        """The file's own recommended settings, by the names of `SamplingParams`."""
        found: dict[str, float | int] = {}
        for key, (name, kind) in _SAMPLING.items():
            value = self.metadata.get(f"general.sampling.{key}")
            if isinstance(value, int | float) and math.isfinite(value):
                found[name] = kind(f"{value:.6g}") if kind is float else int(value)  # f32: 0.95 is 0.949999988
        if found.get("repeat_last_n", 0) < 0:  # "the whole context" in older files; this llama.cpp has no such value
            del found["repeat_last_n"]
        return found

    @cached_property
    def groups(self) -> tuple[GroupFacts, ...]:
        """The groups that it has, in the order of `groups.GROUPS`."""
        by_group: dict[str, list[Tensor]] = {name: [] for name in GROUPS}
        for tensor in self.tensors:
            by_group[tensor.group].append(tensor)
        return tuple(
            GroupFacts(
                name,
                len(tensors),
                sum(t.n_elements for t in tensors),
                sum(t.n_bytes for t in tensors),
                dict(Counter(t.type for t in tensors).most_common()),
            )
            for name, tensors in by_group.items()
            if tensors
        )

    def _number(self, key: str) -> int | None:
        value = self.header.number(f"{self.architecture}.{key}")
        return None if value is None or value < 0 else value


def read_facts(path: Path) -> ModelFacts:
    """The facts of the GGUF at `path`; of a split model all parts together, from the path of the first.

    Reads no weights: 50 to 100 ms with the largest vocabulary (777,000 texts). Raises ModelFileError.
    """
    parts = split_parts(path)
    headers = [read_header(part) for part in parts]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ModelFileError(f"{path}: two of its parts have the same tensors", hint="fetch the files again")
    return ModelFacts(tuple(parts), sum(h.size for h in headers), headers[0], tensors, kv_facts(headers[0]))
