"""GGUF files put together byte by byte, right ones and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
Q4_0 = 2


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return entry(key, U32, struct.pack("<I", value))


def words(key: str, *values: str) -> bytes:
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values)))


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return (
        text(name)
        + struct.pack("<I", len(shape) if n_dims is None else n_dims)
        + sizes
        + struct.pack("<IQ", kind, offset)
    )


def gguf_bytes(
    metadata: Sequence[bytes] = (), tensors: Sequence[bytes] = (), data: int = 0, alignment: int = 32
) -> bytes:
    """A whole file; `data`: bytes behind the padding."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join([*metadata, *tensors])
    return head + bytes(-len(head) % alignment) + bytes(data)


def write(folder: Path, *parts: object, name: str = "m.gguf", **more: int) -> Path:
    path = folder / name
    path.write_bytes(gguf_bytes(*parts, **more))  # type: ignore[arg-type]
    return path


#: A very small model.
LLAMA = gguf_bytes(
    [entry("general.architecture", STRING, text("llama")), u32("llama.context_length", 4096)],
    [tensor("blk.0.attn_q.weight", [32, 8], kind=2)],
    data=32 * 8 // 32 * 18 + 16,
)
