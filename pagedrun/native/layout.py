"""How large a quantised file will be, to the byte: its header is put together as llama.cpp does, by llama.cpp.

header     the source's metadata, without that of a split, with the new keys; names, sizes and types of all tensors
data       every tensor with its new type, each padded to 32 bytes
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pagedrun.gguf_file.types import TENSOR_TYPES


def type_number(name: str) -> int:
    """The ggml_type of that name (`TENSOR_TYPES`)."""
    return next(number for number, kind in TENSOR_TYPES.items() if kind.name == name)


class _InitParams(ctypes.Structure):
    """struct gguf_init_params (gguf.h)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(ctypes.c_void_p)))


_P, _TEXT, _I64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
# name -> (result, arguments), of gguf.h and ggml.h
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "gguf_init_empty": (_P, ()),
    "gguf_init_from_file": (_P, (_TEXT, _InitParams)),
    "gguf_free": (None, (_P,)),
    "gguf_set_kv": (None, (_P, _P)),
    "gguf_set_val_u32": (None, (_P, _TEXT, ctypes.c_uint32)),
    "gguf_set_val_str": (None, (_P, _TEXT, _TEXT)),
    "gguf_remove_key": (_I64, (_P, _TEXT)),
    "gguf_add_tensor": (None, (_P, _P)),
    "gguf_set_tensor_type": (None, (_P, _TEXT, ctypes.c_int)),
    "gguf_find_tensor": (_I64, (_P, _TEXT)),
    "gguf_get_tensor_size": (ctypes.c_size_t, (_P, _I64)),
    "gguf_get_meta_size": (ctypes.c_size_t, (_P,)),
    "ggml_get_first_tensor": (_P, (_P,)),
    "ggml_get_next_tensor": (_P, (_P, _P)),
    "ggml_free": (None, (_P,)),
}
_PADDING = 32  # GGUF_DEFAULT_ALIGNMENT, which the quantiser pads with


class Layout:
    """The file that llama_model_quantize writes from the files `parts`, with `overrides` of metadata."""

    def __init__(self, library: ctypes.CDLL, parts: Sequence[str], overrides: Any) -> None:
        self._parts = parts
        self._overrides = overrides
        self._c = library  # libllama-common: it finds ggml's functions through its dependencies
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def measure(self, types: Mapping[str, str]) -> tuple[dict[str, int], int]:
        """Bytes of each tensor with those types, and of the whole file."""
        out = self._c.gguf_init_empty()
        for number, part in enumerate(self._parts):
            self._add_part(out, part, first=number == 0)
        sizes = {}
        for name, kind in types.items():
            self._c.gguf_set_tensor_type(out, name.encode(), type_number(kind))
            sizes[name] = int(self._c.gguf_get_tensor_size(out, self._c.gguf_find_tensor(out, name.encode())))
        header = int(self._c.gguf_get_meta_size(out))
        self._c.gguf_free(out)
        return sizes, header + sum(-(-n // _PADDING) * _PADDING for n in sizes.values())

    def _add_part(self, out: int, part: str, *, first: bool) -> None:
        tensors = ctypes.c_void_p()
        read = self._c.gguf_init_from_file(os.fsencode(part), _InitParams(True, ctypes.pointer(tensors)))
        if first:
            self._c.gguf_set_kv(out, read)
            self._set_keys(out)
        tensor = self._c.ggml_get_first_tensor(tensors)
        while tensor:
            self._c.gguf_add_tensor(out, tensor)
            tensor = self._c.ggml_get_next_tensor(tensors, tensor)
        self._c.gguf_free(read)
        self._c.ggml_free(tensors)

    def _set_keys(self, out: int) -> None:
        for key in (b"general.quantization_version", b"general.file_type"):
            self._c.gguf_set_val_u32(out, key, 0)
        for key in (b"split.no", b"split.count", b"split.tensors.count"):
            self._c.gguf_remove_key(out, key)
        index = 0
        while self._overrides and self._overrides[index].key:
            override = self._overrides[index]
            if override.tag == 0:
                self._c.gguf_set_val_u32(out, override.key, override.value.val_i64)
            else:
                self._c.gguf_set_val_str(out, override.key, override.value.val_str)
            index += 1
