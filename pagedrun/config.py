"""Engine settings: frozen, validated once, layered flags > environment > config file > defaults.

The config file is TOML (`config.toml` in the config folder, or `--config FILE`) with the field names
below; the environment has the same names in capitals behind `PAGEDRUN_`, e.g. PAGEDRUN_MAX_SEQ_LEN=32768. What only
`pagedrun serve` has is in the file's table [serve].
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
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

#: The table of the config file with what only a server has.
SERVE = "serve"

PAGING = ("auto", "on", "off")
POLICIES = ("clock", "lru", "lfu", "working-set")
SPILL = ("auto", "staged", "zero-copy", "off")
PREFETCH = ("hybrid", "sequential", "associative", "off")
_SIZES = ("gpu_memory", "swap_space", "disk_space", "cache_disk")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

ROPE_SCALING = ("none", "yarn")
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

_KNOWN = {
    "kv_type": KV_TYPES,
    "kv_type_k": ("", *KV_TYPES),
    "kv_type_v": ("", *KV_TYPES),
    "paging": PAGING,
    "policy": POLICIES,
    "spill": SPILL,
    "prefetch_mode": PREFETCH,
    "rope_scaling": ROPE_SCALING,
}
#: The least and the most; None: no most.
_RANGES: dict[str, tuple[int, int | None]] = {
    "max_seq_len": (0, None),
    "max_num_seqs": (1, MAX_NUM_SEQS),
    "max_batch_tokens": (0, None),
    "prefill_chunk": (0, None),
    "max_stall": (0, None),
    "threads": (0, MAX_THREADS),
    "gpu_layers": (-1, None),
    "page_size": (0, None),
    "snapshot_interval": (1, None),
    **dict.fromkeys(_SIZES, (0, None)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and served.

    max_seq_len: tokens a conversation can hold; 0 picks what the model was trained for, as far as memory allows.
    max_num_seqs: conversations computed together (llama.cpp sequences).
    max_batch_tokens: tokens computed in one step, which bounds how long a step lasts (llama.cpp computes them at
        once: n_batch = n_ubatch); 0 picks 512 on the CPU and 2,048 on a GPU.
    prefill_chunk: while others are generating, a prompt is read this many tokens a step; 0: as many as max_stall
        allows.
    max_stall: milliseconds that an answer may wait for its next token while prompts are read; 0 picks 250 on the CPU
        and 100 on a GPU.
    threads: CPU threads; 0 means the physical cores.
    gpu_layers: layers on the GPU; -1 lets llama.cpp fit as many as free VRAM holds.
    rope_scaling: "yarn" lets max_seq_len be more than the model was trained for, by scaling positions by as much;
        up to that nothing is scaled. "none": it may not be more.
    kv_type: number format of the KV cache; kv_type_k, kv_type_v: of its keys or values alone, where they differ.
    paging: whether the KV cache is paged: "on", "off", or "auto", which is on where the model allows it.
    page_size: tokens in a page, roughly, and no more than a conversation holds; 0 picks what suits the device.
    gpu_memory: bytes of VRAM that pagedrun may use, weights included; 0 is what is free, less 512 MiB for the desktop.
        Without a GPU: bytes of RAM that buffers and pages may take; 0 is half of what is free after the weights.
        Without pages it limits the KV cache, not the buffers.
    swap_space: bytes of RAM for pages that had to leave the device, and for snapshots of recurrent states.
    disk_space: bytes of a file for idle pages that RAM has no room for; 0: no file.
    cache_disk: bytes on disk for conversations that rest, so that they need not be read again when the program is
        started the next time; those used longest ago leave first. 0: none are kept. Named sessions are beside it.
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
    prefill_chunk: int = 0
    max_stall: int = 0
    threads: int = 0
    gpu_layers: int = -1
    rope_scaling: str = "none"
    kv_type: str = "f16"
    kv_type_k: str = ""
    kv_type_v: str = ""
    paging: str = "auto"
    page_size: int = 0
    gpu_memory: int = 0
    swap_space: int = 4 << 30
    disk_space: int = 0
    cache_disk: int = 4 << 30
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
        for field in fields(self):
            _check(field.name, getattr(self, field.name), field.name)


def load_config(
    flags: Mapping[str, Any] | None = None, *, file: Path | None = None, defaults: Mapping[str, Any] | None = None
) -> EngineConfig:
    """The settings in force. Flags that are None count as not given. defaults: in place of EngineConfig's own.

    Raises UsageError for an unknown name, a wrong type or a value out of range, naming where it came from.
    """
    return EngineConfig(**{**(defaults or {}), **given_settings(flags, file=file)})


def given_settings(flags: Mapping[str, Any] | None = None, *, file: Path | None = None) -> dict[str, Any]:
    """What the user has set, wherever that is. Raises UsageError."""
    path, written = read_config(file)
    written.pop(SERVE, None)
    values = _typed(written, lambda name: f"{path}: {name}")
    values |= _typed(_environment(), lambda name: f"the environment: {_PREFIX}{name.upper()}")
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    return values | _typed(given, lambda name: f"--{name.replace('_', '-')}")


def read_config(file: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The config file and what is in it, nothing where the usual one is not there. Raises UsageError."""
    path = file or config_dir() / "config.toml"
    return path, _read(path) if file or path.exists() else {}


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


def _typed(values: Mapping[str, Any], called: Callable[[str], str]) -> dict[str, Any]:
    """The values of one source, each of its setting's type and in range. called: what messages call a setting there."""
    kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(EngineConfig)}
    typed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            close = difflib.get_close_matches(name.lower(), kinds, 1, 0.75)
            known = f"known: {', '.join(sorted(kinds))}; those of a server stand under [{SERVE}]"
            hint = f"did you mean {close[0]}?" if close else known
            raise UsageError(f"{called(name)}: there is no such setting", hint=hint)
        typed[name] = _converted(name, value, kinds[name], called(name))
        _check(name, typed[name], called(name))
    return typed


def _converted(name: str, value: Any, kind: Any, what: str) -> Any:
    """A value as its setting's type. Raises UsageError that begins with `what`."""
    if kind is bool:
        return _switch(value, what)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"{what} cannot be {value!r}")
    if name in _SIZES:
        return n_bytes(value, what)
    if kind is str:
        return str(value).strip().lower()  # all of them are names from a list
    try:
        return int(str(value))  # through text: a fraction is refused, not cut
    except ValueError as e:
        raise UsageError(f"{what} must be a whole number, not {value!r}") from e


def _switch(value: Any, what: str) -> bool:
    known = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
    text = str(value).lower()
    if text not in known:
        raise UsageError(f"{what} must be true or false, not {value!r}")
    return known[text]


def n_bytes(text: str | float, what: str) -> int:
    """A size as people write it: 4GiB, 512 MiB, 4g, or a number of bytes. Raises UsageError that begins with `what`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what} must be a size, not {text!r}", hint="for example 6GiB, 512MiB, or a number of bytes")
    number, unit = match[1], match[2].lower()
    if "." in number and not unit:  # a fraction of a byte: somebody counts in larger ones
        hint = f'with its unit: "{number}GiB"' if float(number) < 1024 else "a whole number of bytes"
        raise UsageError(f"{what} must be a size, not {text!r}", hint=hint)
    return int(float(number) * _UNITS[unit])


def _check(name: str, value: Any, what: str) -> None:
    """Raise UsageError that begins with `what` for a value that a setting cannot have."""
    if (known := _KNOWN.get(name)) and value not in known:
        raise UsageError(f"{what} {value!r} is not known", hint=f"one of {', '.join(k for k in known if k)}")
    low, high = _RANGES.get(name, (None, None))
    if low is not None and value < low:
        raise UsageError(f"{what} must be {low} or more, not {value}")
    if high is not None and value > high:
        raise UsageError(f"{what} must be {high} or less, not {value}")
    if name == "max_seq_len" and value == 1:
        raise UsageError(f"{what} must be 2 or more, not 1: a token of an answer needs one before it")
