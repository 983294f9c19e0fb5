"""Engine settings: frozen, validated once, layered flags > environment > config file > defaults.

The config file is TOML (`config.toml` in the config folder, or `--config FILE`) with the field names
below; the environment has the same names in capitals behind `PAGEDRUN_`, e.g. PAGEDRUN_MAX_SEQ_LEN=32768.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pagedrun.errors import UsageError
from pagedrun.paths import config_dir

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

MAX_THREADS = 512  # GGML_MAX_N_THREADS
_PREFIX = "PAGEDRUN_"

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and served.

    max_seq_len: tokens a conversation can hold; 0 picks what the model was trained for, as far as memory allows.
    max_num_seqs: conversations computed together (llama.cpp sequences).
    max_batch_tokens: tokens computed in one step, which bounds how long a step lasts (llama.cpp computes them at
        once: n_batch = n_ubatch); 0 picks 512 on the CPU and 2,048 on a GPU.
    prefill_chunk: while others are generating, a prompt is read this many tokens a step.
    threads: CPU threads; 0 means the physical cores.
    gpu_layers: layers on the GPU; -1 lets llama.cpp fit as many as free VRAM holds.
    kv_type: number format of the KV cache.
    """

    max_seq_len: int = 0
    max_num_seqs: int = 1
    max_batch_tokens: int = 0
    prefill_chunk: int = 256
    threads: int = 0
    gpu_layers: int = -1
    kv_type: str = "f16"

    def __post_init__(self) -> None:
        _at_least(self, "max_seq_len", 0)
        _at_least(self, "max_num_seqs", 1)
        _at_least(self, "max_batch_tokens", 0)
        _at_least(self, "prefill_chunk", 1)
        _at_least(self, "threads", 0)
        if self.threads > MAX_THREADS:
            raise UsageError(f"threads must be {MAX_THREADS} or less, not {self.threads}")
        _at_least(self, "gpu_layers", -1)
        if self.kv_type not in KV_TYPES:
            raise UsageError(f"kv_type {self.kv_type!r} is not known", hint=f"one of {', '.join(KV_TYPES)}")


def load_config(flags: Mapping[str, Any] | None = None, *, file: Path | None = None) -> EngineConfig:
    """The settings in force. Flags that are None count as not given.

    Raises UsageError for an unknown name, a wrong type or a value out of range, naming where it came from.
    """
    path = file or config_dir() / "config.toml"
    values: dict[str, Any] = {}
    if file or path.exists():
        values |= _typed(_read(path), f"{path}")
    values |= _typed(_environment(), "the environment")
    values |= {k: v for k, v in (flags or {}).items() if v is not None}
    return EngineConfig(**values)


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
        return values
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} is not valid TOML: {e}") from e


def _environment() -> dict[str, Any]:
    names = {f"{_PREFIX}{f.name.upper()}": f.name for f in fields(EngineConfig)}
    _refuse_misspelt(names)
    return {name: os.environ[variable] for variable, name in names.items() if os.environ.get(variable)}


def _refuse_misspelt(names: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that all but is a setting's. Others of ours (folders, the launcher's) differ."""
    settings = [variable.removeprefix(_PREFIX) for variable in names]  # the common part would make all look alike
    for variable, value in os.environ.items():
        if not value or variable in names or not variable.startswith(_PREFIX):
            continue
        if close := difflib.get_close_matches(variable.removeprefix(_PREFIX).upper(), settings, 1, 0.75):
            raise UsageError(
                f"the environment: there is no setting {variable}", hint=f"did you mean {_PREFIX}{close[0]}?"
            )


def _typed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(EngineConfig)}
    typed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            raise UsageError(f"{where}: there is no setting {name!r}", hint=f"known: {', '.join(sorted(kinds))}")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise UsageError(f"{where}: {name} cannot be {value!r}")
        try:
            typed[name] = kinds[name](value)
        except ValueError as e:
            raise UsageError(f"{where}: {name} must be a whole number, not {value!r}") from e
    return typed


def _at_least(config: EngineConfig, name: str, low: int) -> None:
    value = getattr(config, name)
    if value < low:
        raise UsageError(f"{name} must be {low} or more, not {value}")
