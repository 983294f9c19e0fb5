"""What is known about a loaded model: plain values for display and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of a loaded model.

    size_bytes: all tensors. n_ctx_train: tokens. can_rewind: whether its memory can forget the last tokens
    (recurrent and sliding-window models cannot). sampling: the GGUF's own recommended settings, by the names
    of `SamplingParams`. device: "CPU", or the GPU's name.
    """

    path: Path
    name: str
    architecture: str
    quantization: str
    n_params: int
    n_vocab: int
    n_ctx_train: int
    size_bytes: int
    can_rewind: bool
    device: str
    sampling: Mapping[str, float | int] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether any of the model is on a GPU."""
        return self.device != "CPU"
