"""Importance matrices: how much each column of a weight matters, which low-bit quantisation needs to know.

    GGUF      NAME.in_sum2  (columns x experts) f32    sums of squared activations
              NAME.counts   (experts) f32              how many there were
              imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size
    legacy    i32 entries; each: i32 length, name, i32 calls, i32 values, f32 values; then i32 chunks, i32 length, text

Both are made into what llama-quantize makes of them, to the last bit: the mean per column and expert, as f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import check_file
from pagedrun.gguf_file.check import MAGIC
from pagedrun.gguf_file.reader import Header, read_header

_SUMS, _COUNTS = ".in_sum2", ".counts"
_KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
_HINT = "make one with: pagedrun quantize MODEL --calibrate TEXT"

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """values: by the names of tensors. dataset: the first text it was made from, "" where unknown; chunks: of it."""

    values: dict[str, Values]
    dataset: str
    chunks: int


def load_imatrix(path: Path) -> ImportanceMatrix:
    """The importance matrix in a file of either format. Raises ModelFileError."""
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        matrix = _from_gguf(path) if is_gguf else _from_legacy(path)
    except OSError as e:
        raise ModelFileError(f"cannot read {path}: {e.strerror or e}", hint=_HINT) from e
    if not matrix.values:
        raise ModelFileError(f"{path} holds no importance matrix", hint=_HINT)
    for name, values in matrix.values.items():
        if not np.isfinite(values).all():
            raise ModelFileError(f"{path} cannot be used: the values for {name} are not all finite", hint=_HINT)
    return matrix


def _from_gguf(path: Path) -> ImportanceMatrix:
    check_file(path)
    header = read_header(path)
    if any(key not in header.metadata for key in _KEYS):
        raise ModelFileError(f"{path} is a GGUF file, but not an importance matrix", hint=_HINT)
    sums = _tensors(header, _SUMS)
    counts = _tensors(header, _COUNTS)
    if sums.keys() != counts.keys():
        raise ModelFileError(f"{path} is damaged: it has sums without counts, or counts without sums", hint=_HINT)
    values = {name: _mean(path, name, sums[name], counts[name]) for name in sums}
    datasets = header.elements(_KEYS[0], 1)
    return ImportanceMatrix(values, str(datasets[0]) if datasets else "", header.number(_KEYS[1]) or 0)


def _tensors(header: Header, suffix: str) -> dict[str, Values]:
    found = {}
    for tensor in header.tensors:
        if tensor.name.endswith(suffix) and tensor.name != suffix:
            if tensor.type != "F32":
                raise ModelFileError(f"{header.path} is damaged: {tensor.name} is {tensor.type}, not F32", hint=_HINT)
            data = np.fromfile(header.path, "<f4", tensor.n_elements, offset=tensor.offset)
            found[tensor.name.removesuffix(suffix)] = data
    return found


def _mean(path: Path, name: str, sums: Values, counts: Values) -> Values:
    if not counts.size or sums.size % counts.size:
        raise ModelFileError(f"{path} is damaged: {name} has {sums.size} sums and {counts.size} counts", hint=_HINT)
    by_expert = sums.reshape(counts.size, -1)
    whole = np.rint(counts)[:, None]
    # An expert that was never used: nothing is known, so every column counts the same.
    with np.errstate(all="ignore"):  # what a damaged file holds is found by the caller: it is not finite
        mean = np.where(whole > 0, by_expert / np.where(whole > 0, whole, 1), np.float32(1))
        return mean.astype(np.float32).ravel()


def _from_legacy(path: Path) -> ImportanceMatrix:
    data = _Bytes(path)
    values = {}
    n_entries = data.number()
    if not 0 < n_entries <= data.left:
        raise ModelFileError(f"{path} is neither a GGUF file nor an importance matrix of the older kind", hint=_HINT)
    for _ in range(n_entries):
        name = data.take(data.number()).decode("utf-8", "replace")
        calls = data.number()
        sums = np.frombuffer(data.take(4 * data.number()), "<f4")
        with np.errstate(all="ignore"):
            values[name] = sums / np.float32(calls) if calls > 0 else sums
    if not data.left:
        return ImportanceMatrix(values, "", 0)
    chunks = data.number()
    dataset = data.take(data.number()).decode("utf-8", "replace") if data.left else ""
    return ImportanceMatrix(values, dataset, chunks)


class _Bytes:
    """A file from its beginning to its end, never beyond."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = path.read_bytes()
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, n_bytes: int) -> bytes:
        if not 0 <= n_bytes <= self.left:
            raise ModelFileError(f"{self._path} is no importance matrix, or is truncated", hint=_HINT)
        self._at += n_bytes
        return self._data[self._at - n_bytes : self._at]

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little", signed=True)
