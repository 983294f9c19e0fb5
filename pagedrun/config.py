"""Engine settings: frozen, validated once, layered flags > environment > config file > defaults.

The config file is TOML (`config.toml` in the config folder, or `--config FILE`) with the field names
below; the environment has the same names in capitals behind `PAGEDRUN_`, e.g. PAGEDRUN_MAX_SEQ_LEN=32768.
"""

from __future__ import annotations

import difflib
import os
import re
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
MAX_NUM_SEQS = 256  # LLAMA_MAX_SEQ
_PREFIX = "PAGEDRUN_"

PAGING = ("auto", "on", "off")
POLICIES = ("clock", "lru", "lfu", "working-set")
SPILL = ("auto", "staged", "zero-copy", "off")
PREFETCH = ("hybrid", "sequential", "associative", "off")
_SIZES = ("gpu_memory", "swap_space", "disk_space")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

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
    kv_type: number format of the KV cache; kv_type_k, kv_type_v: of its keys or values alone, where they differ.
    paging: whether the KV cache is paged: "on", "off", or "auto", which is on where the model allows it.
    page_size: tokens in a page, roughly; 0 picks what suits the device.
    gpu_memory: bytes of VRAM that pagedrun may use, weights included; 0 is what is free, less 512 MiB for the desktop.
        Without a GPU: bytes of RAM that buffers and pages may take; 0 is half of what is free after the weights.
    swap_space: bytes of RAM for pages that had to leave the device, and for snapshots of recurrent states.
    disk_space: bytes of a file for idle pages that RAM has no room for; 0: no file.
    spill: how pages in RAM are read while their conversation goes on: "staged" (copied ahead of each layer),
        "zero-copy" (read where they are), "auto" (what is faster here), or "off" (all of it has to be on the device).
    prefetch_mode: which pages are brought back before they are asked for: "sequential", "associative", "hybrid" or
        "off".
    policy: which idle pages leave first: clock, lru, lfu, working-set.
    snapshot_interval: tokens of a long prompt between snapshots, for models with recurrent layers.
    debug_kv: check all that is known of pages before and after every step; slow.
    """

    max_seq_len: int = 0
    max_num_seqs: int = 1
    max_batch_tokens: int = 0
    prefill_chunk: int = 256
    threads: int = 0
    gpu_layers: int = -1
    kv_type: str = "f16"
    kv_type_k: str = ""
    kv_type_v: str = ""
    paging: str = "auto"
    page_size: int = 0
    gpu_memory: int = 0
    swap_space: int = 4 << 30
    disk_space: int = 0
    spill: str = "auto"
    prefetch_mode: str = "hybrid"
    policy: str = "clock"
    snapshot_interval: int = 2048
    debug_kv: bool = False

    @property
    def kv_types(self) -> tuple[str, str]:
        """Number formats of keys and of values."""
        return self.kv_type_k or self.kv_type, self.kv_type_v or self.kv_type

    def __post_init__(self) -> None:
        _at_least(self, "max_seq_len", 0)
        _at_least(self, "max_num_seqs", 1)
        _at_least(self, "max_batch_tokens", 0)
        _at_least(self, "prefill_chunk", 1)
        _at_least(self, "threads", 0)
        for name, most in (("threads", MAX_THREADS), ("max_num_seqs", MAX_NUM_SEQS)):
            if getattr(self, name) > most:
                raise UsageError(f"{name} must be {most} or less, not {getattr(self, name)}")
        _at_least(self, "gpu_layers", -1)
        for name in ("page_size", *_SIZES):
            _at_least(self, name, 0)
        _at_least(self, "snapshot_interval", 1)
        for name, known in (
            ("kv_type", KV_TYPES),
            ("kv_type_k", ("", *KV_TYPES)),
            ("kv_type_v", ("", *KV_TYPES)),
            ("paging", PAGING),
            ("policy", POLICIES),
            ("spill", SPILL),
            ("prefetch_mode", PREFETCH),
        ):
            if getattr(self, name) not in known:
                listed = ", ".join(k for k in known if k)
                raise UsageError(f"{name} {getattr(self, name)!r} is not known", hint=f"one of {listed}")


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
        if kinds[name] is bool:
            typed[name] = _switch(value, f"{where}: {name}")
            continue
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise UsageError(f"{where}: {name} cannot be {value!r}")
        if name in _SIZES:
            typed[name] = n_bytes(value, f"{where}: {name}")
            continue
        try:
            typed[name] = kinds[name](value)
        except ValueError as e:
            raise UsageError(f"{where}: {name} must be a whole number, not {value!r}") from e
    return typed


def _switch(value: Any, what: str) -> bool:
    known = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
    text = str(value).lower()
    if text not in known:
        raise UsageError(f"{what} must be true or false, not {value!r}")
    return known[text]


def n_bytes(text: str | int, what: str) -> int:
    """A size as people write it: 4GiB, 512 MiB, 4g, or a number of bytes. Raises UsageError that begins with `what`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what} must be a size, not {text!r}", hint="for example 6GiB, 512MiB, or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _at_least(config: EngineConfig, name: str, low: int) -> None:
    value = getattr(config, name)
    if value < low:
        raise UsageError(f"{name} must be {low} or more, not {value}")
