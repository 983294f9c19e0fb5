"""The header of a GGUF file: read like the gguf package does, and refused with a reason where it makes no sense."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import Stored, read_header
from pagedrun.gguf_file.types import FILE_TYPES, TENSOR_TYPES, ValueType
from tests.gguf_bytes import ARRAY, BOOL, F32, Q4_0, STRING, U8, U64, entry, tensor, text, u32, words, write

F32_4 = tensor("a", [4])  # 16 bytes of data


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file with a value of every type, by the gguf package."""
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in {
        "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000,
        "int32": -2_000_000_000, "float32": 0.5, "uint64": 2**63, "int64": -(2**62), "float64": 1e300, "bool": True,
        "string": "größer",
    }.items():  # fmt: skip
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.texts", ["", "a", "zwei", "x" * 300_000, "end"])
    writer.add_array("x.numbers", [1, -2, 3])
    writer.add_array("x.flags", [True, False])
    writer.add_tensor("f", np.zeros((3, 5, 2), np.float32))
    writer.add_tensor("q", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_reads_what_the_gguf_package_reads(written: Path) -> None:
    header, reader = read_header(written), gguf.GGUFReader(written)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    for key, field in fields.items():
        value = header.metadata[key]
        if isinstance(value, Stored):
            assert (value.count, header.elements(key, 10)) == (len(field.data), field.contents())
        else:
            assert value == field.contents()
    ours = [(t.name, t.type, t.shape, t.n_bytes, t.offset, t.n_elements) for t in header.tensors]
    assert ours == [
        (t.name, t.tensor_type.name, tuple(map(int, t.shape)), t.n_bytes, t.data_offset, t.n_elements)
        for t in reader.tensors
    ]
    assert header.size == written.stat().st_size


@pytest.mark.real
def test_it_reads_the_default_model_like_the_gguf_package(smollm2: Path) -> None:
    header, reader = read_header(smollm2), gguf.GGUFReader(smollm2)
    assert len(header.tensors) == len(reader.tensors) > 200
    assert [(t.name, t.offset, t.n_bytes) for t in header.tensors] == [
        (t.name, t.data_offset, t.n_bytes) for t in reader.tensors
    ]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert header.elements("tokenizer.ggml.tokens", len(tokens)) == tokens


def test_vocabularies_are_walked_across_the_windows_in_which_they_are_read(tmp_path: Path) -> None:
    """Texts of every length, some longer than a window; so their ends fall on every place around its edge."""
    rng = random.Random(0)
    texts = [rng.choice("aé€") * rng.choice((0, 1, 3, 7, 40, 3000)) for _ in range(3000)]
    texts[1000] = "x" * 600_000
    header = read_header(write(tmp_path, [words("k", *texts), u32("behind", 7)]))
    assert header.elements("k", len(texts)) == texts
    assert header.number("behind") == 7


def test_access_by_kind(written: Path) -> None:
    header = read_header(written)
    assert header.number("x.uint64") == 2**63
    assert header.text("x.string") == "größer"
    assert header.elements("x.numbers", 2) == [1, -2]
    assert header.elements("x.texts", 3) == ["", "a", "zwei"]
    for key in ("x.bool", "x.string", "x.texts", "x.float32", "absent"):
        assert header.number(key) is None
    for key in ("x.uint8", "x.texts", "absent"):
        assert header.text(key) is None
    for key in ("x.uint8", "x.string", "absent"):
        assert header.elements(key, 5) == []


def test_the_tables_of_types_agree_with_the_gguf_package() -> None:
    for kind, (block, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # 36 bytes in ggml-common.h; no file has it
            assert TENSOR_TYPES[kind.value] == (kind.name, block, n_bytes)
    names = {
        t.value: t.name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE") for t in gguf.LlamaFileType
    }
    assert {number: names[number] for number in FILE_TYPES if number in names} == {
        number: name for number, name in FILE_TYPES.items() if number in names
    }
    assert {t.name: t.value for t in ValueType} == {t.name: t.value for t in gguf.GGUFValueType}


HUGE = 2**64 - 1
DAMAGE = {
    "two metadata entries are named 'k'": [[u32("k", 1), u32("k", 2)]],
    "a metadata entry has no name": [[u32("", 1)]],
    "name of metadata entry 1 has 2,000 bytes": [[u32("k" * 2000, 1)]],
    "k has the unknown type 13": [[entry("k", 13, bytes(8))]],
    "k has the unknown type 99": [[entry("k", ARRAY, struct.pack("<IQ", 99, 1))]],
    "k is an array of arrays": [[entry("k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U8, 1))]],
    "said to have 18,446,744,073,709,551,615 texts": [[entry("k", ARRAY, struct.pack("<IQ", STRING, HUGE))]],
    "its alignment is no power of two": [[u32("general.alignment", 24)]],
    "alignment is no power": [[u32("general.alignment", 0)]],
    "alignment is": [[u32("general.alignment", 1 << 30)]],
    "alignment": [[entry("general.alignment", STRING, text("32"))]],
    "the name of tensor 1 has 64 bytes": [[], [tensor("t" * 64, [4])], 16],
    "two tensors are named 'a'": [[], [F32_4, tensor("a", [4], offset=32)], 48],
    "tensor 'a' has 5 dimensions": [[], [tensor("a", [1] * 5)], 16],
    "tensor 'a' has 4,294,967,295 dimensions": [[], [tensor("a", [1], n_dims=2**32 - 1)], 16],
    "tensor 'a' cannot have the sizes 18446744073709551615": [[], [tensor("a", [HUGE])], 16],
    "cannot have the sizes 4294967296 x 4294967296": [[], [tensor("a", [2**32, 2**32])], 16],
    "tensor 'a' has rows of 33, which Q4_0 cannot store": [[], [tensor("a", [33], Q4_0)], 64],
    "tensor 'b' is at 16 and should be at 32": [[], [F32_4, tensor("b", [4], offset=16)], 48],
    "tensor 'b' is at 0 and should be at 32": [[], [F32_4, tensor("b", [4], offset=0)], 48],
    "tensor 'b' is at 64 and should be at 32": [[], [F32_4, tensor("b", [4], offset=64)], 80],
    "tensor 'a' is at 18,446,744,073,709,551,584": [[], [tensor("a", [4], offset=HUGE - 31)], 16],
}  # fmt: skip


@pytest.mark.parametrize("reason", DAMAGE)
def test_what_makes_no_sense_is_named(tmp_path: Path, reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_header(write(tmp_path, *DAMAGE[reason]))
    assert "m.gguf is damaged: " in caught.value.message
    assert reason in caught.value.message
    assert caught.value.hint


def test_an_unknown_tensor_type_may_be_a_newer_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="type 4, which is not known") as caught:
        read_header(write(tmp_path, [], [tensor("a", [4], kind=4)], data=16))
    assert "newer pagedrun" in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        entry("k", STRING, struct.pack("<Q", 2**63)),
        entry("k", ARRAY, struct.pack("<IQ", U64, 2**61)),
        entry("k", ARRAY, struct.pack("<IQ", U8, 1000)),
        entry("k", ARRAY, struct.pack("<IQ", STRING, 2) + struct.pack("<Q", 2**62) + bytes(64)),
        entry("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("x" * 100)),
    ],
)  # fmt: skip
def test_lengths_beyond_the_file(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(ModelFileError, match="ends too early"):
        read_header(write(tmp_path, [value]))


def test_missing_data_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"is truncated: it has 80 B of 96 B"):
        read_header(write(tmp_path, [], [tensor("a", [8])], data=16))


def test_the_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, [u32("general.alignment", 64)], [tensor("a", [1])], data=4, alignment=64))
    assert (header.tensors[0].offset % 64, header.tensors[0].n_bytes) == (0, 4)


def test_scalars_and_empty_tensors_are_tensors(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, [], [tensor("a", []), tensor("b", [4, 0], offset=32)], data=32))
    assert [(t.n_elements, t.n_bytes) for t in header.tensors] == [(1, 4), (0, 0)]


def test_every_shorter_file_is_refused(written: Path) -> None:
    content = written.read_bytes()
    last = read_header(written).tensors[-1]
    for end in (*range(300), *range(300_500, last.offset + last.n_bytes)):
        written.write_bytes(content[:end])
        with pytest.raises(ModelFileError):
            read_header(written)


def test_texts_that_are_not_utf8_are_shown_as_well_as_can_be(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, [entry("k", STRING, text(b"a\xff\xc3"))]))
    assert header.text("k") == "a\ufffd\ufffd"


def test_a_very_long_text_stays_in_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, [entry("long", STRING, text(b"x" * (3 << 20))), entry("k", BOOL, b"\x07"), entry("f", F32, bytes(4))]
    )
    tracemalloc.start()
    header = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.metadata["long"] == Stored(ValueType.STRING, 3 << 20, 24 + 8 + 4 + 4 + 8, is_array=False)
    assert header.text("long") is None
    assert (header.metadata["k"], header.metadata["f"]) == (True, 0.0)
    assert peak < 1 << 20


def test_counts_that_no_model_has(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for n_tensors, n_metadata in ((70_000, 0), (0, 70_000)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_metadata) + bytes(100_000))
        with pytest.raises(ModelFileError, match="damaged: 70,000"):
            read_header(path)


def test_zeros_without_end_end(tmp_path: Path) -> None:
    """A sparse file of 100 GB whose vocabulary would be read for half an hour."""
    path = write(tmp_path, [entry("k", ARRAY, struct.pack("<IQ", STRING, 10**10))])
    os.truncate(path, 100 * 10**9)
    with pytest.raises(ModelFileError, match="is said to have 10,000,000,000 texts"):
        read_header(path)


def test_a_file_that_ends_before_its_vocabulary_is_truncated(tmp_path: Path) -> None:
    path = write(tmp_path, [entry("k", ARRAY, struct.pack("<IQ", STRING, 49_152) + text("a") * 100)])
    with pytest.raises(ModelFileError, match="is truncated or damaged: it ends too early"):
        read_header(path)


def test_a_vocabulary_may_end_where_the_file_ends(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, [words("k", "a", "", "bc")]))
    assert header.elements("k", 99) == ["a", "", "bc"]
