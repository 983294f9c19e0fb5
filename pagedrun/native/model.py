"""A model loaded by llama.cpp: its facts, its vocabulary, and clear errors when it cannot be loaded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagedrun.errors import ModelFileError, NotEnoughMemoryError
from pagedrun.model import ModelInfo
from pagedrun.native.library import Library

_ROPE_NONE = -1  # llama_rope_type

OnBytes = Callable[[int, int], None]  # (bytes loaded, bytes in all)

# llama_model_meta_key in llama.h -> our name and type
_SAMPLING_KEYS: dict[str, tuple[str, type]] = {
    "LLAMA_MODEL_META_KEY_SAMPLING_TOP_K": ("top_k", int),
    "LLAMA_MODEL_META_KEY_SAMPLING_TOP_P": ("top_p", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_MIN_P": ("min_p", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY": ("xtc_probability", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD": ("xtc_threshold", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_TEMP": ("temperature", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N": ("repeat_last_n", int),
    "LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT": ("repeat_penalty", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT": ("mirostat", int),
    "LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU": ("mirostat_tau", float),
    "LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA": ("mirostat_eta", float),
}

# What llama.cpp logs when a load fails -> what we say. The first that matches is used.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"unknown model architecture: '([^']*)'",
        "its architecture {0!r} is not known to this llama.cpp",
        "newer models need a newer pagedrun",
    ),
    (
        r"not within the file bounds|failed to read|unexpectedly reached end of file|read error",
        "it is truncated or damaged",
        "download it again, and compare its size and sha256",
    ),
    (r"missing tensor '([^']*)'", "tensor {0!r} is missing from it", "is it a complete conversion of one model?"),
    (
        r"unable to allocate|failed to allocate|out of memory|cudaMalloc failed",
        "",
        "close other programs, or use a smaller model or context",
    ),
    (
        r"invalid split|illegal split|split",
        "its parts do not belong together",
        "all parts of one split must be in one folder",
    ),
)


class NativeModel:
    """Owns a `llama_model`. Free it with `close`, after its contexts."""

    def __init__(self, library: Library, path: Path, params: Any, on_bytes: OnBytes | None = None) -> None:
        self.library = library
        self.path = path
        self._llama = library.llama
        self._params = params
        total = path.stat().st_size
        progress = _Progress(on_bytes, total)
        self._callback = self._llama.llama_progress_callback(progress)
        params.progress_callback = self._callback
        library.log.clear()
        self.pointer = self._llama.llama_model_load_from_file(str(path).encode(), params)
        if progress.raised is not None:
            self.close()
            raise progress.raised
        if not self.pointer:
            raise load_error(path, library.log.text())
        self.vocab = NativeVocab(self._llama, self._llama.llama_model_get_vocab(self.pointer))

    def close(self) -> None:
        """Free the model."""
        if self.pointer:
            self._llama.llama_model_free(self.pointer)
            self.pointer = None

    @property
    def has_rope(self) -> bool:
        """Whether a position is a rotation (RoPE)."""
        return bool(self._llama.llama_model_rope_type(self.pointer) != _ROPE_NONE)

    def meta(self, key: str) -> str | None:
        """A scalar of the GGUF's metadata as text, or None."""
        buffer = ctypes.create_string_buffer(1024)
        size = self._llama.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    def info(self, device: str) -> ModelInfo:
        """The model's facts."""
        lib, pointer = self._llama, self.pointer
        recurrent = lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer)
        return ModelInfo(
            path=self.path,
            name=self.meta("general.name") or self.path.stem,
            architecture=self.meta("general.architecture") or "",
            quantization=self._quantization(),
            n_params=lib.llama_model_n_params(pointer),
            n_vocab=self.vocab.n_tokens,
            n_ctx_train=lib.llama_model_n_ctx_train(pointer),
            size_bytes=lib.llama_model_size(pointer),
            can_rewind=not recurrent and lib.llama_model_n_swa(pointer) == 0,
            device=device,
            sampling=self._sampling(),
        )

    def _quantization(self) -> str:
        name: str = self._llama.llama_ftype_name(self._llama.llama_model_ftype(self.pointer)).decode()
        return name.replace(" - Medium", "_M").replace(" - Small", "_S").replace(" - Large", "_L")

    def _sampling(self) -> dict[str, float | int]:
        found: dict[str, float | int] = {}
        for constant, (name, kind) in _SAMPLING_KEYS.items():
            key = self._llama.llama_model_meta_key_str(getattr(self._llama, constant))
            text = self.meta(key.decode()) if key else None
            if text is not None:
                found[name] = kind(float(text))
        if found.get("repeat_last_n", 0) < 0:  # "the whole context" in older files; this llama.cpp has no such value
            del found["repeat_last_n"]
        return found


class NativeVocab:
    """Tokens to bytes and text to tokens; see `pagedrun.step.Vocab`."""

    def __init__(self, llama: Any, pointer: Any) -> None:
        self._llama = llama
        self.pointer = pointer
        self.n_tokens: int = llama.llama_vocab_n_tokens(pointer)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; empty for special tokens unless `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._read_piece(token, special)
        return piece

    def is_eog(self, token: int) -> bool:
        """Whether the token ends an answer."""
        return bool(self._llama.llama_vocab_is_eog(self.pointer, token))

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token."""
        return bool(self._llama.llama_vocab_is_control(self.pointer, token))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8  # a token is at least one byte; BOS and EOS may be added
        while True:
            tokens = (self._llama.llama_token * size)()
            count = self._llama.llama_tokenize(self.pointer, data, len(data), tokens, size, add_special, parse_special)
            if count >= 0:
                return list(tokens[:count])
            size = -count

    def _read_piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = self._llama.llama_token_to_piece(self.pointer, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = self._llama.llama_token_to_piece(self.pointer, token, buffer, len(buffer), 0, special)
        return buffer.raw[:size]


def load_error(path: Path, log: str) -> ModelFileError | NotEnoughMemoryError:
    """What to tell the user about a load that failed, from llama.cpp's log of it."""
    for pattern, reason, hint in _FAILURES:
        if match := re.search(pattern, log):
            if not reason:
                return NotEnoughMemoryError(f"{path.name} does not fit the memory that is free", hint=hint)
            return ModelFileError(f"{path.name} cannot be loaded: {reason.format(*match.groups())}", hint=hint)
    last = [line for line in log.splitlines() if "error" in line.lower() or "failed" in line.lower()]
    reason = last[0].split(":", 1)[-1].strip() if last else "llama.cpp gives no reason"
    return ModelFileError(f"{path.name} cannot be loaded: {reason}", hint="run again with -v for llama.cpp's log")


class _Progress:
    """llama.cpp's progress callback. What `on_bytes` raises ends the load, and is kept to be raised after it.

    An exception must not leave a C callback: ctypes would print it and go on.
    """

    def __init__(self, on_bytes: OnBytes | None, total: int) -> None:
        self._on_bytes = on_bytes
        self._total = total
        self.raised: BaseException | None = None

    def __call__(self, fraction: float, _user_data: object) -> bool:
        try:
            if self._on_bytes is not None:
                self._on_bytes(int(fraction * self._total), self._total)
        except BaseException as e:
            self.raised = e
        return self.raised is None
