"""Contexts longer than a model was trained for: YaRN (https://arxiv.org/abs/2309.00071), as llama.cpp computes it.

With a factor F positions reach F times as far: rotations that are slow are slowed down by F, fast ones stay, and
attention's scores are scaled a little. What is done is what these do, N being the tokens that it was trained for:

    llama-server --rope-scaling yarn --rope-scale F --yarn-orig-ctx N

A file that has YaRN of its own keeps it up to its own length; beyond, its factor is multiplied by ours, from where its
training began.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedrun.errors import UsageError

if TYPE_CHECKING:
    from pagedrun.config import EngineConfig
    from pagedrun.gguf_file import ModelFacts

#: The paper went to 32.
MAX_FACTOR = 32
_YARN = 2  # llama_rope_scaling_type


@dataclass(frozen=True, slots=True)
class Yarn:
    """factor: how many times as far positions reach. original: tokens that factor 1 stands for."""

    factor: float
    original: int

    def fill(self, params: Any) -> None:
        """Write it into llama_context_params; what is left out there llama.cpp sets by itself for YaRN."""
        params.rope_scaling_type = _YARN
        params.rope_freq_scale = 1 / self.factor
        params.yarn_orig_ctx = self.original


def factor_of(config: EngineConfig, trained: int) -> float:
    """How many times the trained length (in tokens; 0: not known) is asked for, with YaRN; 1: nothing is scaled."""
    if config.rope_scaling != "yarn" or not 0 < trained < config.max_seq_len:
        return 1.0
    return config.max_seq_len / trained


def scaling_text(config: EngineConfig, trained: int) -> str:
    """What a plan says of it; "" where nothing is scaled."""
    factor = factor_of(config, trained)
    if factor == 1:
        return ""
    return (
        f"positions are scaled by {factor:g} (YaRN), as the model was trained for {trained:,} tokens: "
        "answers to short texts may be slightly worse"
    )


def yarn_of(facts: ModelFacts, config: EngineConfig, *, name: str = "") -> Yarn | None:
    """The scaling that the length asked for takes; None: positions stay as the file has them.

    name: what messages call the model; the file's name without it. Raises UsageError for a length that the model cannot
    have with these settings.
    """
    trained = facts.context or 0
    name = name or facts.name
    if trained:
        _check(name, config, trained)
    factor = factor_of(config, trained)
    if factor == 1:
        return None
    kind, own = _own(facts)
    if kind == "none":
        return Yarn(factor, trained)
    if kind != "yarn":
        raise UsageError(
            f"positions of {name} are scaled already ({kind}), which YaRN cannot be added to",
            hint=f"use --max-seq-len {trained} or less",
        )
    original = facts.header.number(f"{facts.architecture}.rope.scaling.original_context_length")
    return Yarn(own * factor, original or trained)


def _check(name: str, config: EngineConfig, trained: int) -> None:
    """Raise UsageError where conversations are to be longer than the model's."""
    asked, longest = config.max_seq_len, MAX_FACTOR * trained
    message = f"{name} was trained for {trained:,} tokens, and max_seq_len is {asked:,}"
    if config.rope_scaling == "yarn":
        if asked > longest:
            raise UsageError(
                f"{message}: YaRN scales by {MAX_FACTOR} at most", hint=f"use --max-seq-len {longest} or less"
            )
    elif asked > trained:
        more = "; --rope-scaling yarn goes beyond that" if asked <= longest else ""
        raise UsageError(message, hint=f"use --max-seq-len {trained} or less{more}")


def _own(facts: ModelFacts) -> tuple[str, float]:
    """How the file's own positions are scaled ("none": they are not), and by what; as llama.cpp reads it."""
    if any(tensor.name == "rope_factors_long.weight" for tensor in facts.tensors):
        return "longrope", 1.0
    prefix = f"{facts.architecture}.rope"
    kind = facts.header.text(f"{prefix}.scaling.type") or "linear"
    values = [facts.metadata.get(f"{prefix}.{key}") for key in ("scaling.factor", "scale_linear")]
    factor = next((v for v in values if isinstance(v, float) and math.isfinite(v) and v > 0), 1.0)
    return "none" if kind == "linear" and factor == 1 else kind, factor
