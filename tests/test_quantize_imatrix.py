"""Importance matrices of both formats, good ones and all that can be wrong with them."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedrun.errors import ModelFileError
from pagedrun.native.imatrix import load_imatrix
from tests.quantize_fakes import legacy_imatrix, make_gguf, make_imatrix


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_sums_become_means_per_expert(tmp_path: Path) -> None:
    sums = {"w.weight": f32(3, 6, 10, 20), "x.weight": f32(1, 2)}
    counts = {"w.weight": f32(3, 0), "x.weight": f32(4)}
    matrix = load_imatrix(make_imatrix(tmp_path / "i.gguf", sums, counts))
    assert matrix.values["w.weight"].tolist() == [1, 2, 1, 1]  # the second expert was never used
    assert matrix.values["x.weight"].tolist() == [0.25, 0.5]
    assert (matrix.dataset, matrix.chunks) == ("some.txt", 7)


def test_the_older_format(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    content = {"w.weight": (2, [1.0, 3.0]), "x.weight": (0, [5.0])}
    path.write_bytes(legacy_imatrix(content))
    matrix = load_imatrix(path)
    assert {name: values.tolist() for name, values in matrix.values.items()} == {
        "w.weight": [0.5, 1.5],
        "x.weight": [5],
    }
    assert (matrix.dataset, matrix.chunks) == ("", 0)
    path.write_bytes(legacy_imatrix(content, tail=struct.pack("<ii4s", 9, 4, b"text")))
    assert (load_imatrix(path).dataset, load_imatrix(path).chunks) == ("text", 9)


def test_what_is_no_imatrix(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        load_imatrix(tmp_path / "none")
    with pytest.raises(ModelFileError, match="a GGUF file, but not an importance matrix"):
        load_imatrix(make_gguf(tmp_path / "m.gguf"))
    values = {"w": f32(1, 2)}
    with pytest.raises(ModelFileError, match="not an importance matrix"):
        load_imatrix(make_imatrix(tmp_path / "a.gguf", values, {"w": f32(1)}, with_keys=False))
    with pytest.raises(ModelFileError, match="sums without counts"):
        load_imatrix(make_imatrix(tmp_path / "b.gguf", values, {"v": f32(1)}))
    with pytest.raises(ModelFileError, match="has 2 sums and 3 counts"):
        load_imatrix(make_imatrix(tmp_path / "c.gguf", values, {"w": f32(1, 1, 1)}))
    with pytest.raises(ModelFileError, match="not all finite"):
        load_imatrix(make_imatrix(tmp_path / "d.gguf", {"w": f32(1, np.inf)}, {"w": f32(1)}))
    with pytest.raises(ModelFileError, match="holds no importance matrix"):
        load_imatrix(make_imatrix(tmp_path / "e.gguf", {}, {}))
    with pytest.raises(ModelFileError, match="is F16, not F32"):
        load_imatrix(make_imatrix(tmp_path / "f.gguf", {"w": f32(1).astype(np.float16)}, {"w": f32(1)}))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_imatrix_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    with suppress(ModelFileError):
        assert load_imatrix(path).values


@given(st.data())
def test_a_truncated_one_is_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = legacy_imatrix({"w.weight": (2, [1.0, 3.0]), "x.weight": (3, [5.0])})
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ModelFileError):
        load_imatrix(path)
